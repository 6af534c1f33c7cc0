"""Shard: gather weights that are split over replicas, ahead of the blocks that use them.

Stacks copy between the buffers of these collectives and the weights they are for, on the chain of kernels. FSDP2 gathers
a block into one buffer and copies its weights out of it before the block runs, and copies gradients into the buffer they
are reduced from, in the format of the reduction (PyTorch, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py:
split_with_sizes_copy, chunk_cat). FSDP1 gathers into the flat weight itself; its gradients still go through the backward
pass of a split, which writes them once more (_flat_param.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from foretrain.compile.exchanges import FromBuffer
from foretrain.compile.execution import Communication, Communicator, Compute, Item
from foretrain.compile.passes.bucket import sharding_axes
from foretrain.compile.passes.communicate import WeightShard
from foretrain.compile.passes.recompute import BlockPass
from foretrain.compile.segment import Async
from foretrain.model.ops.base import FORWARD, WEIGHT_GRADIENT, memory
from foretrain.model.precision import Precision
from foretrain.runtime import Runtime
from foretrain.runtime.features.gather_copies import GatherCopies


def gather_items(shards: Iterable[WeightShard], role: str, size: float) -> list[Item]:
    """A gather for each set of axes that the `role` of weights is split over, in elements of so many bytes."""
    total: dict[tuple[str, ...], float] = {}
    for shard in shards:
        axes = sharding_axes(shard, role)
        if axes:
            share = 1.0 if role == "gradient" else shard.sent
            total[axes] = total.get(axes, 0.0) + shard.elements * size * share
    return [
        Item(Communication("all_gather", moved, Communicator(axes), "weights"))
        for axes, moved in total.items()
    ]


@dataclass(frozen=True, slots=True)
class Listing:
    """A gather into a list of every rank's part of every weight: parts are named one by one by a host that the
    device waits for, and copied twice, out of the library's buffer and to their places."""

    weights: int
    seconds_per_part: float
    ranks: Mapping[str, int]

    def of(self, item: Item) -> Item:
        work = item.work
        assert isinstance(work, Communication)
        parts = self.weights * prod(self.ranks[axis] for axis in work.group.axes)
        return Item(FromBuffer.of(work, parts, parts * self.seconds_per_part))


def gather_asyncs(
    blocks: Sequence[Sequence[int]], starts: Sequence[int], ahead: int | None
) -> tuple[Async, ...]:
    """The gathers of every block, issued `ahead` blocks early (None: at once), due before the block starts."""
    return tuple(
        Async(item, "weights", 0 if ahead is None else starts[max(0, index - ahead)], starts[index])
        for index, items in enumerate(blocks)
        for item in items
    )


def unpacked(block: BlockPass, precision: Precision, runtime: Runtime) -> BlockPass:
    """The block with those copies of its fully sharded weights that the runtime makes."""
    elements = sum(w.elements for w in block.pooled if sharding_axes(w, "weight"))
    if not elements:
        return block
    split = (w for w in block.pooled if sharding_axes(w, "weight"))
    trained = sum(w.elements for w in split if not w.is_frozen)
    out: tuple[Item, ...] = ()
    back: tuple[Item, ...] = ()
    copies = runtime.gather_copies or GatherCopies()
    if copies.copies_out_gathered:
        out = (_copy(block, FORWARD, elements, 2 * precision.weight_bytes),)
    if copies.copies_in_gradients and trained:
        made, sent = precision.gradient_bytes, runtime.gradients.gradient_bytes
        back = (_copy(block, WEIGHT_GRADIENT, trained, made + (made if sent is None else sent)),)
    lead = len(out)
    return replace(
        block,
        forward=(*out, *block.forward),
        backward=(*out, *block.backward, *back),
        backward_input=(*out, *block.backward_input),
        backward_weight=(*block.backward_weight, *back),
        ready=tuple((lead + at + len(back), weights) for at, weights in block.ready),
        ready_weight=tuple((at + len(back), weights) for at, weights in block.ready_weight),
    )


def _copy(block: BlockPass, phase: str, elements: float, each: float) -> Item:
    kernel = memory(phase, elements * each, round(elements), 0.0)
    return Item(Compute(f"{block.name}.weights", kernel))
