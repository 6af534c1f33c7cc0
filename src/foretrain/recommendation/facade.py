"""The façade: from a job to ranked offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretrain.analysis.answer import TableAnswer
from foretrain.analysis.goodput import Risk
from foretrain.cluster.headroom import headroom_share
from foretrain.errors import InputError, hint, refuse
from foretrain.keywords import keywords, texts_of
from foretrain.limits import Limit, shown
from foretrain.model.graph import Model
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision
from foretrain.plan.constraints import parse
from foretrain.plan.supported import expect_able
from foretrain.recommendation.evaluate import Look, Miss, nearest
from foretrain.recommendation.job import Dataset, Job, figure
from foretrain.recommendation.job import job as job_of
from foretrain.recommendation.offers import Candidate, Offer, Terms, front
from foretrain.recommendation.plans import Stacks
from foretrain.recommendation.prices import (
    BUYING,
    OwnPrice,
    Tariff,
    chosen,
    quotas,
    read_prices,
    tariffs,
)
from foretrain.recommendation.reasons import days, unfit, why
from foretrain.runtime import Runtime
from foretrain.runtime import runtime as stack_of

MOST_DEVICES = 2**17
SIMULATED = 24
"""Offers that are simulated besides the Pareto front."""


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
            "offers": [one.to_dict() for one in self.offers],
            "infeasible": [{"instance": row.instance, "why": row.why} for row in self.infeasible],
            "nearest": self.nearest or None,
            "clusters_looked_at": self.looked_at,
            "assumptions": list(self.notes),
        }


_COLUMNS = (
    "instance", "count", "devices", "device", "plan", "hours", "low_hours", "high_hours", "usd", "usd_per_hour",
    "price_date", "steps", "step_seconds", "goodput", "pareto", "simulated", "why",
)  # fmt: skip


def _flat(one: Offer) -> dict[str, Any]:
    low, high = one.interval_hours
    row = {**one.to_dict(), "low_hours": low, "high_hours": high, "goodput": one.goodput}
    return {name: row[name] for name in _COLUMNS}


@keywords()
def recommend(
    model: str | Path | Mapping[str, Any] | Model,
    *,
    tokens: float | str | None = None,
    samples: float | str | None = None,
    steps: float | str | None = None,
    epochs: float | str | None = None,
    deadline: float | str | None = None,
    budget_usd: float | None = None,
    batch: int | str | None = None,
    batch_per_device: int | None = None,
    seq: int | None = None,
    precision: str | Precision | None = None,
    optimizer: str | Optimizer | None = None,
    runtime: str | Runtime | None = None,
    data: str | Mapping[str, Any] | Dataset | None = None,
    storage: float | None = None,
    buying: str = "on-demand",
    prices: str | Path | Iterable[OwnPrice] | None = None,
    instances: str | Sequence[str] = (),
    quota: int | str | Sequence[int | str] = (),
    max_devices: int | None = None,
    where: str | Sequence[str] = (),
    hypothetical: bool = False,
    risk: Risk | None = None,
    headroom: float | str | None = None,
    simulated: int = SIMULATED,
    progress: Callable[[int, int], None] | None = None,
) -> Recommendation:
    """Rank cloud offers for a training job, with plan, time, cost and reason, best first.

    Args:
        model: as for `predict`.
        tokens: length of the job in tokens, such as `1e12`; or use `samples`, `steps` or `epochs`.
        samples: length of the job in samples.
        steps: length of the job in steps.
        epochs: length of the job in epochs over `data`.
        deadline: maximum time, in seconds or as `"14d"`.
        budget_usd: maximum cost in USD.
        batch: global batch in samples, or in tokens (`"4Mtok"`).
        batch_per_device: batch size per device instead; the global batch scales with the number of devices.
        seq: tokens per sample.
        precision: `bf16`, `fp16`, `fp32`, `fp8` …
        optimizer: `adam`, `sgd` …
        runtime: the software stack. Default: chosen for each cluster, as for `predict`.
        data: dataset: `"imagenet-1k"`, or `"samples=1.3M,sample=110kB,prep=5ms,workers=8"`.
        storage: storage read bandwidth per node in bytes per second.
        buying: `on-demand`, `spot` or `reserved`.
        prices: your own prices and quotas, a CSV or YAML file; overrides the catalog.
        instances: only these, `*` as wildcard: `["aws:p*", "gcp:a3*"]`.
        quota: maximum number of instances: `16`, or `["16", "aws:p4*=8"]`.
        max_devices: maximum number of devices in a cluster.
        where: constraints on plans, as for `search`.
        hypothetical: also consider plans that the software stack cannot run.
        risk: failures, checkpoints and restarts.
        headroom: device memory to keep free: a fraction or a size.
        simulated: number of offers simulated in addition to the Pareto front of time and cost.
        progress: called with the number of instances done and the total.

    >>> from foretrain import recommend
    >>> answer = recommend("gpt2", tokens=1e9, batch=64, instances=["aws:p4d*"], max_devices=8)
    >>> answer.offers[0].name, answer.rows()[0]["usd"] > 0
    ('1 x aws:p4d.24xlarge', True)
    """
    job = job_of(
        model, tokens=tokens, samples=samples, steps=steps, epochs=epochs, batch=batch, batch_per_device=batch_per_device,
        seq=seq, precision=precision, optimizer=optimizer, data=data, deadline=deadline,
        budget_usd=budget_usd,
    )  # fmt: skip
    if buying not in BUYING:
        raise InputError(f"buying: {buying!r} is unknown.{hint(buying, BUYING)}")
    _expect_partners(storage, data, risk, buying)
    most = int(figure("limits", "devices")) if max_devices is None else max_devices
    if not Limit(MOST_DEVICES, "devices").allows(most):
        raise InputError(
            f"max_devices: {shown(most)} is not a whole number from 1 to {MOST_DEVICES:,}."
        )
    rules = texts_of("where", where)
    asked = parse(rules)  # a constraint that cannot be read is no fault of a cluster …
    if runtime is not None and not hypothetical:
        expect_able(stack_of(runtime), asked)  # … nor one for plans that the stack cannot run
    own = read_prices(prices) if isinstance(prices, str | Path) else tuple(prices or ())
    machines = int(figure("limits", "machines"))
    terms = Terms(buying, quotas(texts_of("quota", quota)), most, machines, storage, risk or Risk())
    stacks = Stacks(
        job,
        runtime,
        rules,
        figure("limits", "memory_share"),
        headroom,
        is_hypothetical=hypothetical,
    )
    market = {
        name: (node, tariffs(own)[name])
        for name, node in chosen(texts_of("instances", instances)).items()
    }
    # what even the largest device cannot keep free is a fault of the question
    if headroom is not None:
        every = [device for node, _ in market.values() for device in node.devices]
        headroom_share(headroom, [max(every, key=lambda device: device.memory_bytes)])
    assumed = []
    if max_devices is None:
        size = f"clusters of up to {most:,} devices and {machines:,} nodes"
        assumed.append(f"{size}: limits of the ranking (--max-devices, --quota)")
    if not own:
        assumed.append(f"{buying} prices: list prices of the catalog (--prices)")
    look = Look(job, terms, stacks)
    return _Round(job, terms, look, tuple(assumed), progress).run(market, simulated)


def _expect_partners(storage: object, data: object, risk: Risk | None, buying: str) -> None:
    """What would have no effect is refused, not ignored."""
    faults = []
    if storage is not None and data is None:
        faults.append("storage: has no effect without data (--data), whose samples it would read.")
    if risk is not None and risk.spot_rate is not None and buying != "spot":
        faults.append('spot_rate: has no effect without buying="spot" (--spot).')
    refuse("invalid job:", faults)


class _Round:
    """The catalog once through, then the best again in full."""

    def __init__(
        self,
        job: Job,
        terms: Terms,
        look: Look,
        assumed: tuple[str, ...],
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self.job, self.terms, self.look, self.progress = job, terms, look, progress
        self.assumed = assumed
        self.offers: dict[str, Offer] = {}
        self.misses: dict[str, list[Miss]] = {}
        self.unpriced: dict[str, str] = {}
        self.looked_at = 0

    def run(self, market: Mapping[str, tuple[Any, Tariff]], simulated: int) -> Recommendation:
        total = len(market) + simulated
        for number, (name, (node, tariff)) in enumerate(market.items()):
            self._instance(name, node, tariff)
            self._tell(number + 1, total)
        self._simulate(simulated, len(market))
        return self._result(market)

    def _tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(min(done, total), total)

    def _instance(self, name: str, node: Any, tariff: Tariff) -> None:
        usd = tariff.usd(self.terms.buying)
        if usd is None:
            self.unpriced[name] = (
                f"no {self.terms.buying} price is known; specify one in your own price file."
            )
            return
        counts = list(self.terms.counts(name, node, tariff))
        self.misses[name] = []
        for count in counts:
            candidate = Candidate(
                name, node, count, usd * count, tariff.date, self.terms.buying == "spot"
            )
            self._take(candidate, self.look.estimated(candidate))
            self.looked_at += 1
        if not counts:
            self.unpriced[name] = (
                "the quota allows none, or one instance has more devices than allowed."
            )

    def _take(self, candidate: Candidate, outcome: Offer | Miss) -> None:
        key = f"{candidate.count} x {candidate.instance}"
        self.offers.pop(key, None)
        if isinstance(outcome, Offer):
            self.offers[key] = outcome
        else:
            self.misses[candidate.instance].append(outcome)

    def _simulate(self, most: int, before: int) -> None:
        """The front and the first few, until all of them are simulated."""
        done = 0
        while done < 2 * most:
            first = ranked(self.offers.values(), self.job)
            wanted = {one.name: one for one in (*front(first), *first[:most])}
            left = [one for one in wanted.values() if not one.is_simulated]
            if not left:
                break
            for one in left:
                self._take(one.candidate, self.look.simulated(one))
                done += 1
                self._tell(before + min(done, most), before + most)
        for name, one in self.offers.items():
            if not one.is_simulated:
                self.offers[name] = self.look.again(one)

    def _result(self, market: Mapping[str, tuple[Any, Tariff]]) -> Recommendation:
        best = {one.name for one in front(self.offers.values())}
        offers = [replace(one, is_best=one.name in best) for one in self.offers.values()]
        offers = [replace(one, why=why(one, offers, self.job)) for one in offers]
        offers = ranked(offers, self.job)
        offered = {one.candidate.instance for one in offers}
        lost = []
        for name in market:
            if name not in offered:
                reason = self.unpriced.get(name) or unfit(self.misses[name], self.job, self.terms)
                lost.append(Infeasible(name, reason))
        every = [miss for misses in self.misses.values() for miss in misses]
        return Recommendation(
            job=self.job,
            offers=tuple(offers),
            infeasible=tuple(lost),
            nearest="" if offers else self._nearest(every),
            notes=self._notes(),
            looked_at=self.looked_at,
            buying=self.terms.buying,
        )

    def _notes(self) -> tuple[str, ...]:
        notes = [*self.job.assumptions, *self.look.stacks.notes()]
        if self.job.deadline is None:
            notes.append(
                f"offers of up to {days(self.look.most_hours)}: no deadline specified (--deadline)"
            )
        risk = self.terms.risk.assumptions(is_spot=self.terms.buying == "spot")
        return (*notes, *self.assumed, *risk)

    def _nearest(self, misses: Sequence[Miss]) -> str:
        """What comes closest, and where memory is what lacks, how many machines would do."""
        miss = nearest(misses, self.job) or self._least_slow(misses)
        if miss is None:
            return ""
        text = f"{miss.candidate.count} x {miss.candidate.instance}: " + unfit(
            [miss], self.job, self.terms
        )
        return text + (self._larger(miss) if miss.kind == "memory" else "")

    def _least_slow(self, misses: Sequence[Miss]) -> Miss | None:
        """Where nothing was worth a look: the fastest by its data sheet, looked at after all."""
        slow = [miss for miss in misses if miss.kind == "slow"]
        if not slow:
            return None
        return self.look.anyway(min(slow, key=lambda m: m.least_hours).candidate)

    def _larger(self, miss: Miss) -> str:
        """The first larger number of machines on which a plan fits."""
        one = miss.candidate
        if one.node.nics is None:
            return ""
        count = one.count * 2
        while count * one.node.device_count <= 4 * self.terms.most_devices:
            rent = one.usd_per_hour / one.count * count
            outcome = self.look.estimated(replace(one, count=count, usd_per_hour=rent))
            what = outcome if isinstance(outcome, Offer) else outcome.offer
            if what is not None:
                return f" On {count} x {one.instance} '{what.plan}' would fit."
            count *= 2
        return ""


def ranked(offers: Iterable[Offer], job: Job) -> list[Offer]:
    """Cheapest first; with a budget and no deadline, fastest first."""
    if job.budget_usd is not None and job.deadline is None:
        return sorted(offers, key=lambda o: (o.hours, o.usd, o.name))
    return sorted(offers, key=lambda o: (o.usd, o.hours, o.name))
