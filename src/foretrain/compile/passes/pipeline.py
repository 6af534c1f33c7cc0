"""Pipeline: the segments of every stage, from the blocks it holds and the schedule it follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from foretrain.arrays import Ints32
from foretrain.compile.execution import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    Communication,
    Communicator,
    Compute,
    Copy,
    Item,
    Stage,
)
from foretrain.compile.passes import bucket, offload, shard
from foretrain.compile.passes.bucket import sharding_axes
from foretrain.compile.passes.communicate import WeightShard
from foretrain.compile.passes.recompute import BlockPass
from foretrain.compile.segment import Async, Interner, Segment, strung
from foretrain.model.ops.base import LAUNCHES, Kernel
from foretrain.model.optimizer import MASTER_BYTES, MOMENT_BYTES
from foretrain.model.workload import Workload
from foretrain.plan.plan import Plan
from foretrain.runtime import Runtime

Key = tuple[
    int, int, bool
]  # phase, chunk, is it the first (forward) or last (backward) micro-batch


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk of a stage: its blocks in order, and what lies beyond its ends."""

    passes: tuple[BlockPass, ...]
    offloads: tuple[bool, ...]
    is_first: bool
    is_last: bool
    received_bytes: float  # the boundary this part receives going forward

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for parts that run the same things; block passes are shared objects, so identity will do."""
        passes = tuple(id(p) for p in self.passes)
        return passes, self.offloads, self.is_first, self.is_last, self.received_bytes


@dataclass(frozen=True, slots=True)
class StageProgram:
    """Everything one stage runs: segments by key, the update, and its static memory."""

    segments: Mapping[Key, Segment]
    update: Segment
    stage: Stage


@dataclass(frozen=True, slots=True)
class StageSetting:
    """What building segments needs to know besides the blocks."""

    workload: Workload
    plan: Plan
    runtime: Runtime
    sizes: Mapping[str, int]
    splits_backward: bool
    interner: Interner
    pace: bucket.Pace | None = None  # asked for where gradients are fused by time

    @property
    def gradient_bytes(self) -> float:
        given = self.runtime.gradient_bytes
        return self.workload.precision.gradient_bytes if given is None else given

    @property
    def weight_bytes(self) -> float:
        return self.workload.precision.weight_bytes

    @property
    def reduction(self) -> bucket.Reduction:
        """How replicas agree: on gradients, or on weights."""
        runtime = self.runtime
        size = self.gradient_bytes if runtime.synchronises_at == "gradient" else self.weight_bytes
        return bucket.Reduction(
            runtime.synchronises,
            size,
            (0.0, 0.0) if self.reduces_blocks else self.bucket_limits,
            runtime.overlaps_gradients,
            bucket.cycles(runtime),
            runtime.overlaps_scatters,
            runtime.scatters_gradients,
        )

    @property
    def reduces_blocks(self) -> bool:
        return self.runtime.reduces_blocks and self.plan.root.bucket_bytes is None

    @property
    def starts_forward(self) -> bool:
        return self.runtime.synchronises_at == "forward"

    def reductions(self, ready: bucket.Ready, chain: Ints32) -> tuple[Async, ...]:
        how = self.reduction
        clock = None
        if how.cycles is not None and self.pace is not None:
            items = self.interner.items
            clock = self.pace([items[number] for number in chain.tolist()])
        return bucket.gradient_asyncs(ready, len(chain), how, self.sizes, self.interner, clock)

    @property
    def bucket_limits(self) -> tuple[float, float]:
        chosen = self.plan.root.bucket_bytes
        if chosen is not None:
            return min(chosen, self.runtime.first_bucket_bytes), chosen
        return self.runtime.first_bucket_bytes, self.runtime.bucket_bytes


def stage_program(index: int, parts: tuple[Part, ...], setting: StageSetting) -> StageProgram:
    segments: dict[Key, Segment] = {}
    for chunk, part in enumerate(parts):
        build = _PartBuilder(part, setting)
        for is_edge in (False, True):
            segments[FORWARD, chunk, is_edge] = build.forward(is_edge)
            if setting.splits_backward:
                segments[BACKWARD, chunk, is_edge] = build.backward_input()
                segments[BACKWARD_WEIGHT, chunk, is_edge] = build.backward_weight(is_edge)
            else:
                segments[BACKWARD, chunk, is_edge] = build.backward(is_edge)
    shards = [w for part in parts for p in part.passes for w in p.pooled]
    small = np.concatenate([_copied(parts, setting), _launches(parts, setting)])
    update = _update(_trained(shards), setting, small)
    return StageProgram(segments, update, _stage(index, parts, shards, setting))


class _PartBuilder:
    """The segments of one chunk."""

    def __init__(self, part: Part, setting: StageSetting) -> None:
        self.part = part
        self.setting = setting
        self.weights = [p.pooled for p in part.passes]

    def forward(self, is_first: bool) -> Segment:
        s, passes = self.setting, self.part.passes
        chain, starts = strung(s.interner.run(p.forward) for p in passes)
        chain, starts = self._arrival(chain, starts, self.part.is_first, self.part.received_bytes)
        asyncs = self._weight_gathers(passes, self.weights, starts)
        if is_first and s.runtime.overlaps_parameter_gather:
            asyncs += self._parameter_gathers(starts)
        if is_first and s.starts_forward:
            asyncs += s.reductions(self._weights_in_order(starts), chain)
        leaving = self._offloaded()
        asyncs += offload.copies_out(leaving, starts[1:], s.interner)
        return Segment(
            chain=chain,
            asyncs=asyncs,
            memory=sum(p.saved_bytes for p in passes) - sum(leaving),
            workspace=_fullest([p.forward_workspace for p in passes[::-1]], self._staying()[::-1])
            + max(leaving, default=0.0),
            send=None if self.part.is_last else self._send(passes[-1].boundary_bytes, +1),
        )

    def _weights_in_order(self, starts: list[int]) -> list[tuple[int, tuple[WeightShard, ...]]]:
        """Tensor by tensor, each at the start of its block: backward meets them the other way round."""
        s = self.setting
        return [
            (start, shards)
            for start, p in zip(starts, self.part.passes, strict=False)
            for _, shards in reversed(p.ready_weight if s.splits_backward else p.ready)
        ]

    def backward(self, is_last: bool) -> Segment:
        return self._backward(is_last, lambda p: p.backward, lambda p: p.ready, frees=True)

    def backward_input(self) -> Segment:
        return self._backward(False, lambda p: p.backward_input, None, frees=False)

    def backward_weight(self, is_last: bool) -> Segment:
        segment = self._backward(
            is_last, lambda p: p.backward_weight, lambda p: p.ready_weight, frees=True
        )
        return Segment(segment.chain, segment.asyncs, segment.memory, segment.workspace)

    def _backward(
        self,
        is_last: bool,
        items: Callable[[BlockPass], tuple[Item, ...]],
        ready: Callable[[BlockPass], tuple[tuple[int, tuple[WeightShard, ...]], ...]] | None,
        frees: bool,
    ) -> Segment:
        s = self.setting
        passes = self.part.passes[::-1]
        chain, starts = strung(s.interner.run(items(p)) for p in passes)
        is_pure_weight = ready is not None and s.splits_backward
        if not is_pure_weight:
            boundary = self.part.passes[-1].boundary_bytes
            chain, starts = self._arrival(chain, starts, self.part.is_last, boundary)
        asyncs: tuple[Async, ...] = ()
        if not is_pure_weight:
            if s.runtime.gathers_rerun:
                asyncs += self._weight_gathers(passes, [p.rerun for p in passes], starts)
            asyncs += self._weight_gathers(passes, self.weights[::-1], starts)
            asyncs += offload.copies_in(self._offloaded()[::-1], starts, s.interner)
        if ready is not None and not s.starts_forward:
            finished = [
                (starts[i] + at, shards)
                for i, p in enumerate(passes)
                for at, shards in self._finished(p, ready(p))
                if is_last or any(sharding_axes(w, "gradient") for w in shards)
            ]
            asyncs += s.reductions(finished, chain)
        saved = sum(p.saved_bytes for p in passes) - sum(self._offloaded())
        return Segment(
            chain=chain,
            asyncs=asyncs,
            memory=-saved if frees else 0.0,
            workspace=_fullest(
                [p.backward_workspace for p in passes],
                self._staying()[::-1] if frees else [0.0] * len(passes),
            )
            + max(self._offloaded(), default=0.0),
            send=None if self.part.is_first else self._send(self.part.received_bytes, -1),
        )

    def _finished(
        self, block: BlockPass, ready: tuple[tuple[int, tuple[WeightShard, ...]], ...]
    ) -> tuple[tuple[int, tuple[WeightShard, ...]], ...]:
        """Gradients as they are handed over to be reduced: one by one, or a block's together."""
        if not self.setting.reduces_blocks or not ready:
            return ready
        return ((max(at for at, _ in ready), tuple(_trained(block.pooled))),)

    def _offloaded(self) -> list[float]:
        pairs = zip(self.part.passes, self.part.offloads, strict=True)
        return [p.saved_bytes if leaves else 0.0 for p, leaves in pairs]

    def _staying(self) -> list[float]:
        """Bytes that each block keeps on the device."""
        pairs = zip(self.part.passes, self._offloaded(), strict=True)
        return [p.saved_bytes - away for p, away in pairs]

    def _weight_gathers(
        self,
        passes: tuple[BlockPass, ...],
        blocks: list[tuple[WeightShard, ...]],
        starts: list[int],
    ) -> tuple[Async, ...]:
        s = self.setting
        ahead, calls = s.runtime.prefetched_blocks, s.runtime.calls_per_part
        seconds = calls * s.runtime.host_seconds_per_kernel
        listed = [shard.Listing(self._split(p), seconds, s.sizes) for p in passes if calls]
        return shard.gather_asyncs(
            blocks, starts, "weight", s.weight_bytes, ahead, s.interner, listed
        )

    def _split(self, block: BlockPass) -> int:
        """How many of a block's weights are large enough to be split."""
        least = self.setting.runtime.splits_from
        return sum(w.elements >= least for w in block.weights)

    def _parameter_gathers(self, starts: list[int]) -> tuple[Async, ...]:
        s = self.setting
        replicated = [tuple(w for w in ws if not sharding_axes(w, "weight")) for ws in self.weights]
        return shard.gather_asyncs(
            replicated, starts, "optimizer", s.weight_bytes, None, s.interner
        )

    def _scatters(self) -> bool:
        return self.setting.runtime.scatters_pipeline and "tp" in self.setting.sizes

    def _send(self, size: float, direction: int) -> int:
        """The boundary goes to the neighbour; replicated over tp it may go in slices (SC21, section 4.1)."""
        s = self.setting
        if self._scatters() and not self._is_sequence_cut():
            size /= s.sizes["tp"]
        wraps = s.plan.schedule.chunks > 1
        group = Communicator(("pp",), "shift", direction, wraps)
        return s.interner.number(Item(Communication("send", size, group, "pipeline")))

    def _is_sequence_cut(self) -> bool:
        return any("seq" in cut.dims and "tp" in cut.axes for cut in self.setting.plan.root.split)

    def _arrival(
        self, chain: Ints32, starts: list[int], is_end: bool, size: float
    ) -> tuple[Ints32, list[int]]:
        """Slices of a scattered boundary are put together again before anything else runs."""
        s = self.setting
        if is_end or not self._scatters() or s.sizes["tp"] == 1 or self._is_sequence_cut():
            return chain, starts
        gather = Item(Communication("all_gather", size, Communicator(("tp",)), "pipeline"))
        head = np.array([s.interner.number(gather)], dtype=np.int32)
        return np.concatenate([head, chain]), [start + 1 for start in starts]


