"""Bucket: gradients are reduced in buckets, in the order backward finishes them.

Where the optimizer state is split over the replicas a bucket is reduce-scattered to its owners; where it is
split over some of them only (hybrid sharding), the rest add up their shards with an all-reduce.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf, prod

from foretrain.compile.execution import Communication, Communicator, Item
from foretrain.compile.passes.communicate import WeightShard
from foretrain.compile.segment import Async, Interner

Ready = Iterable[tuple[int, tuple[WeightShard, ...]]]


@dataclass(slots=True)
class _Bucket:
    limit: float
    bytes: float = 0.0
    flushed: list[tuple[int, float]] = field(default_factory=list)


def sharding_axes(shard: WeightShard, role: str) -> tuple[str, ...]:
    """The axes a role's tensor is split over: those asked for that hold copies of it."""
    asked = dict(shard.state).get(role, ())
    return tuple(axis for axis in asked if axis in shard.reduce_axes)


@dataclass(frozen=True, slots=True)
class Reduction:
    """How replicas agree: by which collective, in which buckets (the first, the others), and whether beside
    the chain or after it."""

    collective: str
    bytes_per_element: float
    limits: tuple[float, float]
    overlaps: bool


def reduced(
    size: float,
    axes: tuple[str, ...],
    owners: tuple[str, ...],
    ranks: Mapping[str, int],
    collective: str,
) -> list[Item]:
    """The collectives that add up a gradient of `size` bytes over `axes` for its `owners`."""
    rest = tuple(axis for axis in axes if axis not in owners)
    items = []
    if owners:
        items.append(Item(Communication("reduce_scatter", size, Communicator(owners), "data")))
        size /= prod(ranks[axis] for axis in owners)
    if rest:
        items.append(Item(Communication(collective, size, Communicator(rest), "data")))
    return items


def gradient_asyncs(
    ready: Ready,
    end: int,
    how: Reduction,
    ranks: Mapping[str, int],
    interner: Interner,
) -> tuple[Async, ...]:
    """Reductions beside one chain of `end` items, in the order its gradients (or weights) are ready."""
    first, others = how.limits if how.overlaps else (inf, inf)
    buckets: dict[tuple[tuple[str, ...], tuple[str, ...]], _Bucket] = {}
    for position, shards in ready:
        for shard in shards:
            if not shard.reduce_axes:
                continue
            owners = sharding_axes(shard, "optimizer")
            bucket = buckets.setdefault((shard.reduce_axes, owners), _Bucket(first))
            bucket.bytes += shard.elements * how.bytes_per_element
            if bucket.bytes >= bucket.limit:
                bucket.flushed.append((position, bucket.bytes))
                bucket.bytes, bucket.limit = 0.0, others
    out: list[tuple[int, Item]] = []
    for (axes, owners), bucket in buckets.items():
        flushed = bucket.flushed + ([(end, bucket.bytes)] if bucket.bytes > 0 else [])
        for position, size in flushed:
            at = position if how.overlaps else end
            out += [(at, item) for item in reduced(size, axes, owners, ranks, how.collective)]
    out.sort(key=lambda entry: entry[0])
    return tuple(Async(interner.number(item), "data", at) for at, item in out)
