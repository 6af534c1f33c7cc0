"""Place: which block repetitions each stage and chunk of the pipeline holds."""

from __future__ import annotations

from functools import lru_cache

from foretrain.errors import PlanError
from foretrain.model.graph import Block, Model
from foretrain.model.ops import family
from foretrain.plan.strategy import Schedule

Instance = tuple[int, int]  # block index, repetition


def place(model: Model, schedule: Schedule) -> tuple[tuple[Instance, ...], ...]:
    """Part c·stages + s of the result is what chunk c of stage s holds, in order.

    Layers divide evenly where they can; else embedding and head count as a layer each (as large runs with
    126 layers do); else parts are balanced by their arithmetic.
    """
    parts = schedule.stages * schedule.chunks
    instances = [(b, r) for b, block in enumerate(model.blocks) for r in range(block.repeat)]
    if parts == 1:
        return (tuple(instances),)
    main = _main(model)
    layers = [i for i in instances if i[0] in main]
    if len(layers) < parts:
        raise PlanError(
            f"pipeline of {schedule.stages} stages x {schedule.chunks} chunks = {parts} parts, but"
            f" {model.name} has only {len(layers)} layers to share out. Use a smaller pp or vpp."
        )
    counts = _counts(model, schedule, layers, parts)
    first, last = instances.index(layers[0]), instances.index(layers[-1])
    return _cut(instances, layers, counts, first, last)


def _main(model: Model) -> frozenset[int]:
    """Blocks that are shared out: those that repeat, or all of a model without repetition."""
    repeated = [b for b, block in enumerate(model.blocks) if block.repeat > 1]
    if len(repeated) * 2 < len(model.blocks) and sum(model.blocks[b].repeat for b in repeated) < 12:
        return frozenset(range(len(model.blocks)))
    low, high = repeated[0], repeated[-1]
    return frozenset(range(low, high + 1))


def _counts(model: Model, schedule: Schedule, layers: list[Instance], parts: int) -> list[int]:
    if schedule.layers is not None:
        if sum(schedule.layers) != len(layers) or len(schedule.layers) != parts:
            raise PlanError(
                f"layers {list(schedule.layers)} add up to {sum(schedule.layers)} in"
                f" {len(schedule.layers)} parts, but {model.name} has {len(layers)} layers for {parts} parts."
            )
        return list(schedule.layers)
    if len(layers) % parts == 0 and len({b for b, _ in layers}) == 1:
        return [len(layers) // parts] * parts
    for extra in (2, 1):
        if (len(layers) + extra) % parts == 0 and len({b for b, _ in layers}) == 1:
            each = (len(layers) + extra) // parts
            ends = [each - 1] + [each] * (parts - 2) + [each - (extra - 1)]
            if min(ends) > 0:
                return ends if extra == 2 else [each] * (parts - 1) + [each - 1]
    return _balanced(model, layers, parts)


@lru_cache(maxsize=4096)
def _work(block: Block) -> float:
    return sum(family(op).flops(op) for op in block.ops) or 1.0


def _balanced(model: Model, layers: list[Instance], parts: int) -> list[int]:
    """The smallest possible largest part, by bisection over its arithmetic."""
    work = [_work(model.blocks[b]) for b, _ in layers]
    main = {b for b, _ in layers}
    outside = [b for b in range(len(model.blocks)) if b not in main]
    work[0] += sum(_work(model.blocks[b]) for b in outside if b < layers[0][0])
    work[-1] += sum(_work(model.blocks[b]) for b in outside if b > layers[-1][0])
    low, high = max(work), sum(work)
    for _ in range(60):
        middle = (low + high) / 2
        if _greedy(work, middle, parts) is None:
            low = middle
        else:
            high = middle
    counts = _greedy(work, high, parts)
    assert counts is not None
    return counts


def _greedy(work: list[float], limit: float, parts: int) -> list[int] | None:
    """Counts of at most `limit` work each, every part non-empty, or None."""
    counts, total = [0], 0.0
    for index, size in enumerate(work):
        left = len(work) - index
        must_open = left == parts - len(counts) and counts[-1] > 0
        if counts[-1] > 0 and (total + size > limit * (1 + 1e-12) or must_open):
            counts.append(0)
            total = 0.0
        counts[-1] += 1
        total += size
        if total > limit * (1 + 1e-12) or len(counts) > parts:
            return None
    return counts if len(counts) == parts else None


def _cut(
    instances: list[Instance], layers: list[Instance], counts: list[int], first: int, last: int
) -> tuple[tuple[Instance, ...], ...]:
    parts: list[tuple[Instance, ...]] = []
    position = first
    for count in counts:
        parts.append(tuple(instances[position : position + count]))
        position += count
    parts[0] = (*instances[:first], *parts[0])
    parts[-1] = (*parts[-1], *instances[last + 1 :])
    return tuple(parts)