def _fullest(workspaces: list[float], kept: list[float]) -> float:
    """The most that blocks need at work beside what all of them keep. From the last block on: going back, what is
    kept for the blocks behind is free again; going forward, it is not there yet."""
    worst = free = 0.0
    for workspace, own in zip(workspaces, kept, strict=True):
        worst = max(worst, workspace - free)
        free += own
    return worst


def _update(shards: list[WeightShard], setting: StageSetting, copied: Ints32) -> Segment:
    """Apply the optimizer to the shard a rank owns, then bring the weights back together."""
    s = setting
    if not s.workload.optimizer.has_update or not shards:
        return Segment(np.zeros(0, dtype=np.int32), is_update=True)
    stepped = [w for w in shards if not _is_stepped_in_backward(w)]
    owned = sum(_reached(w) / _parts(w, "optimizer", s.sizes) for w in stepped)
    items: list[Item] = []
    traffic = s.workload.optimizer.update_bytes(owned, s.workload.precision)
    traffic *= s.runtime.update_passes
    # rows themselves were read and written with their gradients; their moments come with them
    rows = sum(_reached(w) for w in shards if _is_stepped_in_backward(w))
    traffic += 2 * s.workload.optimizer.table_state_bytes * rows
    traffic += _buffer_traffic(shards, owned, s)
    if "optimizer" in (s.plan.root.offload or ()):
        items.append(Item(Copy(owned * s.gradient_bytes, "to_host")))
        items.append(Item(Copy(traffic, "host_memory")))
        items.append(Item(Copy(owned * s.weight_bytes, "to_device")))
    else:
        flops = s.workload.optimizer.update_flops(owned)
        kernel = Kernel("memory", "update", flops, traffic, "fp32")
        items.append(Item(Compute("optimizer.update", kernel)))
    if not s.runtime.overlaps_parameter_gather:
        whole = [w for w in shards if not sharding_axes(w, "weight")]
        items += shard.gather_items(whole, "optimizer", s.weight_bytes)
    # reduced after backward, gradients are whole until then, when no activation is left; those that are split and
    # reduced in buckets fill no more than one
    whole_until = (
        0.0 if s.runtime.overlaps_gradients else min(_unsplit(shards, s), s.bucket_limits[1])
    )
    chain = np.concatenate([s.interner.run(tuple(items)), copied])
    return Segment(chain, workspace=whole_until, is_update=True)


