"""Recompute: choose what a block keeps for backward and put the forward work that replaces the rest there.

A choice is a set of ops, not a mode: `full` is all ops of the block, `selective` its attention cores
(Korthikanti et al. 2022), a list names ops. An op in the set keeps nothing; what the set reads from outside
is kept instead. What it makes is not kept for its readers either: it is there again before they need it (remat
policies of JAX, output-discarding checkpoints of Megatron Core). Families may say otherwise: the result of attention
stays, as in a plain checkpoint around it.

Some stacks mean something else by `selective` (`Runtime.selective`): results of products are kept, but of every
second one, beside what attention gives; the rest of the block runs again (PyTorch's selective activation
checkpointing as torchtitan sets it up, Liang et al. 2024, arXiv 2410.06511).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from foretrain.compile.execution import Communication, Compute, Item
from foretrain.compile.passes.communicate import BlockProgram, OpProgram, WeightShard
from foretrain.model.ops.base import kernel_kind


@dataclass(frozen=True, slots=True)
class BlockPass:
    """One repetition of a block, ready to be strung into chains."""

    name: str
    forward: tuple[Item, ...]
    backward: tuple[Item, ...]  # everything, weight gradients in place
    backward_input: tuple[Item, ...]  # the same without weight gradients …
    backward_weight: tuple[Item, ...]  # … and those alone, for schedules that separate them
    ready: tuple[
        tuple[int, tuple[WeightShard, ...]], ...
    ]  # gradients done after n items of backward
    ready_weight: tuple[tuple[int, tuple[WeightShard, ...]], ...]  # … of backward_weight
    saved_bytes: float
    forward_workspace: float
    backward_workspace: float
    boundary_bytes: float
    weights: tuple[WeightShard, ...]  # one by one
    pooled: tuple[WeightShard, ...]  # weights that are cut and sharded alike, added up
    rerun: tuple[WeightShard, ...]  # of those, what ops that run again read


@dataclass(frozen=True, slots=True)
class _Choice:
    """What is kept, and what runs again before the backward pass of which op."""

    again: dict[int, list[Item]]  # op → forward items
    kept_bytes: float
    redone_bytes: float


def recompute(
    block: BlockProgram, choice: str, logits_copies: float, selective: str = "attention"
) -> BlockPass:
    if choice == "selective" and selective == "products":
        chosen = _products(block) if _has_backward(block) else _ops(block, frozenset())
    else:
        chosen = _ops(block, _chosen(block, choice))
    backward: list[Item] = []
    inputs: list[Item] = []
    weights: list[Item] = []
    ready, ready_weight = [], []
    for index in range(len(block.ops) - 1, -1, -1):
        op = block.ops[index]
        again = chosen.again.get(index, [])
        backward += [*again, *op.backward, *op.backward_weight]
        inputs += [*again, *op.backward]
        weights += op.backward_weight
        trained = tuple(weight for weight in op.weights if not weight.is_frozen)
        if trained:
            ready.append((len(backward), trained))
            ready_weight.append((len(weights), trained))
    return BlockPass(
        name=block.name,
        forward=tuple(item for op in block.ops for item in op.forward),
        backward=tuple(backward),
        backward_input=tuple(inputs),
        backward_weight=tuple(weights),
        ready=tuple(ready),
        ready_weight=tuple(ready_weight),
        saved_bytes=chosen.kept_bytes,
        forward_workspace=_forward_workspace(block, logits_copies),
        backward_workspace=chosen.redone_bytes + _gradients(block, logits_copies),
        boundary_bytes=block.boundary_bytes,
        weights=tuple(weight for op in block.ops for weight in op.weights),
        pooled=_pooled(block, block.ops),
        rerun=_pooled(block, _rerun(block, chosen)),
    )


def _ops(block: BlockProgram, redo: frozenset[int]) -> _Choice:
    """The ops of the set run again, each unbroken run of them before its last op's backward pass."""
    again = {
        index: [_again(item) for i in _run(redo, index) for item in block.ops[i].forward]
        for index in redo
        if index + 1 not in redo
    }
    return _Choice(again, _kept(block, redo), _redone(block, redo))


