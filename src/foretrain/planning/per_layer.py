"""Walks around the best uniform plans: where different layers want different strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import prod

from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import Cut, StrategyNode
from foretrain.planning.markov import LayerwiseProblem
from foretrain.planning.task import Task

MOST_PROBLEMS = 24


def problems(task: Task, plans: Sequence[str]) -> tuple[LayerwiseProblem, ...]:
    """The problems that uniform plans pose (stages, micro-batches, ZeRO), and those with fewer ranks tied to tensor parallelism."""
    found: dict[LayerwiseProblem, None] = {}
    for text in plans:
        for problem in _under(task, task.words(text)):
            found[problem] = None
    return tuple(found)[:MOST_PROBLEMS]


def _under(task: Task, words: Words) -> Iterator[LayerwiseProblem]:
    tp, micro = words.tp, words.micro or 1
    while True:
        ranks = task.devices // (words.pp * tp)
        if task.devices % (words.pp * tp) == 0:
            for samples in _halves(micro):
                if task.workload.global_batch % (ranks * samples) == 0:
                    yield LayerwiseProblem(words.pp, tp, samples, words.zero, sp=words.sp)
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


def described(plan: Plan) -> str:
    """A tree in a line: what holds for all, then layer by layer."""
    if plan.text:
        return plan.text
    sizes = dict(plan.mesh.axes)
    stages, common = plan.schedule.stages, _cut(plan.root.split, sizes)
    head = [f"tp{common}"] if common else []
    head += [f"pp{stages}"] if stages > 1 else []
    head += [f"micro={plan.schedule.micro_batch}", *_zero(plan)]
    layers = plan.schedule.layers
    if layers is not None and max(layers) > min(layers):
        head.append(f"layers={','.join(map(str, layers))}")
    parts = []
    runs = [(_says(node, plan, common, sizes), node.select) for node in plan.root.children]
    for says, run in groupby(runs, key=lambda r: r[0]):
        names = [select for _, select in run]
        if says:
            parts.append(
                " ".join([names[0] if len(names) == 1 else f"{names[0]}…{names[-1]}", *says])
            )
    return f"{' '.join(head)}: {', '.join(parts)}"


def _says(node: StrategyNode, plan: Plan, common: int, sizes: dict[str, int]) -> tuple[str, ...]:
    """What a part of the model has."""
    found: tuple[str, ...] = () if common else (f"tp{_cut(node.split, sizes) or 1}",)
    if node.state:
        split = {**dict(plan.root.state), **dict(node.state)}
        found += (f"zero{sum(bool(axes) for axes in split.values())}",)
    if node.recompute not in (None, "none"):
        found += (f"recompute={node.recompute}",)
    return found


def _zero(plan: Plan) -> list[str]:
    return [f"zero{len(plan.root.state)}"] if plan.root.state else []


def _cut(cuts: Sequence[Cut], sizes: dict[str, int]) -> int:
    """Ranks that tensors are split over; 0 where nothing is said of it."""
    for cut in cuts:
        if "batch" not in cut.dims:
            return prod(sizes[axis] for axis in cut.axes)
    return 0
