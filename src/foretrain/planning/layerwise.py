"""Different strategies for different layers, beside the best uniform plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from foretrain.plan.constraints import Constraint
from foretrain.plan.schedules import DEFAULT
from foretrain.plan.short_form import Words
from foretrain.plan.supported import always
from foretrain.planning.markov import LayerwisePlan, LayerwiseProblem
from foretrain.planning.per_layer import best_walk, described, problems
from foretrain.planning.planner import Ranked
from foretrain.planning.task import Task
from foretrain.simulate import simulate_scenario

FIXED: dict[str, Any] = {
    "cp": 1, "ep": 1, "vpp": 1, "shard": 0, "sp": True, "schedule": DEFAULT, "offload": "none",
    "order": "default", "buckets": "default", "cp-exchange": "all-gather", "tables": "replicated",
}  # fmt: skip
"""What every walk has."""
WHOLE_LAYERS = ("none", "full")
"""What stacks recompute of some layers and not of others."""


def with_walks(
    task: Task,
    rows: Sequence[Ranked],
    pinned: Sequence[Constraint],
    objective: str,
    top: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Ranked, ...]:
    """The best of uniform plans and per-layer plans of the same stages, all simulated."""
    posed = problems(task, [row.plan.text for row in rows])
    found = {described(row.plan): row for row in rows}
    for number, problem in enumerate(posed, 1):
        walk = _walk(task, problem, pinned)
        is_new = walk is not None and _higher(task, walk, problem) not in posed
        if walk is not None and is_new and described(walk.plan) not in found:
            simulated = simulate_scenario(task.scenario(walk.plan))
            if simulated.memory.fits:
                estimate = _seconds(task, walk, problem)
                found[described(walk.plan)] = Ranked(walk.plan, simulated, estimate)
        if progress is not None:
            progress(number, len(posed))
    ranked = sorted(found.values(), key=lambda row: row.score.rank(objective))
    return tuple(ranked[:top])


def _walk(
    task: Task, problem: LayerwiseProblem, pinned: Sequence[Constraint]
) -> LayerwisePlan | None:
    """The best plan of a problem under the user's constraints; None where they forbid it."""
    if not task.is_hypothetical and task.runtime.supported_plans.per_layer == "recompute":
        problem = replace(problem, recomputes=WHOLE_LAYERS, is_tp_fixed=True)
    allowed = [c for c in pinned if c.name == "recompute"]
    allowed += [c for c, _ in always(task.rules, "recompute")]
    kinds = tuple(kind for kind in problem.recomputes if all(c.allows(kind) for c in allowed))
    has = {**FIXED, "pp": problem.stages, "micro": problem.micro, "zero": problem.zero}
    if not kinds or any(c.name in has and not c.allows(has[c.name]) for c in pinned):
        return None
    walk = best_walk(task, replace(problem, recomputes=kinds))
    if walk is None or (len(set(walk.choices)) == 1 and _is_even(walk)):
        return None  # a uniform plan is not new
    degrees = {choice.tp for choice in walk.choices}
    is_pinned = [c for c in pinned if c.name == "tp"]
    if any(not c.allows(tp) for c in is_pinned for tp in degrees):
        return None
    words = _words(walk, problem)
    if not all(rule.allows(words) for rule in task.rules):
        return None
    replicas = [c for c in pinned if c.name == "dp"]
    return None if any(not c.allows(walk.plan.replicas) for c in replicas) else walk


def _words(walk: LayerwisePlan, problem: LayerwiseProblem) -> Words:
    """What a walk has, in the words of plans; of different layers the one that is split most."""
    tp = max(choice.tp for choice in walk.choices)
    return Words(
        tp=tp,
        pp=problem.stages,
        dp=walk.plan.replicas,
        zero=problem.zero,
        sp=tp > 1,
        micro=walk.plan.schedule.micro_batch,
        layers=None if _is_even(walk) else walk.plan.schedule.layers,
    )


def _higher(task: Task, walk: LayerwisePlan, problem: LayerwiseProblem) -> LayerwiseProblem | None:
    """Where all layers are more tensor parallel than the problem asks: the problem in which that is the least, and which
    therefore has this walk too. Where it leaves no replicas there is nothing for ZeRO to split."""
    least = min(choice.tp for choice in walk.choices)
    if least == problem.least_tp:
        return None
    zero = problem.zero if problem.stages * least < task.devices else 0
    micro = problem.micro * least // problem.least_tp
    return replace(problem, least_tp=least, micro=micro, zero=zero)


def _is_even(walk: LayerwisePlan) -> bool:
    """Whether stages hold as many layers each as a plan that does not say so gives them."""
    layers = walk.plan.schedule.layers
    return layers is None or max(layers) - min(layers) <= 1


def _seconds(task: Task, walk: LayerwisePlan, problem: LayerwiseProblem) -> float:
    """One forward, one backward: the slowest stage runs all micro-batches, the pipeline fills and drains."""
    count = task.workload.global_batch // (walk.plan.schedule.micro_batch * walk.plan.replicas)
    return walk.slowest * (count + problem.stages - 1)
