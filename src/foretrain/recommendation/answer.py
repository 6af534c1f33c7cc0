"""The answer: offers, best first, and why other machines are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrain.analysis.answer import TableAnswer
from foretrain.recommendation.choosing import best_by, choice, cloud, device, front
from foretrain.recommendation.job import Job
from foretrain.recommendation.market import not_covered
from foretrain.recommendation.offers import Offer


@dataclass(frozen=True)
class Infeasible:
    """An instance that is offered in no number."""

    instance: str
    why: str


@dataclass(frozen=True, repr=False)
class Recommendation(TableAnswer):
    """`offers` best first; `nearest` says in words what comes closest where there is none."""

    job: Job
    offers: tuple[Offer, ...]
    infeasible: tuple[Infeasible, ...]
    nearest: str = ""
    notes: tuple[str, ...] = ()
    looked_at: int = 0
    buying: str = "on-demand"
    remedy: str = ""
    """More devices that would do where the limit on devices is what binds."""

    @property
    def distinct(self) -> tuple[Offer, ...]:
        """Without those that are folded into another."""
        return tuple(one for one in self.offers if not one.alike)

    def by_name(self, name: str) -> Offer:
        """An offer by its name, such as `2 x aws:p5.48xlarge`."""
        return next(one for one in self.offers if one.name == name)

    @property
    def by_cloud(self) -> dict[str, Offer]:
        return best_by(self.offers, cloud)

    @property
    def by_device(self) -> dict[str, Offer]:
        return best_by(self.offers, device)

    @property
    def pareto(self) -> tuple[Offer, ...]:
        """Offers that nothing beats in both time and money, cheapest first."""
        return tuple(front(self.offers))

    def rows(self) -> list[dict[str, Any]]:
        """Offers, best first."""
        return [_flat(one) for one in self.offers]

    def to_dict(self) -> dict[str, Any]:
        return {
            "job": {**self.job.to_dict(), "buying": self.buying},
            "rule": choice(self.job).rule,
            "offers": [one.to_dict() for one in self.offers],
            "best_by_cloud": {name: one.name for name, one in self.by_cloud.items()},
            "best_by_device": {name: one.name for name, one in self.by_device.items()},
            "infeasible": [{"instance": row.instance, "why": row.why} for row in self.infeasible],
            "nearest": self.nearest or None,
            "remedy": self.remedy or None,
            "not_covered": list(not_covered()),
            "clusters_looked_at": self.looked_at,
            "assumptions": list(self.notes),
        }


_COLUMNS = (
    "instance", "count", "devices", "device", "plan", "hours", "low_hours", "high_hours", "usd", "usd_per_hour",
    "price_date", "steps", "step_seconds", "goodput", "energy_kwh", "pareto", "simulated", "alike", "why",
)  # fmt: skip


def _flat(one: Offer) -> dict[str, Any]:
    low, high = one.interval_hours
    row = {**one.to_dict(), "low_hours": low, "high_hours": high, "goodput": one.goodput}
    return {name: row[name] for name in _COLUMNS}
