"""Place: which block repetitions each piece of the pipeline holds; its schedule says which stage has it."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from foretrain.errors import PlanError
from foretrain.model.graph import Block, Model
from foretrain.model.ops import family, flops
from foretrain.plan.strategy import Schedule
from foretrain.units import counted

Instance = tuple[int, int]  # block index, repetition


def finer(model: Model, schedule: Schedule) -> Model:
    """The model with its outer blocks (embedding, head) cut into single ops where a pipeline needs more parts.

    Frameworks that place modules rather than layers (nanotron) run more stages than there are layers: the
    final norm, the logits and the loss then are stages of their own.
    """
    parts = schedule.stages * schedule.chunks
    if parts == 1 or model.layers >= parts:
        return model
    blocks = [piece for block in model.blocks for piece in _single_ops(block)]
    return replace(model, blocks=tuple(blocks))


def _single_ops(block: Block) -> list[Block]:
    """One block per op of an unbroken chain; other blocks stay whole."""
    links = zip(block.ops, block.ops[1:], strict=False)
    is_chain = all(a.outputs[0].name == b.inputs[0].name and len(a.outputs) == 1 for a, b in links)
    passes_by = len(block.inputs) > 1  # what a block hands on beside its chain has no op to go with
    if block.repeat > 1 or len(block.ops) < 2 or passes_by or not is_chain:
        return [block]
    pieces = []
    for number, op in enumerate(block.ops):
        is_last = number == len(block.ops) - 1
        inputs = block.inputs if number == 0 else (block.ops[number - 1].outputs[0],)
        outputs = block.outputs if is_last else op.outputs
        sizes = block.sizes if is_last else op.sizes
        pieces.append(Block(block.name, (op,), inputs, outputs, 1, sizes))
    return pieces


def place(
    model: Model, schedule: Schedule, by_products: bool = False
) -> tuple[tuple[Instance, ...], ...]:
    """What each piece of the model holds, in order.

    Layers divide evenly where they can; else embedding and head count as a layer each (as large runs with
    126 layers do); else parts are balanced by their arithmetic. `by_products` shares out the head like a
    layer, by the size of its matrix products (as nanotron does).
    """
    parts = schedule.stages * schedule.chunks
    instances = [(b, r) for b, block in enumerate(model.blocks) for r in range(block.repeat)]
    if parts == 1:
        return (tuple(instances),)
    if by_products and schedule.layers is None:
        counts = _even_shares([_products(model.blocks[b]) for b, _ in instances], parts)
        if min(counts) > 0:
            return _cut(instances, instances, counts, 0, len(instances) - 1)
    main = layer_blocks(model)
    layers = [i for i in instances if i[0] in main]
    if len(layers) < parts and model.layers >= parts:
        return _one_by_one(model, schedule, instances, parts)
    if len(layers) < parts:
        raise PlanError(
            f"pipeline of {schedule.stages} stages x {schedule.chunks} chunks = {parts} parts, "
            f"but {model.name} has only {counted(len(layers), 'layer')} to distribute. Use a "
            "smaller pp or vpp."
        )
    counts = _counts(model, schedule, layers, parts)
    first, last = instances.index(layers[0]), instances.index(layers[-1])
    return _cut(instances, layers, counts, first, last)


def stored_before(model: Model, schedule: Schedule, by_products: bool = False) -> frozenset[str]:
    """Tied weights whose stage has another of them already: stored, reduced and updated there once."""
    if not model.tied:
        return frozenset()
    stages = schedule.pieces.stage_of.tolist()
    stage_of = {
        f"{model.blocks[block].name}.{op.name}": stages[part]
        for part, instances in enumerate(place(model, schedule, by_products))
        for block, _ in instances
        for op in model.blocks[block].ops
    }
    held: set[tuple[str, int]] = set()
    doubled: set[str] = set()
    for path, origin in (*((o, o) for o in model.origins.values()), *model.origins.items()):
        place_of = (origin, stage_of[path.rpartition(".")[0]])
        if path != origin and place_of in held:
            doubled.add(path)
        held.add(place_of)
    return frozenset(doubled)


def _one_by_one(
    model: Model, schedule: Schedule, instances: list[Instance], parts: int
) -> tuple[tuple[Instance, ...], ...]:
    """Too few layers for the parts: embedding and head are shared out like layers."""
    if schedule.layers is not None:
        counts = list(schedule.layers)
        if sum(counts) != len(instances) or len(counts) != parts:
            raise PlanError(
                f"layers {counts} add up to {sum(counts)}, but {model.name} has {counted(len(instances), 'block')}."
            )
    else:
        counts = _balanced(model, instances, parts)
    return _cut(instances, instances, counts, 0, len(instances) - 1)


def layer_blocks(model: Model) -> frozenset[int]:
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
    return sum(flops(op) for op in block.ops) or 1.0


@lru_cache(maxsize=4096)
def _products(block: Block) -> float:
    return sum(flops(op) for op in block.ops if family(op).is_projection)


def _even_shares(work: list[float], parts: int) -> list[int]:
    """A part ends with the instance that brings the running total to its share or beyond.

    Parts left over at the end take one instance each from those before them.
    """
    share, total, part = sum(work) / parts, 0.0, 0
    counts = [0] * parts
    for size in work:
        total += size
        counts[part] += 1
        if part < parts - 1 and total >= share * (part + 1) * (1 - 1e-12):
            part += 1
    for empty in range(parts - 1, 0, -1):
        if not counts[empty]:
            giver = max((p for p in range(empty) if counts[p] > 1), default=0)
            counts[giver] -= 1
            counts[empty] += 1
    return counts


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
    if not all(parts):
        empty = [number for number, part in enumerate(parts) if not part]
        raise PlanError(
            f"layers {counts}: part {', '.join(map(str, empty))} of the pipeline would be "
            "empty. Assign at least one layer to every part except the first and the last."
        )
    return tuple(parts)
