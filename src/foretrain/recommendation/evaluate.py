"""Looking through the catalog: the best plans on every candidate, estimated, and the best offers simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import Any

from foretrain.analysis.prediction import STALLS
from foretrain.cluster.headroom import fill
from foretrain.planning.partial_result import EstimatedPlan
from foretrain.recommendation.job import Job, figure
from foretrain.recommendation.offers import Candidate, Offer, Terms, TimedOffer, least_hours, offer
from foretrain.recommendation.plans import PlannedCluster, Stacks
from foretrain.simulate import answer

_AS_GOOD = 1.02
"""Plans estimated this near to the best simulated one are simulated too."""


@dataclass(frozen=True)
class Miss:
    """A candidate that is no offer, and what it lacks."""

    candidate: Candidate
    kind: str  # refused | memory | late | slow | dear
    offer: Offer | None = None
    nearest: EstimatedPlan | None = None
    reason: str = ""
    least_hours: float = 0.0

    @property
    def fill(self) -> float:
        """Of what is usable of a device, how much the plan nearest to fitting takes."""
        nearest = self.nearest
        return inf if nearest is None else float(fill(nearest.memory, nearest.usable))


@dataclass(eq=False)
class Look:
    """One look through the catalog for a job."""

    job: Job
    terms: Terms
    stacks: Stacks
    _planned: dict[tuple[Any, ...], PlannedCluster] = field(default_factory=dict)
    _near: dict[tuple[Any, ...], tuple[EstimatedPlan, ...]] = field(default_factory=dict)
    _whole: set[tuple[Any, ...]] = field(default_factory=set)
    _simulated: dict[tuple[Any, ...], tuple[TimedOffer | None, EstimatedPlan | None]] = field(
        default_factory=dict
    )
    factors: dict[tuple[str, bool], float] = field(default_factory=dict)
    """Upper end over middle of simulated steps, by device and whether machines are several."""

    def estimated(self, candidate: Candidate) -> Offer | Miss:
        """The candidate's best plan by estimate, or why there is none."""
        least = least_hours(self.job, candidate)
        if least > self.most_hours:
            return Miss(candidate, "slow", least_hours=least)
        return self._look(candidate)

    def anyway(self, candidate: Candidate) -> Miss | None:
        """What an estimate says of a candidate that cannot be in time."""
        outcome = self._look(candidate)
        return outcome if isinstance(outcome, Miss) else None

    def _look(self, candidate: Candidate) -> Offer | Miss:
        planned = self._plans(candidate)
        if not planned.best:
            kind = "memory" if planned.nearest is not None else "refused"
            return Miss(candidate, kind, nearest=planned.nearest, reason=planned.refusal)
        one = offer(self.job, candidate, self._timed(candidate, planned.best[0]), self.terms)
        judged = self.judged(one)
        if isinstance(judged, Miss) and self._is_close(one):
            return self.simulated(one)
        return judged

    def _is_close(self, one: Offer) -> bool:
        """Whether an estimate misses deadline or budget by no more than it may be off."""
        doubt = figure("limits", "estimate_doubt")
        is_dear = self.job.budget_usd is not None and one.usd > doubt * self.job.budget_usd
        return one.hours <= doubt * self.most_hours and not is_dear

    @property
    def most_hours(self) -> float:
        if self.job.deadline is not None:
            return self.job.deadline / 3600.0
        return figure("limits", "hours")

    def judged(self, one: Offer) -> Offer | Miss:
        """The offer if it keeps deadline and budget."""
        if one.hours > self.most_hours:
            return Miss(one.candidate, "late", one)
        if self.job.budget_usd is not None and one.usd > self.job.budget_usd:
            return Miss(one.candidate, "dear", one)
        return one

    def simulated(self, one: Offer) -> Offer | Miss:
        """The same offer with the best plan that a simulation finds to fit."""
        candidate = one.candidate
        key = (*candidate.hardware, candidate.count)
        if key not in self._simulated:
            self._simulated[key] = self._simulate(candidate)
        best, nearest = self._simulated[key]
        if best is None:
            return Miss(candidate, "memory", nearest=nearest)
        kind = (candidate.node.devices[0].name, candidate.count > 1)
        factor = best.interval[1] / best.step_seconds
        self.factors[kind] = max(self.factors.get(kind, 1.0), factor)
        return self.judged(offer(self.job, candidate, best, self.terms))

    def _simulate(self, candidate: Candidate) -> tuple[TimedOffer | None, EstimatedPlan | None]:
        """The fastest of the best plans in full; where none fits, the first of them."""
        planner = self.stacks.on(candidate.cluster)
        workload = planner.workload(self.job.batch_on(candidate.devices))
        task = planner.task(workload, candidate.cluster)
        best: TimedOffer | None = None
        nearest: EstimatedPlan | None = None
        for estimated in self._plans(candidate, is_whole=True).best:
            if best is not None and estimated.seconds > _AS_GOOD * best.step_seconds:
                break
            prediction = answer(task.scenario(task.plan(task.words(estimated.plan))))
            memory = prediction.memory
            if not prediction.fits:
                too_large = replace(estimated, memory=memory.peak_bytes, usable=memory.usable_bytes)
                nearest = nearest or too_large
            elif best is None or prediction.step_seconds < best.step_seconds:
                used = (memory.peak_bytes, memory.usable_bytes)
                best = TimedOffer(
                    estimated.plan,
                    prediction.step_seconds,
                    prediction.interval,
                    prediction.stalls,
                    *used,
                    True,
                )
        return best, nearest

    def again(self, one: Offer) -> Offer:
        """An estimated offer with the interval that simulations of its like have."""
        low, high = self._interval(one.candidate, _compute(one))
        timed = TimedOffer(
            one.plan,
            _compute(one),
            (low, high),
            _own(one),
            one.peak_bytes,
            one.usable_bytes,
            False,
        )
        return offer(self.job, one.candidate, timed, self.terms)

    # --- plans ----------------------------------------------------------------------------------

    def _plans(self, candidate: Candidate, is_whole: bool = False) -> PlannedCluster:
        """Plans of equal hardware are looked at once; a larger cluster near those of a smaller one."""
        key = (*candidate.hardware, candidate.count)
        if key in self._planned and (not is_whole or key in self._whole):
            return self._planned[key]
        cluster = candidate.cluster
        planner = self.stacks.on(cluster)
        workload = planner.workload(self.job.batch_on(candidate.devices))
        node = candidate.node
        kind = (planner.runtime.name, node.devices, node.interconnect, node.nics)
        near = () if is_whole else self._near.get(kind, ())
        planned = planner.best(workload, cluster, near)
        if near and not planned.best:
            planned, near = planner.best(workload, cluster), ()
        if not near:
            self._whole.add(key)
        if planned.best:
            self._near[kind] = planned.best[:2]
        self._planned[key] = planned
        return planned

    def _timed(self, candidate: Candidate, estimated: EstimatedPlan) -> TimedOffer:
        return TimedOffer(
            estimated.plan,
            estimated.seconds,
            self._interval(candidate, estimated.seconds),
            stalls_of(estimated, candidate.count > 1),
            estimated.memory,
            estimated.usable,
            False,
        )

    def _interval(self, candidate: Candidate, seconds: float) -> tuple[float, float]:
        """As wide as that of simulated steps on the same device, an estimate's own doubt besides."""
        device = candidate.node.devices[0].name
        known = self.factors.get((device, candidate.count > 1))
        if known is None:
            known = max(self.factors.values(), default=1.0)
        factor = 1.0 + sqrt((known - 1.0) ** 2 + (figure("limits", "estimate_factor") - 1.0) ** 2)
        return seconds / factor, seconds * factor


