"""Shard: gather weights that are split over replicas, ahead of the blocks that use them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foretrain.compile.execution import Communication, Communicator, Item
from foretrain.compile.passes.bucket import sharding_axes
from foretrain.compile.passes.communicate import WeightShard
from foretrain.compile.segment import Async, Interner


def gathered_bytes(
    shards: Iterable[WeightShard], role: str, size: float
) -> dict[tuple[str, ...], float]:
    """Bytes to gather per set of axes, for weights whose `role` is split."""
    total: dict[tuple[str, ...], float] = {}
    for shard in shards:
        axes = sharding_axes(shard, role)
        if axes:
            total[axes] = total.get(axes, 0.0) + shard.elements * size
    return total


def gather_items(shards: Iterable[WeightShard], role: str, size: float) -> list[Item]:
    return [
        Item(Communication("all_gather", total, Communicator(axes), "weights"))
        for axes, total in gathered_bytes(shards, role, size).items()
    ]


def gather_asyncs(
    blocks: Sequence[tuple[WeightShard, ...]],
    starts: Sequence[int],
    role: str,
    size: float,
    ahead: int | None,
    interner: Interner,
) -> tuple[Async, ...]:
    """One gather per block, issued `ahead` blocks early (None: at once), due before the block starts."""
    out: list[Async] = []
    for index, shards in enumerate(blocks):
        issue = 0 if ahead is None else starts[max(0, index - ahead)]
        for item in gather_items(shards, role, size):
            out.append(Async(interner.number(item), "weights", issue, starts[index]))
    return tuple(out)
