"""What replicas exchange: gathers of split weights and reductions of gradients, by the weights that ranks hold.

None of it depends on micro-batches or recomputation, so a few rows stand for all plans of a fleet.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.compile.execution import Communicator
from foretrain.compile.model_states import NORM_BYTES, Weights
from foretrain.compile.passes.bucket import filled_at
from foretrain.cost.calibration.efficiencies import table
from foretrain.planning.cycles import fused
from foretrain.planning.layers import DENSE, KINDS
from foretrain.planning.plan_batch import PlanBatch

WAYS = INSIDE, NETWORK = range(2)
"""Ways between ranks."""


class Buckets(NamedTuple):
    """Gradients in pieces: how many, seconds of each on average, and of what goes once the last is made."""

    each: Floats
    pieces: Floats
    last: Floats


class Replicas:
    """Columns over the plans of a fleet. `alone`: while other stages keep quiet."""

    def __init__(self, fleet: PlanBatch, work: Floats | None = None) -> None:
        """`work`: [plans, parts] seconds of kernels that make gradients, asked for where those are fused by time."""
        self.f, self.work = fleet, work
        self.runtime = fleet.task.runtime
        self.states = fleet.task.states
        self._gathers: dict[tuple[bool, bool], Floats | None] = {}
        self._filled_of: dict[int, tuple[Floats, Floats]] = {}

    @cached_property
    def kinds(self) -> list[int]:
        """Of weights that there are."""
        return self.f.kinds_held

    @cached_property
    def shares_links(self) -> bool:
        """Whether ranks of several stages are on one node, so that what they exchange meets on its links."""
        f = self.f
        if f.stages == 1:
            return False
        nodes = np.asarray(f.task.cluster.node_of)[f.mesh.groups(("pp",))]
        return bool((nodes[:, 0] == nodes[:, 1]).any())

    @cached_property
    def evenness(self) -> Floats:
        """[plans, stages] how much of what a stage exchanges the others on its node do meanwhile, on average: where one
        holds most of the weights, it has the links nearly for itself once the others are done."""
        f = self.f
        sizes = self._sizes
        nodes = np.asarray(f.task.cluster.node_of)[f.mesh.groups(("pp",))[0]]
        near = (nodes[:, None] == nodes[None, :]) & ~np.eye(f.stages, dtype=np.bool_)
        meanwhile = (
            np.minimum(sizes[:, :, None], sizes[:, None, :]) / np.maximum(sizes, 1.0)[:, :, None]
        )
        others = np.maximum(near.sum(axis=1), 1)
        return np.asarray((meanwhile * near[None]).sum(axis=2) / others[None, :])

    @cached_property
    def _sizes(self) -> Floats:
        """[plans, stages] elements."""
        each = [self.f.stage_weights("elements", kind) for kind in KINDS]
        return np.asarray(np.sum(each, axis=0))

    def _among(self, lone: Floats, crowded: Floats) -> Floats:
        """[plans, parts or stages] a stage among the others."""
        times = lone.shape[1] // self.f.stages
        return np.asarray(lone + (crowded - lone) * np.tile(self.evenness, times))

    def _heaviest_among(self, lone: Floats, crowded: Floats) -> Floats:
        """[plans, blocks] the stage that exchanges most."""
        even = np.take_along_axis(self.evenness, self._sizes.argmax(axis=1)[:, None], axis=1)
        return np.asarray(lone + (crowded - lone) * even)

    @cached_property
    def crosses(self) -> bool:
        """Whether copies of weights lie on several nodes."""
        return self._way(self.f.axes_of(DENSE)) == NETWORK

    @cached_property
    def gathers_by(self) -> int:
        """The way that split weights are gathered."""
        return self._way(self.f.owners_of(DENSE))

    def _way(self, axes: tuple[str, ...]) -> int:
        is_far = bool(axes) and self.f.exchange(axes, "all_reduce").is_network
        return NETWORK if is_far else INSIDE

    def gathers(self, alone: bool, flow: bool = False) -> Floats | None:
        """[plans, blocks] seconds to gather a block's weights, where ZeRO splits them; `flow`: those in which links
        are busy."""
        if (alone, flow) not in self._gathers:
            found = self._gathered("gathered", alone, flow)
            if found is not None and not alone and self.shares_links:
                lone = self.gathers(True, flow)
                assert lone is not None
                found = self._heaviest_among(lone, found)
            self._gathers[alone, flow] = found
        return self._gathers[alone, flow]

    def reruns(self, alone: bool) -> Floats | None:
        """… and those that ops which run again read once more."""
        by_part = self.runtime.uncoalesced_gather
        return self._gathered("rerun", alone) if by_part and by_part.gathers_rerun else None

    def _gathered(self, name: str, alone: bool, flow: bool = False) -> Floats | None:
        f = self.f
        is_split = f.choices.zero >= 3
        if not is_split.any() or not any(f.owners_of(kind) for kind in KINDS):
            return None
        total = np.zeros((len(f.choices), f.share.shape[1]))
        for owners, kinds in self._by_owners().items():
            elements = sum(f.elements(name, kind)[f.rows] for kind in kinds)
            size = np.asarray(elements * self.states.weight_bytes)
            if size.any():
                gather = f.exchange(owners, "all_gather", alone)
                if flow:
                    total += gather.flow(size.ravel()).reshape(size.shape)
                    continue
                found = gather.seconds(size.ravel()).reshape(size.shape)
                total += np.where(size > 0, found + self._listed(size, owners), 0.0)
        return np.where(is_split[:, None], total, 0.0)

    def _by_owners(self) -> dict[tuple[str, ...], list[int]]:
        """Kinds of weights that the same ranks gather together."""
        found: dict[tuple[str, ...], list[int]] = {}
        for kind in self.kinds:
            if self.f.owners_of(kind):
                found.setdefault(self.f.owners_of(kind), []).append(kind)
        return found

    def _listed(self, size: Floats, owners: tuple[str, ...]) -> Floats:
        """A gather into a list of every rank's part of every weight: a host names them, and they are copied."""
        by_part = self.runtime.uncoalesced_gather
        if by_part is None or not by_part.calls_per_part:
            return np.zeros_like(size)
        parts = self.f.layers.large[self.f.rows] * self.f.mesh.size(*owners)
        named = parts * by_part.calls_per_part * self.runtime.host.host_seconds_per_kernel
        return np.asarray(named + self._fused(parts, size))

    def _fused(self, tensors: Floats, size: Floats) -> Floats:
        """Copies of several tensors into a fusion buffer and out of it, on the slowest device."""
        slowest = np.zeros_like(size)
        for device in self.f.task.cluster.devices:
            reached, _ = table().of(device)
            moved = 2.0 * size / (device.memory_bandwidth * reached.memory)
            slowest = np.maximum(slowest, 2.0 * (tensors * reached.start_seconds + moved))
        return slowest

    def scatters(self) -> tuple[Floats, ...]:
        """[plans, parts] seconds to reduce the gradients of a micro-batch, where ZeRO splits those, and those in which
        links are busy, each way."""
        f = self.f
        columns = tuple(np.zeros((len(f.choices), f.share.shape[0])) for _ in (None, *WAYS))
        split = np.flatnonzero(f.choices.zero >= 2)
        if len(split):
            those = Replicas(f.take(split), None if self.work is None else self.work[split])
            found = those._scattered(False)
            if self.shares_links:
                found = tuple(map(those._among, those._scattered(True), found))
            for column, mine in zip(columns, found, strict=True):
                column[split] = mine
        return columns

    def _scattered(self, alone: bool) -> tuple[Floats, ...]:
        f = self.f
        shares, of = f.tables.different_parts
        if self.work is not None:
            shares, of = f.share, np.arange(len(f.share))
        total = [np.zeros((len(f.choices), len(shares))) for _ in (None, *WAYS)]
        for kind in self.kinds:
            size = f.elements("reduced", kind)[f.rows] @ shares.T * self.states.reduced_bytes
            if not f.owners_of(kind) or not size.any():
                continue
            if self.work is not None:
                each, pieces, _ = self._in_cycles(kind, size, shares, alone, 1)
                piece = size / np.maximum(pieces, 1.0)
            else:
                pieces, _ = self._filled_parts(kind)
                piece = size / np.maximum(pieces, 1.0)
                each = self._reduced(kind, piece, alone)
            total[0] += each * pieces
            for way in {self._way(axes) for axes in (f.owners_of(kind), f.axes_of(kind))}:
                total[1 + way] += self._reduced(kind, piece, alone, way) * pieces
        return tuple(column[:, of] for column in total)

    def reductions(self, kind: int) -> Buckets | None:
        """[plans, stages] buckets of gradients.

        Going back, stages end one after the other: where they share links, one has those for itself that the stages
        behind it are done with.
        """
        found = self._reductions(kind, False)
        if found is None or not self.shares_links:
            return found
        lone = self._reductions(kind, True)
        assert lone is not None
        among = self._among(lone.each, found.each) / np.maximum(lone.each, 1e-12)
        slower = np.clip(among, 1.0, np.arange(1.0, self.f.stages + 1)[None, :])
        return Buckets(lone.each * slower, lone.pieces, lone.last * slower)

    def _reductions(self, kind: int, alone: bool) -> Buckets | None:
        f = self.f
        if kind not in self.kinds or not f.axes_of(kind):
            return None
        size = f.stage_weights("reduced", kind) * self.states.reduced_bytes
        if not size.any():
            return None
        return self._in_pieces(kind, size, alone)

    def _in_pieces(self, kind: int, size: Floats, alone: bool) -> Buckets:
        """`size`: [plans, stages] bytes of all chunks."""
        f = self.f
        if self.work is not None:
            return self._in_cycles(kind, size, f.stage_share, alone, f.chunks)
        _, of = f.tables.different_parts
        each, last = (column[:, of] for column in self._filled_parts(kind))
        pieces = f.summed(each)
        sizes = np.concatenate([size / np.maximum(pieces, 1.0), f.first_chunk(last)], axis=1)
        each, last = np.split(self._reduced(kind, sizes, alone), 2, axis=1)
        return Buckets(each, pieces, last)

    def _filled_parts(self, kind: int) -> tuple[Floats, Floats]:
        """`buckets` of parts that are different, the same whoever else is on their links."""
        found = self._filled_of.get(kind)
        if found is None:
            different, _ = self.f.tables.different_parts
            found = self._filled_of[kind] = self.buckets(kind, different)
        return found

    @cached_property
    def _by_buckets(self) -> tuple[PlanBatch, Ints]:
        """Plans with different buckets, and which of them has those of each."""
        return self.f.distinct(self.f.weights, self.f.choices.buckets)

    def buckets(self, kind: int, share: Floats) -> tuple[Floats, Floats]:
        """[plans, parts] how many buckets the gradients of a part are reduced in, and bytes of the last of them."""
        plans, of = self._by_buckets
        numbers = np.stack([plans.rows, plans.weights, plans.choices.buckets], axis=1).tolist()
        each = [self._filled_once(kind, row, held, asked, share) for row, held, asked in numbers]
        found = np.stack(each)[of]
        return found[..., 0], found[..., 1]

    def _filled_once(self, kind: int, row: int, weights: int, chosen: int, share: Floats) -> Floats:
        """[parts, 2] of plans that hold the same, on whatever mesh."""
        bucket, known = self.f.choices.palette.buckets[chosen], self.f.tables.buckets
        key = (kind, weights, bucket, share.tobytes())
        if key not in known:
            known[key] = np.array([self._filled(kind, row, part, bucket) for part in share])
        return known[key]

    def _filled(
        self, kind: int, row: int, share: Floats, bucket: float | None
    ) -> tuple[int, float]:
        """By the compiler's own rule."""
        layers, states = self.f.layers, self.states
        blocks = layers.pooled if states.reduces_blocks(bucket) else layers.messages
        doubled = self.f.ties.is_stored_before
        found = []
        for block in np.flatnonzero(share)[::-1].tolist():
            kept = ([n for n, copy in pool if copy < 0 or not doubled[copy]] for pool in blocks[row, block, kind])  # fmt: skip
            made = [sum(sizes) for sizes in kept if sizes]
            found += [np.tile(np.array(made), int(share[block]))] if made else []
        if not found:
            return 0, 0.0
        sizes = np.concatenate(found) * states.reduced_bytes
        if not self.runtime.gradients.overlaps_gradients:
            return 1, float(sizes.sum())
        limits = (0.0, 0.0) if states.reduces_blocks(bucket) else states.bucket_limits(bucket)
        ends = filled_at(sizes, limits)
        rest = float(sizes[ends[-1] if ends else 0 :].sum())
        if rest > 0 or not ends:
            return len(ends) + 1, rest
        return len(ends), float(sizes[ends[-2] if len(ends) > 1 else 0 :].sum())

    def _in_cycles(
        self, kind: int, size: Floats, share: Floats, alone: bool, chunks: int
    ) -> Buckets:
        """Copies into fusion buffers and out of them come on top, and what the last buffers wait for."""
        f = self.f
        thread = self.runtime.fusion_cycles
        assert self.work is not None
        assert thread is not None
        tensors = np.sum([f.elements("tensors", k) for k in KINDS], axis=0)[f.rows] @ share.T
        ranks = f.mesh.size(*f.axes_of(kind))
        work = self.work if chunks == 1 else f.summed(self.work) / chunks
        limit = self._limits()
        filling = np.minimum(size, self._filling(share)) / chunks
        fusion = fused(thread, ranks, filling, limit, tensors / chunks, work)
        pieces = fusion.buffers * chunks
        each = self._reduced(kind, size / pieces, alone)
        each += np.where(tensors > pieces, self._fused(tensors, size) / pieces, 0.0)
        last = fusion.last * each + fusion.delay
        each += fusion.delay / fusion.buffers
        return Buckets(*(np.where(size > 0, column, 0.0) for column in (each, pieces, last)))

    def _filling(self, share: Floats) -> Floats:
        """[plans, columns] bytes of gradients, of those larger than a bucket no more than fill one."""
        layers, rows = self.f.layers, self.f.rows
        elements = layers.trained.sum(axis=2) - layers.oversize
        return np.asarray(elements[rows] @ share.T * self.states.reduced_bytes)

    def _limits(self) -> Floats:
        """[plans, 1] bytes that a bucket is filled up to."""
        chosen = self.f.choices.palette.buckets
        limits = np.array([self.runtime.gradients.bucket_bytes if b is None else b for b in chosen])
        return limits[self.f.choices.buckets][:, None]

    def _reduced(self, kind: int, sizes: Floats, alone: bool, way: int | None = None) -> Floats:
        """[plans, columns] seconds to add up gradients of so many bytes, for their owners or for all."""
        each = sizes.ravel()
        owned = np.repeat(self.f.choices.zero >= 1, sizes.shape[1])
        if not owned.any() or not self.runtime.gradients.scatters_gradients:
            return self._added(kind, each, False, alone, way).reshape(sizes.shape)
        found = self._added(kind, each, True, alone, way)
        if not owned.all():
            found = np.where(owned, found, self._added(kind, each, False, alone, way))
        return found.reshape(sizes.shape)

    def _added(self, kind: int, sizes: Floats, owned: bool, alone: bool, way: int | None) -> Floats:
        f, axes = self.f, self.f.axes_of(kind)
        owners = f.owners_of(kind) if owned else ()
        rest = tuple(axis for axis in axes if axis not in owners)
        total = np.zeros(len(sizes))
        if owners:
            total += self._along(owners, "reduce_scatter", sizes, alone, way)
            sizes = sizes / f.owner_count(kind)
        if rest:
            total += self._along(rest, self.runtime.gradients.synchronises, sizes, alone, way)
        return total

    def _along(
        self, axes: tuple[str, ...], collective: str, sizes: Floats, alone: bool, way: int | None
    ) -> Floats:
        exchange = self.f.exchange(axes, collective, alone)
        if way is None:
            return exchange.seconds(sizes)
        return exchange.flow(sizes) if way == self._way(axes) else np.zeros_like(sizes)

    def parameters(self) -> Floats:
        """[plans, stages] seconds to gather updated weights."""
        return self._refreshed(self.f.weights_of, self._among, self.f.stages)

    def block_parameters(self) -> Floats:
        """[plans, blocks] … of a block."""
        return self._refreshed(self.f.block_weights, self._heaviest_among, self.f.share.shape[1])

    def _refreshed(
        self,
        weights: Callable[[int], Weights],
        among: Callable[[Floats, Floats], Floats],
        columns: int,
    ) -> Floats:
        f = self.f
        gathers = np.zeros((len(f.choices), columns))
        for owners, kinds in self._by_owners().items():
            size = np.asarray(sum(self.states.refreshed(weights(kind)) for kind in kinds))
            if not size.any():
                continue
            found = f.exchange(owners, "all_gather").seconds(size.ravel()).reshape(size.shape)
            if self.shares_links:
                lone = f.exchange(owners, "all_gather", True).seconds(size.ravel())
                found = among(lone.reshape(size.shape), found)
            gathers += np.where(size > 0.0, found, 0.0)
        return gathers

    @property
    def joins_stages(self) -> bool:
        """Whether all stages wait for each other before the update."""
        return self.f.stages > 1 and self.runtime.update.clips_gradients

    def barriers(self) -> Floats:
        """[plans] tied weights between the ends of a pipeline, and the norm that joins all ranks before the update."""
        f, total = self.f, np.zeros(len(self.f.choices))
        axes = tuple(axis for axis, size in f.mesh.axes if size > 1)
        tied = f.tied_between()
        if tied.any():
            ends = f.exchanges.between(f.mesh, Communicator(("pp",), "ends"), "all_reduce")
            total += ends.seconds(tied * self.states.gradient_bytes)
        if axes and self.states.joins_ranks:
            norm = np.full(len(total), NORM_BYTES)
            total += f.exchange(axes, "all_reduce").seconds(norm)
        return total