def _products(block: BlockProgram) -> _Choice:
    """Every second product and all that is no product runs again, before the block's backward pass."""
    made = {name: size for op in block.ops for name, size in op.outputs}
    products = [name for op in block.ops if op.family.is_projection for name, _ in op.outputs]
    stays = {*products[::2]}
    stays |= {name for op in block.ops if op.family.keeps_result for name, _ in op.outputs}
    kept = {name: made[name] for name in stays}
    redone: dict[str, float] = {}
    again: list[Item] = []
    for op in block.ops:
        kept |= {name: size for name, size in op.inputs if name not in made}
        if op.family.keeps_result:  # beside its result, what it needs to go back
            own = {name for name, _ in op.inputs} | stays
            kept |= {name: size for name, size in op.saved if name not in own}
            continue
        lost = sum(size for name, size in op.outputs if name not in stays)
        again += _share_again(op, lost / max(_outputs(op), 1.0))
        redone |= dict(op.saved)
    redone = {name: size for name, size in redone.items() if name not in kept}
    return _Choice({len(block.ops) - 1: again}, sum(kept.values()), sum(redone.values()))


def _share_again(op: OpProgram, share: float) -> list[Item]:
    """The forward items that make so much of an op's results again; sums over ranks are kept."""
    items = [_again(item) for item in op.forward] if share > 0 else []
    whole = [
        item if item.beside is None or not _adds_up(item.beside) else replace(item, beside=None)
        for item in items
        if not (isinstance(item.work, Communication) and _adds_up(item.work))
    ]
    return [_narrower(item, share) for item in whole] if share < 1 else whole


def _adds_up(communication: Communication) -> bool:
    return communication.collective == "reduce_scatter"


def _narrower(item: Item, share: float) -> Item:
    """A product with so many of its columns."""
    work = item.work
    if not isinstance(work, Compute) or not kernel_kind(work.kernel).is_product:
        return item
    batch, m, n, k = work.kernel.shape
    kernel = replace(
        work.kernel,
        flops=work.kernel.flops * share,
        bytes=work.kernel.bytes * share,
        shape=(batch, m, max(1, round(n * share)), k),
    )
    return replace(item, work=replace(work, kernel=kernel))


def _rerun(block: BlockProgram, chosen: _Choice) -> tuple[OpProgram, ...]:
    works = (item.work for items in chosen.again.values() for item in items)
    paths = {work.op for work in works if isinstance(work, Compute)}
    return tuple(op for op in block.ops if op.path in paths)


def _pooled(block: BlockProgram, ops: tuple[OpProgram, ...]) -> tuple[WeightShard, ...]:
    pools: dict[
        tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...], bool, bool], list[float]
    ] = {}
    for op in ops:
        for weight in op.weights:
            key = (weight.reduce_axes, weight.state, weight.is_table, weight.is_frozen)
            pool = pools.setdefault(key, [0.0, 0.0, 0.0])
            pool[0] += weight.elements
            pool[1] += weight.elements if weight.touched is None else weight.touched
            pool[2] += weight.elements * weight.sent
    return tuple(
        WeightShard(
            block.name,
            n,
            axes,
            state,
            touched,
            sent / n if n else 1.0,
            is_table,
            is_frozen=is_frozen,
        )
        for (axes, state, is_table, is_frozen), (n, touched, sent) in pools.items()
    )


def _chosen(block: BlockProgram, choice: str) -> frozenset[int]:
    match choice:
        case "none":
            return frozenset()
        case "full":
            return _all_but_looked_up(block) if _has_backward(block) else frozenset()
        case "selective":
            return frozenset(
                i for i, op in enumerate(block.ops) if op.family.runs_again_selectively
            )
    names = [name.strip() for name in choice.split(",")]
    return frozenset(
        index
        for index, op in enumerate(block.ops)
        if any(is_named(name, op.path, op.kind) for name in names)
    )


def is_named(name: str, path: str, kind: str) -> bool:
    """Whether a word of a recompute list means this op: by its name, its path or its kind."""
    return any(fnmatchcase(word, name) for word in (path.partition(".")[2], path, kind))


