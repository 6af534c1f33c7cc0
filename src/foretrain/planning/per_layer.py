"""Walks around the best uniform plans: where different layers want different strategies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import prod

from foretrain.plan.plan import Plan
from foretrain.plan.schedules import DEFAULT
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import Cut, StrategyNode
from foretrain.planning.layer_trees import LayerwiseProblem
from foretrain.planning.task import Task

MOST_PROBLEMS = 24
SHOWN_RANGES = 4
"""Ranges of layers that a description lists."""


def problems(task: Task, plans: Sequence[str], freedom: str) -> tuple[LayerwiseProblem, ...]:
    """The problems that uniform plans pose (stages, micro-batches, ZeRO), and those with fewer ranks tied to tensor
    parallelism. `freedom`: what the stack lets differ from layer to layer."""
    found: dict[LayerwiseProblem, None] = {}
    for text in plans:
        words = task.words(text)
        mixed = _mixed(task, words) if freedom == "all" else ()
        alike = () if freedom == "all" and _is_plain(words) else _alike(task, words)
        for problem in (*mixed, *alike):
            found[problem] = None
    return tuple(found)[:MOST_PROBLEMS]


def _mixed(task: Task, words: Words) -> Iterator[LayerwiseProblem]:
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


def _is_plain(words: Words) -> bool:
    """Whether a plan has nothing but tensor, pipeline and data parallelism with ZeRO over all replicas."""
    own = replace(
        words, tp=1, pp=1, vpp=1, dp=None, zero=0, sp=False, schedule=None, recompute=None,
        offload=(), layers=None, micro=None,
    )  # fmt: skip
    return own == Words()


def _alike(task: Task, words: Words) -> Iterator[LayerwiseProblem]:
    """… for layers that are split alike, whatever else the plan has but one chunk per stage and nothing in host memory,
    of which there may be no need."""
    words = words.with_devices(task.devices)
    schedule = DEFAULT if words.pp > 1 else None
    words = replace(words, recompute="none", layers=None, vpp=1, schedule=schedule, offload=())
    while True:
        for samples in _halves(words.micro or 1):
            one = replace(words, micro=samples)
            yield LayerwiseProblem(one.pp, one.tp, samples, one.zero, sp=one.sp, words=one)
        if words.tp % 2 or (words.micro or 1) % 2:
            return
        tp = words.tp // 2
        words = replace(
            words, tp=tp, dp=2 * (words.dp or 1), micro=(words.micro or 1) // 2, sp=words.sp and tp > 1, etp=None
        )  # fmt: skip


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
    runs = [(_says(node, plan, common, sizes), node.select) for node in plan.root.children]
    if common:  # only what differs from the rest is there, wherever it is
        runs.sort(key=lambda run: run[0])
    parts = []
    for says, run in groupby(runs, key=lambda r: r[0]):
        names = [select for _, select in run]
        if says:
            told = _several(names) if common else _from_to(names)
            parts.append(" ".join([told, *says]))
    return f"{' '.join(head)}: {', '.join(parts)}"


def _from_to(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}…{names[-1]}"


def _several(names: Sequence[str]) -> str:
    """`layers[0:2]` and `layers[4:6]` as `layers[0:2,4:6]`; of many the first and the last, and how many layers."""
    blocks: dict[str, list[str]] = {}
    for name in names:
        block, _, chosen = name.partition("[")
        blocks.setdefault(block, []).append(chosen.rstrip("]"))
    return "+".join(_chosen(block, chosen) for block, chosen in blocks.items())


def _chosen(block: str, chosen: Sequence[str]) -> str:
    if not chosen[0]:
        return block
    if len(chosen) <= SHOWN_RANGES:
        return f"{block}[{','.join(chosen)}]"
    ends = (one.split(":") for one in chosen)
    layers = sum(int(end) - int(start) for start, end in ends)
    return f"{layers} of {block}[{chosen[0]},…,{chosen[-1]}]"


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