def _launches(parts: tuple[Part, ...], s: StageSetting) -> Ints32:
    """What hosts take while devices have nothing else to do: kernels for each weight and fp32 value kept of it, and
    delays of the slowest of them."""
    optimizer = s.workload.optimizer
    weights = sum(len(ws) for part in parts for p in part.passes for _, ws in p.ready)
    kept = max(1.0, optimizer.memory_bytes(1.0, s.workload.precision) / MOMENT_BYTES)
    is_free = not s.runtime.kernels_per_tensor and not s.runtime.jitter_seconds
    if is_free or not weights or not optimizer.has_update:
        return np.zeros(0, dtype=np.int32)
    kernel = Kernel(LAUNCHES, "update", 0.0, 0.0, "fp32", (round(weights * kept),))
    return s.interner.run((Item(Compute("optimizer.launches", kernel)),))


def _buffer_traffic(shards: list[WeightShard], owned: float, s: StageSetting) -> float:
    """What an accumulation buffer costs besides the update: gradients wider than those it counts, a pass that
    clears it, and for clipping one that takes the norm and one that scales."""
    if s.runtime.gradient_bytes is None or not s.runtime.adds_gradients:
        return 0.0
    buffer = sum(w.elements / _parts(w, "gradient", s.sizes) for w in shards) * s.gradient_bytes
    wider = owned * (s.gradient_bytes - s.workload.precision.gradient_bytes)
    return wider + buffer * (4.0 if s.runtime.clips_gradients else 1.0)


