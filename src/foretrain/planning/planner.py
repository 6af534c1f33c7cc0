"""Search: estimate every plan of a space, simulate the best few in full, rank them by the simulation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any

from foretrain.analysis.prediction import Prediction
from foretrain.cost import collectives
from foretrain.errors import InputError
from foretrain.model import ops
from foretrain.plan import schedules
from foretrain.plan.plan import Plan
from foretrain.planning.choices import lone
from foretrain.planning.executors import Executor, InOrder, Processes, RayExecutor
from foretrain.planning.incumbents import Incumbents
from foretrain.planning.inputs import Key, key
from foretrain.planning.partial_result import (
    OBJECTIVES,
    BestPerChoice,
    EstimatedPlan,
    PartialResult,
    incumbents_of,
    merged,
    survey,
    survey_refined,
)
from foretrain.planning.refinements import MARGIN
from foretrain.planning.space import Space, SpacePart, space
from foretrain.planning.task import Task
from foretrain.simulate import Simulation, simulate_scenario
from foretrain.units import counted, rounded_seconds, show_bytes

if TYPE_CHECKING:
    from foretrain.planning.journal import Journal
    from foretrain.planning.layerwise import LayerwiseOutcome

SIMULATED_PER_WANTED = 2
LEAST_SIMULATED = 16
FEW_PARTS = 8
"""Done all at once."""
BUCKETED = 1
"""Of the best plans by estimate, so many are simulated with other buckets, too, in place of the last."""


@dataclass(frozen=True, slots=True)
class SearchStatus:
    """How far a search has come."""

    parts_done: int
    parts: int
    plans_seen: int
    best: EstimatedPlan | None
    seconds: float
    simulated: int = 0
    to_simulate: int = 0


@dataclass(frozen=True)
class Ranked:
    """A plan of the result, simulated."""

    plan: Plan
    simulation: Simulation
    estimated_seconds: float

    def __repr__(self) -> str:
        score = self.score
        peak = f"peak {show_bytes(score.peak_bytes)}"
        plan = self.plan.text or "strategies per layer"
        return f"<Ranked {plan}: {rounded_seconds(score.step_seconds)}, {peak}>"

    def _repr_html_(self) -> str:
        return self.prediction._repr_html_()

    @property
    def prediction(self) -> Prediction:
        return self.simulation.prediction

    @property
    def score(self) -> Score:
        return Score.of(self.simulation)


@dataclass(frozen=True, slots=True)
class Score:
    """Of a simulation, what its plan is ranked by."""

    step_seconds: float
    peak_bytes: float
    fits: bool

    @classmethod
    def of(cls, simulated: Simulation) -> Score:
        held = simulated.memory
        return cls(simulated.step_seconds, held.peak_bytes, held.fits)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def rank(self, objective: str) -> tuple[float, float]:
        both = (self.step_seconds, self.peak_bytes)
        return both[::-1] if objective == "memory" else both


REFUSED = Score(inf, inf, False)


@dataclass(frozen=True)
class RankedPlans:
    """`best` is empty where nothing fits; `nearest` then lacks least memory."""

    task: Task
    objective: str
    plans_valid: int
    plans_fitting: int
    plans_pruned: Mapping[str, int]
    best: tuple[Ranked, ...]
    pareto: tuple[EstimatedPlan, ...]
    told: tuple[BestPerChoice, ...]
    nearest: EstimatedPlan | None
    seconds: float
    notes: tuple[str, ...] = field(default=())
    per_layer: LayerwiseOutcome | None = (
        None  # what strategies per layer came to, where they were looked for
    )
    plans_varied: Mapping[str, int] = field(default_factory=dict)


def search_key(
    task: Task, *, where: Sequence[str] = (), objective: str = "time", top: int = 10
) -> Key:
    """What a journal of `search` with these arguments is known by."""
    return key(task, space(task, where), objective, _keep(top))


def _keep(top: int) -> int:
    return max(SIMULATED_PER_WANTED * top, LEAST_SIMULATED)


def search(
    task: Task,
    *,
    where: Sequence[str] = (),
    objective: str = "time",
    top: int = 10,
    simulated: int | None = None,
    executor: Executor | None = None,
    journal: Journal | None = None,
    progress: Callable[[SearchStatus], None] | None = None,
) -> RankedPlans:
    """The best plans for a task. `simulated`: how many of the best by estimate are simulated, left out a multiple of
    `top`."""
    if objective not in OBJECTIVES:
        raise InputError(f"objective {objective!r} is unknown. Known: {', '.join(OBJECTIVES)}.")
    started = perf_counter()
    plans = space(task, where)
    _expect_parts(plans)
    keep = simulated or _keep(top)
    if journal is not None and journal.key != key(task, plans, objective, keep):
        raise InputError(f"journal {journal.path} was opened for another search; see search_key.")
    executor = executor or InOrder()
    if isinstance(executor, Processes | RayExecutor):
        _expect_known_to_workers(task, plans)
    whole, goals = _surveyed(task, plans, objective, keep, executor, journal, progress, started)
    if objective != "memory":
        whole = _refined(task, plans, whole, goals, objective, keep, executor, journal)
    ranked = _simulated(task, whole, objective, top, journal, progress, started)
    return RankedPlans(
        task=task,
        objective=objective,
        plans_valid=whole.seen,
        plans_fitting=whole.fitting,
        plans_pruned=whole.pruned,
        best=ranked,
        pareto=whole.pareto,
        told=whole.told,
        nearest=whole.nearest,
        seconds=perf_counter() - started,
        notes=tuple(executor.notes),
        plans_varied=whole.varied,
    )


def _expect_parts(plans: Space) -> None:
    """Some way to share out the devices must be left."""
    if not plans.parts():
        told = ", ".join(c.text for c in plans.constraints if c.name in ("tp", "cp", "ep"))
        raise InputError(
            f"{told}: {counted(plans.devices, 'device')} cannot be split this way. Use "
            f"divisors of {plans.devices}."
        )


def _expect_known_to_workers(task: Task, plans: Space) -> None:
    """They start afresh, and have nothing that was registered in this process."""
    chosen = {name.partition("/")[0] for _, name in task.runtime.communication.algorithms}
    kinds = {op.kind for _, op in task.workload.model.ops()}
    own = [
        *(f"schedule {name!r}" for name in plans.palette.schedule if schedules.is_outside(name)),
        *(f"algorithm {name!r}" for name in sorted(chosen) if collectives.is_outside(name)),
        *(f"op family {kind!r}" for kind in sorted(kinds) if ops.is_outside(kind)),
    ]
    if own:
        raise InputError(
            f"{', '.join(own)}: variants registered in this process are not known to worker processes. "
            "Use workers=1, without Ray."
        )


def _surveyed(
    task: Task,
    plans: Space,
    objective: str,
    keep: int,
    executor: Executor,
    journal: Journal | None,
    progress: Callable[[SearchStatus], None] | None,
    started: float,
) -> tuple[PartialResult, Mapping[int, Incumbents]]:
    """All parts, those a journal knows from it; and what the plans of each had to beat."""
    parts = plans.parts()
    done: dict[int, PartialResult] = dict(journal.known()) if journal is not None else {}
    whole, before, goals = PartialResult(pruned={}), list[int](), dict[int, Incumbents]()
    for wave in _waves(len(parts)):
        left = [number for number in wave if number not in done]
        goals.update(dict.fromkeys(wave, incumbents_of(whole, keep)))
        work = partial(_part, task, plans, objective, keep, goals[wave[0]])
        for place, found in executor.run(work, [parts[number] for number in left]):
            done[left[place]] = found
            if journal is not None:
                journal.add(left[place], found)
            if progress is not None:
                progress(_told_progress(done, len(parts), objective, started))
        before = sorted((*before, *wave))
        whole = merged((done[number] for number in before), objective, keep)
    return whole, goals


def _waves(parts: int) -> list[list[int]]:
    """A few parts from all over the space first: plans of others that are slower by a bound are not timed. Each wave
    knows of those before it alone, so that it does not matter who does which part of it, and when."""
    if parts < FEW_PARTS:
        return [[*range(parts)]]
    return [[*range(0, parts, 6)], [*range(3, parts, 6)], [n for n in range(parts) if n % 3]]


def _refined(
    task: Task,
    plans: Space,
    whole: PartialResult,
    goals: Mapping[int, Incumbents],
    objective: str,
    keep: int,
    executor: Executor,
    journal: Journal | None,
) -> PartialResult:
    """… and what is faster still by choices that the grid does not have. Of a grid where nothing fits, all of it may."""
    limit = MARGIN * min((row.seconds for row in whole.best), default=inf)
    parts = plans.parts()
    done = dict(journal.known()) if journal is not None else {}
    left = [n for n in range(len(parts)) if len(parts) + n not in done]
    work = partial(survey_refined, task, plans, objective, keep, limit)
    for place, found in executor.run(work, [(parts[n], goals[n]) for n in left]):
        done[len(parts) + left[place]] = found
        if journal is not None:
            journal.add(len(parts) + left[place], found)
    more = (done[len(parts) + number] for number in range(len(parts)))
    whole = merged((whole, *more), objective, keep)
    others = tuple(_in_other_buckets(task, plans, whole.best))
    if len(others) > keep // 2:
        return whole
    return replace(whole, best=(*whole.best[: keep - len(others)], *others))


def _in_other_buckets(
    task: Task, plans: Space, best: Sequence[EstimatedPlan]
) -> Iterator[EstimatedPlan]:
    """The first plans with buckets of other sizes: how these fall between kernels only a simulation tells."""
    known = {row.plan for row in best}
    for row, size in product(best[:BUCKETED], plans.more.get("buckets", ())):
        words = task.words(row.plan)
        text = task.text(replace(words, buckets=size))
        has_replicas = (words.dp or 1) * words.cp > 1 and words.buckets is None
        if has_replicas and text not in known and plans.allowed(lone(words)).all():
            yield replace(row, plan=text)


def _part(
    task: Task,
    plans: Space,
    objective: str,
    keep: int,
    incumbents: Incumbents,
    part: SpacePart,
) -> PartialResult:
    return survey(task, plans, part, objective, keep, incumbents=incumbents)


def _told_progress(
    done: Mapping[int, PartialResult], parts: int, objective: str, started: float
) -> SearchStatus:
    bests = [found.best[0] for found in done.values() if found.best]
    key = (lambda row: row.memory) if objective == "memory" else (lambda row: row.seconds)
    return SearchStatus(
        parts_done=len(done),
        parts=parts,
        plans_seen=sum(found.seen for found in done.values()),
        best=min(bests, key=key) if bests else None,
        seconds=perf_counter() - started,
    )


def _simulated(
    task: Task,
    whole: PartialResult,
    objective: str,
    top: int,
    journal: Journal | None,
    progress: Callable[[SearchStatus], None] | None,
    started: float,
) -> tuple[Ranked, ...]:
    """The best few in full; what then does not fit is left out.

    Of plans that a journal knows only those that come out on top are simulated once more, for all that a prediction
    says beyond its score.
    """
    scores = dict(journal.simulated()) if journal is not None else {}
    found: dict[str, Ranked] = {}
    number = {row.plan: place for place, row in enumerate(whole.best)}
    done = 0

    def simulated(row: EstimatedPlan, to_simulate: int) -> None:
        nonlocal done
        try:
            found[row.plan] = simulate(task, row)
        except InputError:  # refused for what only the whole of a plan shows
            scores[row.plan] = REFUSED
            return
        done += 1
        scores[row.plan] = found[row.plan].score
        alike = [plan for plan in found if _without_buckets(plan) == _without_buckets(row.plan)]
        for rivals, most in ((alike, 1), (found, top)):
            if len(rivals) > most:  # a simulation is large; those that lose are not kept
                del found[max(rivals, key=place)]
        if journal is not None:
            journal.add_simulated(row.plan, scores[row.plan])
        if progress is not None:
            seconds = perf_counter() - started
            progress(SearchStatus(0, 0, whole.seen, row, seconds, done, to_simulate))

    def place(plan: str) -> tuple[bool, tuple[float, float], int]:
        return not scores[plan].fits, scores[plan].rank(objective), number[plan]

    new = [row for row in whole.best if row.plan not in scores]
    for row in new:
        simulated(row, len(new))
    fitting = [row for row in whole.best if scores[row.plan].fits]
    ranked = sorted(fitting, key=lambda row: scores[row.plan].rank(objective))
    apart = {_without_buckets(row.plan): row for row in reversed(ranked)}  # the best of each
    best = [row for row in ranked if apart[_without_buckets(row.plan)] is row][:top]
    again = [row for row in best if row.plan not in found]
    for row in again:
        simulated(row, len(new) + len(again))
    return tuple(found.get(row.plan) or simulate(task, row) for row in best)


def _without_buckets(plan: str) -> str:
    return re.sub(r" buckets=\S+", "", plan)


def simulate(task: Task, row: EstimatedPlan) -> Ranked:
    plan = task.plan(task.words(row.plan))
    return Ranked(plan, simulate_scenario(task.scenario(plan)), row.seconds)
