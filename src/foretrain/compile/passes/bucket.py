"""Bucket: gradients are reduced in buckets, in the order backward finishes them.

Where the optimizer state is split over the replicas a bucket is reduce-scattered to its owners; where it is
split over some of them only (hybrid sharding), the rest add up their shards with an all-reduce.

Two rules of fusion. DDP closes a bucket once it has reached its size. Horovod and BlueFog look at their queue every
cycle: what is ready then and fits the fusion buffer goes together, after a coordinator has heard from all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Floats
from foretrain.compile.exchanges import FromBuffer
from foretrain.compile.execution import Communication, Communicator, Item
from foretrain.compile.passes.communicate import WeightShard
from foretrain.compile.segment import Async, Interner, of_each
from foretrain.runtime.features.fusion_cycles import FusionCycles

Ready = Iterable[tuple[int, tuple[WeightShard, ...]]]
Way = tuple[tuple[str, ...], tuple[str, ...]]
"""The axes a gradient is added up along, and those among them that own shards of its sum."""
Clock = NDArray[
    np.float64
]  # [items + 1]: seconds after which a chain has done so many of its items
KernelTimer = Callable[[Sequence[Item]], Clock]
"""The clock of a chain: known to the cost models, above this layer."""


def sharding_axes(shard: WeightShard, role: str) -> tuple[str, ...]:
    """The axes a role's tensor is split over: those asked for that hold copies of it. Frozen weights have no other."""
    if shard.is_frozen and role != "weight":
        return ()
    return _held_along(shard.state, shard.reduce_axes, role)


@lru_cache(maxsize=1024)  # asked for every weight of every layer, of which there are few kinds
def _held_along(
    state: tuple[tuple[str, tuple[str, ...]], ...], copies: tuple[str, ...], role: str
) -> tuple[str, ...]:
    return tuple(axis for axis in dict(state).get(role, ()) if axis in copies)


@dataclass(frozen=True, slots=True)
class Reduction:
    """How replicas agree: by which collective, in which buckets (the first, the others), and whether beside
    the chain or after it."""

    collective: str
    bytes_per_element: float
    limits: tuple[float, float]
    overlaps: bool
    cycles: FusionCycles | None = None  # a background thread that looks for ready tensors
    overlaps_scatters: bool = True
    scatters: bool = True  # to owners; else all get the sum of what one of them needs


@dataclass(frozen=True, slots=True)
class Fused:
    """A buffer of `bytes` that may go once the chain has done `after` items and `delay` seconds have passed since."""

    after: int
    bytes: float
    tensors: int = 0  # 0: where they are, without a buffer
    delay: float = 0.0


def fused(
    thread: FusionCycles,
    tensors: Sequence[tuple[int, float]],
    limit: float,
    ranks: int,
    clock: Clock,
) -> list[Fused]:
    """(position, bytes) in order of readiness → the buffers they share. A thread that negotiates for longer than a cycle
    is late."""
    agreed = thread.negotiation_seconds(ranks)
    period = max(thread.cycle_seconds, agreed)
    out: list[Fused] = []
    held: list[float] = []
    last = 0
    for position, size in tensors:
        tick = ceil(float(clock[position]) / period)
        if held and (tick != last or (sum(held) + size) * thread.fusion_copies > limit):
            out.append(_started(last * period + agreed, held, clock))
            held = []
        held.append(size)
        last = tick
    return [*out, _started(last * period + agreed, held, clock)] if held else out


def _started(at: float, sizes: list[float], clock: Clock) -> Fused:
    """Starts are at ends of items: the first at or after the moment, or the chain's end and the time left."""
    after = int(np.searchsorted(clock, at * (1.0 - 1e-12)))
    late = 0.0 if after < len(clock) else at - float(clock[-1])
    return Fused(min(after, len(clock) - 1), sum(sizes), len(sizes), late)


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


def _from_buffer(items: list[Item], tensors: int, delay: float) -> list[Item]:
    """The first collective on a fusion buffer pays for it."""
    work = items[0].work
    if not tensors or not isinstance(work, Communication):
        return items
    return [Item(FromBuffer.of(work, tensors, delay)), *items[1:]]


