"""Walks around the best uniform plans: where different layers want different strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from foretrain.errors import InputError
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words
from foretrain.planning.markov import LayerwisePlan, LayerwiseProblem, walk
from foretrain.planning.task import Task

MOST_GROUNDS = 24


def problems(task: Task, plans: Sequence[str]) -> tuple[LayerwiseProblem, ...]:
    """The problems that uniform plans pose (stages, micro-batches, ZeRO), and those with fewer ranks tied to tensor parallelism."""
    found: dict[LayerwiseProblem, None] = {}
    for text in plans:
        for problem in _under(task, task.words(text)):
            found[problem] = None
    return tuple(found)[:MOST_GROUNDS]


def _under(task: Task, words: Words) -> Iterator[LayerwiseProblem]:
    tp, micro = words.tp, words.micro or 1
    while True:
        ranks = task.devices // (words.pp * tp)
        if task.devices % (words.pp * tp) == 0:
            for samples in _halves(micro):
                if task.workload.global_batch % (ranks * samples) == 0:
                    yield LayerwiseProblem(words.pp, tp, samples, words.zero)
        if tp % 2 or micro % 2:
            return
        tp, micro = tp // 2, micro // 2


def _halves(count: int) -> Iterator[int]:
    """A number and its halves while they are whole: a stage that holds fewer layers may want smaller steps."""
    while True:
        yield count
        if count % 2:
            return
        count //= 2


def best_walk(task: Task, problem: LayerwiseProblem) -> LayerwisePlan | None:
    """A path, or None where the problem has none."""
    try:
        return walk(task, problem)
    except InputError:
        return None


def described(plan: Plan) -> str:
    """A tree in a line: what holds for all, then layer by layer."""
    if plan.text:
        return plan.text
    sizes = dict(plan.mesh.axes)
    stages = plan.schedule.stages
    head = [f"pp{stages}"] if stages > 1 else []
    head += [f"micro={plan.schedule.micro_batch}", *_zero(plan)]
    layers = plan.schedule.layers
    if layers is not None and max(layers) > min(layers):
        head.append(f"layers={','.join(map(str, layers))}")
    parts = []
    runs = [
        (_cut(node.split, sizes), node.recompute or "none", node.select)
        for node in plan.root.children
    ]
    for (tp, recompute), run in groupby(runs, key=lambda r: r[:2]):
        names = [select for _, _, select in run]
        told = names[0] if len(names) == 1 else f"{names[0]}…{names[-1]}"
        parts.append(f"{told} tp{tp}" + (f" recompute={recompute}" if recompute != "none" else ""))
    return f"{' '.join(head)}: {', '.join(parts)}"


def _zero(plan: Plan) -> list[str]:
    return [f"zero{len(plan.root.state)}"] if plan.root.state else []


def _cut(cuts: Sequence[object], sizes: dict[str, int]) -> int:
    degree = 1
    for cut in cuts[:1]:
        for axis in cut.axes:  # type: ignore[attr-defined]
            degree *= sizes[axis]
    return degree
