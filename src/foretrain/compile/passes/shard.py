"""Shard: gather weights that are split over replicas, ahead of the blocks that use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from foretrain.compile.exchanges import FromBuffer
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
            share = 1.0 if role == "gradient" else shard.sent
            total[axes] = total.get(axes, 0.0) + shard.elements * size * share
    return total


def gather_items(shards: Iterable[WeightShard], role: str, size: float) -> list[Item]:
    return [
        Item(Communication("all_gather", total, Communicator(axes), "weights"))
        for axes, total in gathered_bytes(shards, role, size).items()
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
    blocks: Sequence[tuple[WeightShard, ...]],
    starts: Sequence[int],
    role: str,
    size: float,
    ahead: int | None,
    interner: Interner,
    listed: Sequence[Listing] = (),
) -> tuple[Async, ...]:
    """One gather per block, issued `ahead` blocks early (None: at once), due before the block starts."""
    out: list[Async] = []
    for index, shards in enumerate(blocks):
        issue = 0 if ahead is None else starts[max(0, index - ahead)]
        for plain in gather_items(shards, role, size):
            item = listed[index].of(plain) if listed else plain
            out.append(Async(interner.number(item), "weights", issue, starts[index]))
    return tuple(out)
