"""Choosing among offers: the order they are listed in, the knee, what is best where, and what is more of the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from foretrain.recommendation.job import Job, figure
from foretrain.recommendation.offers import Offer


def is_knee_wanted(job: Job) -> bool:
    """Without a deadline nothing says how much a day is worth: time and money are weighed against each other."""
    return job.deadline is None


def weighed(one: Offer) -> float:
    """Money and time in one figure, which is least at the knee.

    Eager, Zahorjan and Lazowska (IEEE Trans. Computers 38(3), 1989) call the knee of a parallel program the point where
    efficiency over execution time is greatest. Efficiency is work over devices times time, so with money for devices
    times time that is the least of money times time. Here time counts for less (`time_worth`).
    """
    return float(one.usd * one.hours ** figure("knee", "time_worth"))


def ranked(offers: Iterable[Offer], job: Job) -> list[Offer]:
    """Cheapest first where there is a deadline; else the knee first."""
    if is_knee_wanted(job):
        return sorted(offers, key=lambda o: (weighed(o), o.hours, o.usd, o.name))
    return sorted(offers, key=lambda o: (o.usd, o.hours, o.name))


def front(offers: Iterable[Offer]) -> list[Offer]:
    """Those that no other beats in both hours and money, cheapest first."""
    best: list[Offer] = []
    for one in sorted(offers, key=lambda o: (o.usd, o.hours, o.name)):
        if not best or one.hours < best[-1].hours:
            best.append(one)
    return best


def folded(offers: Sequence[Offer]) -> list[Offer]:
    """The same in the same order, with what is more of the same marked by the offer that it is folded into.

    As many devices of the same kind in the same cloud, and neither faster nor cheaper by more than estimates may be off.
    """
    slack = 1.0 - figure("limits", "alike")
    first: dict[tuple[str, str, int], list[Offer]] = {}
    marked = []
    for one in offers:
        kept = first.setdefault((cloud(one), device(one), one.candidate.devices), [])
        base = next(
            (o for o in kept if one.hours >= slack * o.hours and one.usd >= slack * o.usd), None
        )
        if base is None:
            kept.append(one)
        marked.append(one if base is None else replace(one, alike=base.name))
    return marked


def best_by(offers: Sequence[Offer], of: Callable[[Offer], str]) -> dict[str, Offer]:
    """The first of every kind, in the order of the offers."""
    best: dict[str, Offer] = {}
    for one in offers:
        best.setdefault(of(one), one)
    return best


def cloud(one: Offer) -> str:
    return one.candidate.instance.partition(":")[0]


def device(one: Offer) -> str:
    return one.candidate.node.devices[0].name


@dataclass(frozen=True, slots=True)
class Choice:
    """Which rule puts the first offer first."""

    rule: str  # knee | cheapest
    sentence: str
    note: str = ""  # where the rule was chosen for the user, with the word that changes it


def choice(job: Job) -> Choice:
    if is_knee_wanted(job):
        within = " within the budget" if job.budget_usd is not None else ""
        worth = figure("knee", "time_worth")
        return Choice(
            "knee",
            f"First the knee of cost over time{within}: 1 % less time would cost over {worth:g} % more",
            f"first the knee of cost over time, beyond which 1 % less time costs over {worth:g} % more: no deadline specified "
            "(--deadline)",
        )
    within = "deadline" if job.budget_usd is None else "deadline and the budget"
    return Choice("cheapest", f"First the cheapest within the {within}")