def _copied(parts: tuple[Part, ...], s: StageSetting) -> Ints32:
    """Copies that bring each owner's part of each gathered weight to its place, all of the mean size.

    Packing counts with them: gradients are copied twice on their way into a flat buffer, weights into one, out of it
    and to their places (nanotron's coalesced collectives over lists of tensors).
    """
    nothing = np.zeros(0, dtype=np.int32)
    if not s.runtime.copies_gathered or not s.workload.optimizer.has_update:
        return nothing
    ready = [ws for part in parts for p in part.passes for _, ws in p.ready]
    pieces = [_parts(ws[0], "optimizer", s.sizes) for ws in ready if ws]
    count = sum(number for number in pieces if number > 1)
    if not count:
        return nothing
    elements = sum(w.elements for ws in ready for w in ws if _parts(w, "optimizer", s.sizes) > 1)
    moved = elements * (3 * 2 * s.weight_bytes + 2 * 2 * s.gradient_bytes)
    kernel = Kernel("memory", "update", 0.0, moved / count, "fp32")
    item = s.interner.number(Item(Compute("optimizer.copies", kernel)))
    return np.full(count, item, dtype=np.int32)


def _unsplit(shards: list[WeightShard], s: StageSetting) -> float:
    """Bytes by which gradients that are to be split exceed what a rank keeps of them."""
    lost = (w.elements * (1.0 - 1.0 / _parts(w, "gradient", s.sizes)) for w in shards)
    return sum(lost) * s.gradient_bytes


