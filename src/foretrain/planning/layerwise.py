"""Different strategies for different layers, beside the best uniform plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from foretrain.errors import InputError
from foretrain.plan.constraints import Constraint, value_in
from foretrain.plan.mesh import Mesh
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import DEFAULT
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import StrategyNode
from foretrain.plan.supported import always
from foretrain.planning.layer_trees import LayerwiseProblem, MixedTrees
from foretrain.planning.markov import LayerwisePlan, Walker
from foretrain.planning.per_layer import problems
from foretrain.planning.planner import Ranked, RankedPlans
from foretrain.planning.task import Task
from foretrain.simulate import simulate_scenario

WHOLE_LAYERS = ("none", "full")
"""What stacks recompute of some layers and not of others."""
UNEVEN = "uneven"
"""Layers of stages that are no value of `layers` which anybody asks for by name."""
_PER_LAYER = ("recompute", "layers")
"""Choices that are made layer by layer, or with the layers of stages."""
FULL = 0.9
"""Share of its memory beyond which a device is short of it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done for different strategies per layer, in work that is the same on every machine."""

    rows: int  # uniform plans that are started from
    problems: int
    solved: int
    simulated: int
    least_gain: float  # share of the best uniform plan's time that a plan has to save to be shown


UNASKED = Effort(rows=4, problems=4, solved=2, simulated=2, least_gain=0.01)
"""… where nobody asked for them: a few per cent of a search. What saves less is not worth a tree."""
ASKED = Effort(rows=24, problems=24, solved=24, simulated=8, least_gain=-0.05)


@dataclass(frozen=True, slots=True)
class LayerwiseOutcome:
    """What strategies per layer came to."""

    problems: int  # that uniform plans posed
    solved: int  # … whose bound did not show them slower
    simulated: int
    fitting: int
    gain: float | None  # share of the best uniform plan's time that the best of them saves
    gap: float | None  # share by which that one's slowest stage may be slower than possible

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def can_help(task: Task, found: RankedPlans) -> bool:
    """Whether layers may differ, time is what counts, and memory is short: the fastest plan recomputes or all but fills its
    devices, or none fits."""
    is_about_time = found.objective != "memory"
    if _freedom(task) == "none" or task.workload.model.layers < 2 or not is_about_time:
        return False
    if not found.best:
        return True
    fastest = min(found.best, key=lambda row: row.score.step_seconds)
    held = fastest.simulation.memory
    is_recomputed = (fastest.plan.root.recompute or "none") != "none"
    return is_recomputed or held.peak_bytes > FULL * held.usable_bytes


def with_walks(
    task: Task,
    found: RankedPlans,
    pinned: Sequence[Constraint],
    objective: str,
    top: int,
    effort: Effort,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[tuple[Ranked, ...], LayerwiseOutcome]:
    """The best of uniform plans and per-layer plans of the same stages, all simulated; and what the latter came to."""
    walkers = _walkers(task, found, pinned, effort)
    uniform = min((row.score.step_seconds for row in found.best), default=inf)
    limit = inf if objective == "memory" else uniform * (1.0 - effort.least_gain)
    ranked = {_tree(row.plan): row for row in found.best}
    gaps: dict[Tree, float] = {}
    solved = simulated = 0
    for walker in _promising(walkers, limit)[: effort.solved]:
        if simulated == effort.simulated:
            break
        solved += 1
        if progress is not None:
            progress(solved, len(walkers))
        try:
            walk = _walk(task, walker, pinned)
            if walk is None or walk.step_seconds >= limit or _tree(walk.plan) in ranked:
                continue
            row = Ranked(walk.plan, simulate_scenario(task.scenario(walk.plan)), walk.step_seconds)
        except InputError:  # refused for what only the whole of a plan shows
            continue
        simulated += 1
        if row.score.fits and row.score.step_seconds < limit:
            ranked[_tree(walk.plan)] = row
            gaps[_tree(walk.plan)] = walk.gap
    rows = sorted(ranked.values(), key=lambda row: row.score.rank(objective))
    best = min(gaps, key=lambda tree: ranked[tree].score.step_seconds, default=None)
    gain = None
    if best is not None and uniform < inf:
        gain = 1.0 - ranked[best].score.step_seconds / uniform
    outcome = LayerwiseOutcome(
        len(walkers), solved, simulated, len(gaps), gain, None if best is None else gaps[best]
    )
    return tuple(rows[:top]), outcome


Tree = tuple[Mesh, StrategyNode]


def _tree(plan: Plan) -> Tree:
    """What a plan is, whatever it is called."""
    return plan.mesh, plan.root


def _walkers(
    task: Task, found: RankedPlans, pinned: Sequence[Constraint], effort: Effort
) -> list[Walker]:
    """Problems with their tables, those first that may come to most."""
    texts = [row.plan.text for row in found.best[: effort.rows] if row.plan.text]
    if not texts and found.nearest is not None:
        texts = [found.nearest.plan]
    able = (_allowed(task, problem, pinned) for problem in problems(task, texts, _freedom(task)))
    posed = [problem for problem in dict.fromkeys(able) if problem is not None]
    return [made for problem in posed[: effort.problems] for made in _opened(task, problem)]


def _promising(walkers: Sequence[Walker], limit: float) -> list[Walker]:
    """Those that are faster by their tables, fastest first."""
    able = [walker for walker in walkers if walker.least_seconds < limit]
    return sorted(
        (walker for walker in able if walker.seconds < limit), key=lambda walker: walker.seconds
    )


def _opened(task: Task, problem: LayerwiseProblem) -> Iterator[Walker]:
    """A problem that the model can pose."""
    try:
        yield Walker(task, problem)
    except InputError:
        return


def _freedom(task: Task) -> str:
    return "all" if task.is_hypothetical else task.runtime.supported_plans.per_layer


def _allowed(
    task: Task, problem: LayerwiseProblem, pinned: Sequence[Constraint]
) -> LayerwiseProblem | None:
    """A problem with what stack and user leave layers to choose from; None where that is nothing."""
    freedom = _freedom(task)
    kinds = WHOLE_LAYERS if freedom == "recompute" else problem.recomputes
    kinds = tuple(kind for kind in kinds if _allows(task, pinned, "recompute", kind))
    is_fixed = problem.words is not None
    problem = replace(
        problem,
        recomputes=kinds,
        sp=problem.sp if problem.least_tp > 1 else _allows(task, pinned, "sp", True),
        is_even=not _allows(task, pinned, "layers", UNEVEN),
    )
    if not is_fixed:
        degrees = MixedTrees(task, problem).tps
        tps = tuple(tp for tp in degrees if _allows(task, pinned, "tp", tp))
        if problem.least_tp not in tps:
            return None
        problem = replace(problem, tps=tps)
    if not kinds or not _can_be(task, _words(task, problem), pinned):
        return None
    if freedom == "all":
        zeros = [z for z in (1, 2, 3) if _can_be(task, _words(task, problem, z), pinned)]
        problem = replace(problem, zeros=tuple(sorted({*zeros, problem.zero})))
    else:
        problem = replace(problem, zeros=(problem.zero,))
    if is_fixed and len(kinds) == len(problem.zeros) == 1:
        return None
    return replace(problem, zero=problem.zeros[0])


def _allows(task: Task, pinned: Sequence[Constraint], name: str, value: object) -> bool:
    """Whether the user and the stack, whatever else plans have, allow a value."""
    asked = [*(c for c in pinned if c.name == name), *(c for c, _ in always(task.rules, name))]
    return all(c.allows(value) for c in asked)


def _words(task: Task, problem: LayerwiseProblem, zero: int | None = None) -> Words:
    """A plan of a problem whose layers are alike and as little tensor parallel as they can be."""
    words = problem.words
    if words is None:
        tp, stages = problem.least_tp, problem.stages
        words = Words(
            tp=tp,
            pp=stages,
            dp=task.devices // (tp * stages),
            sp=problem.sp and tp > 1,
            micro=problem.micro,
            schedule=DEFAULT if stages > 1 else None,
        )
    return replace(
        words, zero=problem.zero if zero is None else zero, recompute=problem.recomputes[0]
    )


def _can_be(task: Task, words: Words, pinned: Sequence[Constraint]) -> bool:
    """Whether stack and user allow a plan, as far as layers that differ do not decide it."""
    if words.zero and words.dp == words.cp == 1:
        return False  # nothing to split it over
    asked = [c for c in pinned if c.name not in _PER_LAYER]
    return all(rule.allows(words) for rule in task.rules) and all(
        (value := value_in(words, c.name)) is None or c.allows(value) for c in asked
    )


def _walk(task: Task, walker: Walker, pinned: Sequence[Constraint]) -> LayerwisePlan | None:
    """The best plan of a problem under the user's constraints; None where they forbid it."""
    walk = walker.walk()
    if walk is None or (len(set(walk.choices)) == 1 and walk.plan.schedule.layers is None):
        return None  # a uniform plan is not new
    tps = {choice.tp for choice in walk.choices}
    if min(tps) > walker.problem.least_tp:
        return None  # it belongs to a problem of its own
    asked = [c for c in pinned if c.name in ("tp", "dp", "micro", "layers")]
    plans = [
        replace(
            _words(task, walker.problem, choice.zero),
            tp=choice.tp,
            sp=walker.problem.sp and choice.tp > 1,
            recompute=choice.recompute,
            layers=walk.plan.schedule.layers,
        )
        for choice in dict.fromkeys(walk.choices)
    ]
    is_able = all(
        all(rule.allows(words) for rule in task.rules)
        and all(c.allows(value_in(words, c.name)) for c in asked)
        for words in plans
    )
    return walk if is_able else None