def _compute(one: Offer) -> float:
    """Seconds of a step that waits for no sample."""
    return sum(_own(one).values())


def _own(one: Offer) -> Mapping[str, float]:
    return {n: 0.0 if n in ("prep", "fetch") else s for n, s in one.stalls.items()}


def stalls_of(estimated: EstimatedPlan, has_network: bool) -> dict[str, float]:
    """What an estimate knows of causes: communication inside blocks counts as computing."""
    stalls = dict.fromkeys(STALLS, 0.0)
    stalls["compute"] = estimated.work
    stalls["bubble"] = max(0.0, estimated.pipeline)
    stalls["network" if has_network else "interconnect"] = estimated.data
    stalls["optimizer"] = estimated.update
    stalls["compute"] += estimated.seconds - sum(stalls.values())
    return stalls


def nearest(misses: Sequence[Miss], job: Job) -> Miss | None:
    """What comes closest to an offer: too late or too dear by the least factor, else lacking least memory."""

    def factor(miss: Miss) -> float:
        if miss.offer is None:
            return inf
        late = miss.offer.hours * 3600.0 / job.deadline if job.deadline else 1.0
        dear = miss.offer.usd / job.budget_usd if job.budget_usd else 1.0
        return max(late, dear)

    timed = [miss for miss in misses if miss.offer is not None]
    if timed:
        return min(timed, key=lambda m: (factor(m), m.offer.usd if m.offer else inf))
    lacking = [miss for miss in misses if miss.nearest is not None]
    if lacking:
        return min(lacking, key=lambda miss: miss.fill)
    return None