def _parts(weight: WeightShard, role: str, sizes: Mapping[str, int]) -> int:
    return prod(sizes[axis] for axis in sharding_axes(weight, role))


def _stage(
    index: int, parts: tuple[Part, ...], shards: list[WeightShard], s: StageSetting
) -> Stage:
    counts: dict[str, int] = {}
    for part in parts:
        for p in part.passes:
            counts[p.name] = counts.get(p.name, 0) + 1
    held = [_states(w, s) for w in shards]
    return Stage(
        index=index,
        weights=sum(weight for weight, _ in held),
        gradients=sum(_reached(w) / _parts(w, "gradient", s.sizes) for w in shards)
        * s.gradient_bytes,
        optimizer=sum(state for _, state in held),
        buffers=_gathered(parts, s) + _staged(shards, s) + _updated(shards, s),
        parameters=sum(w.elements for w in shards),
        blocks=tuple(counts.items()),
    )


def _trained(shards: Iterable[WeightShard]) -> list[WeightShard]:
    """Those that have gradients and states."""
    return [w for w in shards if not w.is_frozen]


def _reached(w: WeightShard) -> float:
    """Elements that have a gradient: of tables with sparse updates the rows that were looked up."""
    return w.elements if w.touched is None else w.touched


def _is_stepped_in_backward(w: WeightShard) -> bool:
    """Rows of tables that no other rank holds are stepped by the kernel that has their gradients."""
    return w.is_table and not w.reduce_axes


def _states(w: WeightShard, s: StageSetting) -> tuple[float, float]:
    """Bytes of a weight and of its optimizer states; a split master copy may be the weight itself."""
    precision, optimizer = s.workload.precision, s.workload.optimizer
    mine = w.elements / _parts(w, "weight", s.sizes)
    if w.is_frozen:
        # once, whatever else products read: MLPerf's Llama 2 70B LoRA in fp8 fits 141 GB without a transposed copy
        return mine * w.sent * s.weight_bytes, 0.0
    has_master = precision.has_master_weights and optimizer.has_update
    weight, state = s.weight_bytes, optimizer.state_bytes
    if has_master and s.runtime.shards_master and sharding_axes(w, "weight"):
        weight = MASTER_BYTES
    elif has_master:
        state += MASTER_BYTES
        if not s.runtime.keeps_transposed:  # two copies of half the size are as large as one whole
            weight *= w.sent
    if "optimizer" in (s.plan.root.offload or ()):
        state = 0.0
    return mine * weight, w.elements / _parts(w, "optimizer", s.sizes) * state


def _updated(shards: list[WeightShard], s: StageSetting) -> float:
    """Flat gradients of the part a rank owns, in wider formats: blocks so large that nothing activations leave
    behind takes them up, so that the allocator holds both."""
    split = (w for w in shards if sharding_axes(w, "optimizer"))
    return s.runtime.update_copies * sum(_states(w, s)[1] for w in split)


def _gathered(parts: tuple[Part, ...], s: StageSetting) -> float:
    """Blocks that are whole for a while: weights of the one at work and those fetched ahead, and the gradients
    of one on their way to their owners, once more where they are reduced in another format."""
    passes = [p for part in parts for p in part.passes]
    weights = sorted(
        (sum(shard.gathered_bytes(p.pooled, "weight", s.weight_bytes).values()) for p in passes),
        reverse=True,
    )
    held = sum(weights[: 1 + s.runtime.prefetched_blocks])
    if not s.runtime.overlaps_gradients:
        return held
    made = s.workload.precision.gradient_bytes
    formats = made + (s.gradient_bytes if s.gradient_bytes != made else 0.0)
    split = (sum(shard.gathered_bytes(p.pooled, "gradient", formats).values()) for p in passes)
    return held + max(split, default=0.0)


def _staged(shards: list[WeightShard], s: StageSetting) -> float:
    """What the reduction of gradients keeps beside them: a place for each, or some buckets."""
    alike = sum(w.elements for w in _trained(shards) if w.reduce_axes)
    each = s.runtime.reducer_copies * alike * s.workload.precision.gradient_bytes
    return each + s.runtime.staging_buckets * min(s.bucket_limits[1], alike * s.gradient_bytes)