def _all_but_looked_up(block: BlockProgram) -> frozenset[int]:
    return frozenset(index for index, op in enumerate(block.ops) if not op.family.is_looked_up)


def _has_backward(block: BlockProgram) -> bool:
    """Blocks around the layers (embedding, head) keep what they have: recomputing them frees next to nothing."""
    families = [op.family for op in block.ops]
    is_outer = any(one.is_outer for one in families)
    return any(one.is_layer for one in families) or not is_outer


def _run(redo: frozenset[int], last: int) -> range:
    """The unbroken run of recomputed ops that ends at `last`."""
    first = last
    while first - 1 in redo:
        first -= 1
    return range(first, last + 1)


def _again(item: Item) -> Item:
    if isinstance(item.work, Compute):
        return Item(
            Compute(item.work.op, item.work.kernel, is_recomputed=True), item.beside, item.in_pieces
        )
    assert isinstance(item.work, Communication)
    return item


def _kept(block: BlockProgram, redo: frozenset[int]) -> float:
    kept: dict[str, float] = {}
    made_inside = {name for i in redo for name, _ in block.ops[i].outputs}
    # an activation at a block's end keeps what it hands on; the next block, which reads it, counts that
    last = block.ops[-1]
    handed = (
        {n for n, _ in last.outputs}
        if last.family.hands_on_kept and block.boundary_bytes
        else set()
    )
    back, alive = handed | _made_again(block, redo), _alive(block, redo)
    for index, op in enumerate(block.ops):
        tensors = tuple((n, size) for n, size in op.saved if n not in back)
        if index in redo:
            read = op.inputs if index in alive else ()
            tensors = tuple((n, size) for n, size in read if n not in made_inside)
        for name, size in tensors:
            kept[name] = (
                max(size, kept.get(name, 0.0)) if index not in redo else kept.get(name, size)
            )
    return sum(kept.values())


def _redone(block: BlockProgram, redo: frozenset[int]) -> float:
    """What recomputed ops bring back to life while their backward runs."""
    alive = {name: size for i in redo for name, size in block.ops[i].saved}
    made = _made_again(block, redo)
    alive |= {name: size for op in block.ops for name, size in op.saved if name in made}
    return sum(alive.values())


def _alive(block: BlockProgram, redo: frozenset[int]) -> set[int]:
    """Ops of the set that make something backward asks for; nothing is kept for the others to read."""
    wanted = {name for op in block.ops for name, _ in op.saved}
    alive = set()
    for index in sorted(redo, reverse=True):
        op = block.ops[index]
        ends = {name for name, _ in (*op.inputs, *op.outputs)}
        has_own = any(name not in ends for name, _ in op.saved)
        if has_own or any(name in wanted for name, _ in op.outputs):
            alive.add(index)
            wanted |= {name for name, _ in op.inputs}
    return alive


def _made_again(block: BlockProgram, redo: frozenset[int]) -> set[str]:
    """Results that are there again when their readers go back, unless they stay instead."""
    redone = [block.ops[i] for i in redo]
    return {name for op in redone if not op.family.keeps_result for name, _ in op.outputs}


def _outputs(op: OpProgram) -> float:
    return sum(size for _, size in op.outputs)


def _forward_workspace(block: BlockProgram, logits_copies: float) -> float:
    """The largest result on its way, beside what is kept."""
    sizes = (_outputs(op) + _at_the_loss(op, logits_copies) for op in block.ops)
    return max(sizes, default=0.0)


def _gradients(block: BlockProgram, logits_copies: float) -> float:
    """The largest pair of gradients alive at once. The gradient of the logits takes the place of what is kept."""
    worst = 0.0
    for op in block.ops:
        size = _outputs(op) + sum(s for _, s in op.inputs)
        worst = max(worst, _at_the_loss(op, logits_copies) or size)
    return worst


def _at_the_loss(op: OpProgram, logits_copies: float) -> float:
    """The logits and their fp32 copies, beside the one that is kept; nothing at other ops."""
    if not op.family.is_loss:
        return 0.0
    logits, kept = op.inputs[0][1], sum(size for _, size in op.saved)
    return logits + (logits_copies - 1.0) * kept