def gradient_asyncs(
    ready: Ready,
    end: int,
    how: Reduction,
    ranks: Mapping[str, int],
    interner: Interner,
    clock: Clock | None = None,
) -> tuple[Async, ...]:
    """Reductions beside one chain of `end` items, in the order its gradients (or weights) are ready.

    `clock` is asked for where tensors are fused by cycles.
    """
    tensors: dict[Way, list[tuple[int, float]]] = {}
    ready = list(ready)
    sizes = of_each([shards for _, shards in ready], partial(_sizes, how=how))
    for (position, _), found in zip(ready, sizes, strict=True):
        for way, size in found:
            tensors.setdefault(way, []).append((position, size))
    out: list[tuple[int, Fused, list[Item]]] = []
    for (axes, owners), mine in tensors.items():
        buffers = _buffers(mine, end, how, prod(ranks[axis] for axis in axes), clock)
        ends = owners if how.scatters else ()
        distinct = dict.fromkeys(buffer.bytes for buffer in buffers)
        items = {size: reduced(size, axes, ends, ranks, how.collective) for size in distinct}
        is_late = bool(owners) and not how.overlaps_scatters
        out += [(end if is_late else b.after, b, items[b.bytes]) for b in buffers]
    out.sort(key=lambda entry: entry[0])
    placed = list(_one_by_one(out))
    numbers = of_each([item for _, item in placed], interner.number)
    return tuple(Async(n, "data", at) for n, (at, _) in zip(numbers, placed, strict=True))


def _sizes(shards: tuple[WeightShard, ...], how: Reduction) -> list[tuple[Way, float]]:
    """How tensors are reduced that copies agree on, and their bytes."""
    return [
        (
            (shard.reduce_axes, sharding_axes(shard, "optimizer")),
            (shard.elements if shard.reduced is None else shard.reduced) * how.bytes_per_element,
        )
        for shard in shards
        if shard.reduce_axes
    ]


def _one_by_one(buffers: Iterable[tuple[int, Fused, list[Item]]]) -> Iterator[tuple[int, Item]]:
    """The collectives of buffers that go one after the other: what one has waited for, the next need not."""
    waited = 0.0
    for after, buffer, items in buffers:
        own = max(0.0, buffer.delay - waited)
        waited = max(waited, buffer.delay)
        yield from ((after, item) for item in _from_buffer(items, buffer.tensors, own))


def _buffers(
    tensors: list[tuple[int, float]], end: int, how: Reduction, ranks: int, clock: Clock | None
) -> list[Fused]:
    if not how.overlaps:
        total = sum(size for _, size in tensors)
        return [Fused(end, total)] if total > 0 else []
    if how.cycles is not None and clock is not None:
        return fused(how.cycles, tensors, how.limits[1], ranks, clock)
    return _filled(tensors, end, how.limits)


def _filled(tensors: list[tuple[int, float]], end: int, limits: tuple[float, float]) -> list[Fused]:
    """DDP's rule: a bucket goes when it has reached its size, what is left at the end."""
    sizes = np.array([size for _, size in tensors])
    ends = filled_at(sizes, limits)
    starts = [first for first in (0, *ends) if first < len(sizes)]
    totals = np.add.reduceat(sizes, starts).tolist()
    buckets = zip(ends, totals, strict=False)
    out = [Fused(tensors[last - 1][0], total) for last, total in buckets]
    rest = sum(totals[len(ends) :])
    return [*out, Fused(end, rest)] if rest > 0 else out


def filled_at(sizes: Floats, limits: tuple[float, float]) -> list[int]:
    """After how many tensors each bucket is full; what comes after the last of them fills none."""
    total = np.cumsum(sizes)
    ends: list[int] = []
    start, first, limit = 0.0, 0, limits[0]
    while first < len(sizes):
        last = max(first, int(np.searchsorted(total, start + limit)))
        if last == len(sizes):
            break
        start, first, limit = float(total[last]), last + 1, limits[1]
        ends.append(first)
    return ends
