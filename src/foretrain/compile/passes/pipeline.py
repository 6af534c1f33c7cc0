"""Pipeline: the segments of every stage, from the blocks it holds and the schedule it follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

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
from foretrain.compile.model_states import ModelStates, weights_of
from foretrain.compile.passes import bucket, offload, shard
from foretrain.compile.passes.bucket import sharding_axes
from foretrain.compile.passes.communicate import WeightShard
from foretrain.compile.passes.recompute import BlockPass
from foretrain.compile.segment import Async, Interner, Segment, of_each, strung
from foretrain.model.ops.base import LAUNCHES, Kernel
from foretrain.model.workload import Workload
from foretrain.plan.plan import Plan
from foretrain.runtime import Runtime
from foretrain.runtime.features.uncoalesced_gather import UncoalescedGather

Key = tuple[
    int, int, bool
]  # phase, chunk, is it the first (forward) or last (backward) micro-batch


@dataclass(frozen=True, slots=True)
class Part:
    """A chunk of a stage: its blocks in order, and what lies beyond its ends. `ahead`, `behind`: how many stages further
    the next and the last part lie; 0: on the same stage, or there is none, and nothing is sent."""

    passes: tuple[BlockPass, ...]
    offloads: tuple[bool, ...]
    ahead: int
    behind: int
    received_bytes: float  # the boundary this part receives going forward

    @property
    def signature(self) -> tuple[object, ...]:
        """Equal for parts that run the same things; block passes are shared objects, so identity will do."""
        passes = tuple(id(p) for p in self.passes)
        return passes, self.offloads, self.ahead, self.behind, self.received_bytes


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
    kernel_timer: bucket.KernelTimer | None = None  # asked for where gradients are fused by time

    @property
    def states(self) -> ModelStates:
        return ModelStates(self.workload, self.runtime)

    @property
    def is_offloaded(self) -> bool:
        """Whether optimizer states are kept in host memory."""
        return "optimizer" in (self.plan.root.offload or ())

    @property
    def reduction(self) -> bucket.Reduction:
        """How replicas agree: on gradients, or on weights."""
        runtime = self.runtime
        return bucket.Reduction(
            runtime.gradients.synchronises,
            self.states.reduced_bytes,
            (0.0, 0.0) if self.reduces_blocks else self.bucket_limits,
            runtime.gradients.overlaps_gradients,
            runtime.fusion_cycles,
            runtime.gradients.overlaps_scatters,
            runtime.gradients.scatters_gradients,
        )

    @property
    def reduces_blocks(self) -> bool:
        return self.states.reduces_blocks(self.plan.root.bucket_bytes)

    @property
    def starts_forward(self) -> bool:
        return self.runtime.gradients.synchronises_at == "forward"

    def reductions(self, ready: bucket.Ready, chain: Ints32) -> tuple[Async, ...]:
        how = self.reduction
        clock = None
        if how.cycles is not None and self.kernel_timer is not None:
            items = self.interner.items
            clock = self.kernel_timer([items[number] for number in chain.tolist()])
        return bucket.gradient_asyncs(ready, len(chain), how, self.sizes, self.interner, clock)

    @property
    def bucket_limits(self) -> tuple[float, float]:
        return self.states.bucket_limits(self.plan.root.bucket_bytes)


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
    return StageProgram(
        segments, _update(parts, shards, setting), _stage(index, parts, shards, setting)
    )


class _Back(NamedTuple):
    """One way back through the blocks, as every micro-batch takes it, and when which gradients are done on it."""

    segment: Segment
    ready: list[tuple[int, tuple[WeightShard, ...]]]


class _PartBuilder:
    """The segments of one chunk: what all micro-batches run, and what the first or the last runs besides."""

    def __init__(self, part: Part, setting: StageSetting) -> None:
        self.part, self.setting = part, setting
        pairs = zip(part.passes, part.offloads, strict=True)
        self.leaving = [p.saved_bytes if leaves else 0.0 for p, leaves in pairs]
        pairs_left = zip(part.passes, self.leaving, strict=True)
        self.staying = [p.saved_bytes - away for p, away in pairs_left]  # on the device
        self.saved = sum(p.saved_bytes for p in part.passes) - sum(self.leaving)
        self._reduced: dict[tuple[int, int], Segment] = {}

    # --- forward ----------------------------------------------------------------------------------------

    def forward(self, is_first: bool) -> Segment:
        every, gathers, starts = self._forward
        first = self._first(every.chain, starts) if is_first else ()
        if not first:
            return every
        copies = every.asyncs[len(gathers) :]
        return replace(every, asyncs=(*gathers, *first, *copies))

    @cached_property
    def _forward(self) -> tuple[Segment, tuple[Async, ...], list[int]]:
        """What all micro-batches run, the gathers of weights beside it, and where its blocks start."""
        s, passes = self.setting, self.part.passes
        chain, starts = strung(s.interner.run(p.forward) for p in passes)
        chain, starts = self._arrival(chain, starts, self.part.behind, self.part.received_bytes)
        gathers = self._weight_gathers(passes, lambda p: p.pooled, starts)
        segment = Segment(
            chain=chain,
            asyncs=gathers + offload.copies_out(self.leaving, starts[1:], s.interner),
            memory=self.saved,
            workspace=_fullest([p.forward_workspace for p in passes[::-1]], self.staying[::-1])
            + max(self.leaving, default=0.0),
            send=self._send(passes[-1].boundary_bytes, self.part.ahead),
        )
        return segment, gathers, starts

    def _first(self, chain: Ints32, starts: list[int]) -> tuple[Async, ...]:
        """What a step does with weights before it uses them, beside its first micro-batch."""
        s = self.setting
        asyncs: tuple[Async, ...] = ()
        if s.runtime.sharding.overlaps_parameter_gather and s.states.refreshes:
            gathers = of_each(self.part.passes, self._parameter_gathers)
            asyncs += shard.gather_asyncs(gathers, starts, None)
        if s.starts_forward:
            asyncs += s.reductions(self._weights_in_order(starts), chain)
        return asyncs

    def _weights_in_order(self, starts: list[int]) -> list[tuple[int, tuple[WeightShard, ...]]]:
        """Tensor by tensor, each at the start of its block: backward meets them the other way round."""
        s = self.setting
        return [
            (start, shards)
            for start, p in zip(starts, self.part.passes, strict=False)
            for _, shards in reversed(p.ready_weight if s.splits_backward else p.ready)
        ]

    # --- backward ---------------------------------------------------------------------------------------

    def backward(self, is_last: bool) -> Segment:
        return self._with_reductions(self._back, is_last)

    def backward_input(self) -> Segment:
        return self._back_input

    def backward_weight(self, is_last: bool) -> Segment:
        return self._with_reductions(self._back_weight, is_last)

    @cached_property
    def _back(self) -> _Back:
        segment, starts = self._receiving(lambda p: p.backward)
        workspace = self._back_workspace(self.staying[::-1])
        freeing = replace(segment, memory=-self.saved, workspace=workspace)
        return _Back(freeing, self._ready(starts, lambda p: p.ready))

    @cached_property
    def _back_input(self) -> Segment:
        segment, _ = self._receiving(lambda p: p.backward_input)
        return replace(segment, workspace=self._back_workspace([0.0] * len(self.staying)))

    @cached_property
    def _back_weight(self) -> _Back:
        passes = self.part.passes[::-1]
        chain, starts = strung(self.setting.interner.run(p.backward_weight) for p in passes)
        workspace = self._back_workspace(self.staying[::-1])
        segment = Segment(chain, memory=-self.saved, workspace=workspace)
        return _Back(segment, self._ready(starts, lambda p: p.ready_weight))

    def _receiving(
        self, items: Callable[[BlockPass], tuple[Item, ...]]
    ) -> tuple[Segment, list[int]]:
        """A way back that takes gradients from the stage ahead and sends others on, and where its blocks start."""
        s, passes = self.setting, self.part.passes[::-1]
        chain, starts = strung(s.interner.run(items(p)) for p in passes)
        boundary = self.part.passes[-1].boundary_bytes
        chain, starts = self._arrival(chain, starts, self.part.ahead, boundary)
        asyncs: tuple[Async, ...] = ()
        by_part = s.runtime.uncoalesced_gather
        if by_part is not None and by_part.gathers_rerun:
            asyncs += self._weight_gathers(passes, lambda p: p.rerun, starts)
        asyncs += self._weight_gathers(passes, lambda p: p.pooled, starts)
        asyncs += offload.copies_in(self.leaving[::-1], starts, s.interner)
        sent = self._send(self.part.received_bytes, self.part.behind)
        return Segment(chain, asyncs, send=sent), starts

    def _back_workspace(self, kept: list[float]) -> float:
        workspaces = [p.backward_workspace for p in self.part.passes[::-1]]
        return _fullest(workspaces, kept) + max(self.leaving, default=0.0)

    def _ready(
        self,
        starts: list[int],
        ready: Callable[[BlockPass], tuple[tuple[int, tuple[WeightShard, ...]], ...]],
    ) -> list[tuple[int, tuple[WeightShard, ...]]]:
        if self.setting.starts_forward:
            return []
        finished = of_each(self.part.passes[::-1], lambda p: self._finished(p, ready(p)))
        pairs = zip(starts, finished, strict=False)
        return [(start + at, shards) for start, block in pairs for at, shards in block]

    def _with_reductions(self, back: _Back, is_last: bool) -> Segment:
        """Gradients that are sharded are reduced after every micro-batch, the others after the last."""
        due = back.ready
        if not is_last:
            is_due = of_each([shards for _, shards in due], _has_sharded_gradient)
            due = [entry for entry, is_now in zip(due, is_due, strict=True) if is_now]
        if not due:
            return back.segment
        key = (id(back.segment), len(due))
        if key not in self._reduced:
            reductions = self.setting.reductions(due, back.segment.chain)
            asyncs = back.segment.asyncs + reductions
            self._reduced[key] = replace(back.segment, asyncs=asyncs)
        return self._reduced[key]

    def _finished(
        self, block: BlockPass, ready: tuple[tuple[int, tuple[WeightShard, ...]], ...]
    ) -> tuple[tuple[int, tuple[WeightShard, ...]], ...]:
        """Gradients as they are handed over to be reduced: one by one, or a block's together."""
        if not self.setting.reduces_blocks or not ready:
            return ready
        return ((max(at for at, _ in ready), tuple(w for w in block.pooled if not w.is_frozen)),)

    # --- beside the chain -------------------------------------------------------------------------------

    def _weight_gathers(
        self,
        passes: tuple[BlockPass, ...],
        weights: Callable[[BlockPass], tuple[WeightShard, ...]],
        starts: list[int],
    ) -> tuple[Async, ...]:
        s = self.setting
        by_part = s.runtime.uncoalesced_gather or UncoalescedGather()
        seconds = by_part.calls_per_part * s.runtime.host.host_seconds_per_kernel

        def gathers(block: BlockPass) -> list[int]:
            items = shard.gather_items(weights(block), "weight", s.states.weight_bytes)
            if by_part.calls_per_part:
                split = sum(w.elements >= by_part.splits_from for w in block.weights)
                items = [shard.Listing(split, seconds, s.sizes).of(item) for item in items]
            return [s.interner.number(item) for item in items]

        ahead = s.runtime.sharding.prefetched_blocks
        return shard.gather_asyncs(of_each(passes, gathers), starts, ahead)

    def _parameter_gathers(self, block: BlockPass) -> list[int]:
        s = self.setting
        replicated = [w for w in block.pooled if not sharding_axes(w, "weight")]
        items = shard.gather_items(replicated, "optimizer", s.states.weight_bytes)
        return [s.interner.number(item) for item in items]

    def _slices(self) -> int:
        s = self.setting
        is_cut = any("seq" in cut.dims and "tp" in cut.axes for cut in s.plan.root.split)
        return boundary_slices(s.runtime, s.sizes.get("tp", 1), is_cut)

    def _send(self, size: float, hop: int) -> int | None:
        """The boundary goes to the neighbour; replicated over tp it may go in slices (SC21, section 4.1)."""
        s = self.setting
        if hop == 0:
            return None
        size /= self._slices()
        group = Communicator(("pp",), "shift", hop, s.plan.schedule.pieces.wraps)
        return s.interner.number(Item(Communication("send", size, group, "pipeline")))

    def _arrival(
        self, chain: Ints32, starts: list[int], hop: int, size: float
    ) -> tuple[Ints32, list[int]]:
        """Slices of a scattered boundary are put together again before anything else runs."""
        s = self.setting
        if hop == 0 or self._slices() == 1:
            return chain, starts
        gather = Item(Communication("all_gather", size, Communicator(("tp",)), "pipeline"))
        head = np.array([s.interner.number(gather)], dtype=np.int32)
        return np.concatenate([head, chain]), [start + 1 for start in starts]


def _has_sharded_gradient(shards: tuple[WeightShard, ...]) -> bool:
    return any(sharding_axes(w, "gradient") for w in shards)


def boundary_slices(runtime: Runtime, tp: int, is_sequence_cut: bool) -> int:
    """In how many slices a boundary is sent that tensor-parallel ranks have copies of (SC21, section 4.1)."""
    return tp if runtime.pipeline.scatters_pipeline and not is_sequence_cut else 1


def _fullest(workspaces: list[float], kept: list[float]) -> float:
    """The most that blocks need at work beside what all of them keep. From the last block on: going back, what is
    kept for the blocks behind is free again; going forward, it is not there yet."""
    worst = free = 0.0
    for workspace, own in zip(workspaces, kept, strict=True):
        worst = max(worst, workspace - free)
        free += own
    return worst


def _update(parts: tuple[Part, ...], shards: list[WeightShard], s: StageSetting) -> Segment:
    """Apply the optimizer to the shard a rank owns, then bring the weights back together."""
    trained = [w for w in shards if not w.is_frozen]
    if not s.workload.optimizer.has_update or not trained:
        return Segment(np.zeros(0, dtype=np.int32))
    states, groups = s.states, weights_of(trained, s.sizes)
    items: list[Item] = []
    if s.is_offloaded:
        out, there, back = states.offloaded(groups)
        items += [Item(Copy(float(out), "to_host")), Item(Copy(float(there), "host_memory"))]
        items.append(Item(Copy(float(back), "to_device")))
    else:
        flops, traffic = states.update_flops(groups), states.update_traffic(groups)
        kernel = Kernel("memory", "update", float(flops), float(traffic), "fp32")
        items.append(Item(Compute("optimizer.update", kernel)))
    if not s.runtime.sharding.overlaps_parameter_gather:
        whole = [w for w in trained if not sharding_axes(w, "weight")]
        items += shard.gather_items(whole, "optimizer", states.weight_bytes)
    ready = [ws for part in parts for p in part.passes for _, ws in p.ready]
    items += [*_copied(ready, s), *_launches(ready, s)]
    whole_until = float(states.unreduced(groups, s.bucket_limits[1]))
    return Segment(s.interner.run(tuple(items)), workspace=whole_until)


def _launches(ready: Sequence[tuple[WeightShard, ...]], s: StageSetting) -> list[Item]:
    """What hosts take while devices have nothing else to do: kernels for each weight and fp32 value kept of it, and
    delays of the slowest of them."""
    weights = sum(map(len, ready))
    if not s.states.waits_for_hosts or not weights:
        return []
    issued = (int(s.states.tensors_issued(weights)),)
    return [
        Item(Compute("optimizer.launches", Kernel(LAUNCHES, "update", 0.0, 0.0, "fp32", issued)))
    ]


def _copied(ready: Sequence[tuple[WeightShard, ...]], s: StageSetting) -> list[Item]:
    """Copies that bring each owner's shard of each gathered weight to its place, all of the mean size."""
    split = [ws for ws in ready if ws and _pieces(ws[0], s) > 1] if s.states.copied_bytes else []
    count = sum(_pieces(ws[0], s) for ws in split)
    if not count:
        return []
    moved = sum(w.elements for ws in split for w in ws) * s.states.copied_bytes
    kernel = Kernel("memory", "update", 0.0, moved / count, "fp32")
    return [Item(Compute("optimizer.copies", kernel))] * count


def _pieces(weight: WeightShard, s: StageSetting) -> int:
    return prod(s.sizes[axis] for axis in sharding_axes(weight, "optimizer"))


def _stage(
    index: int, parts: tuple[Part, ...], shards: list[WeightShard], s: StageSetting
) -> Stage:
    passes = [p for part in parts for p in part.passes]
    states, groups, bucket = s.states, weights_of(shards, s.sizes), s.bucket_limits[1]
    copies = sum(states.update_copies(w, s.is_offloaded) for w in groups)
    return Stage(
        index=index,
        weights=float(sum(map(states.weights, groups))),
        gradients=float(sum(map(states.gradients, groups))),
        optimizer=float(sum(states.optimizer(w, s.is_offloaded) for w in groups)),
        buffers=_gathered(passes, s) + float(states.staging(groups, bucket) + copies),
        parameters=sum(w.elements for w in shards),
        blocks=tuple(Counter(p.name for p in passes).items()),
    )


def _gathered(passes: list[BlockPass], s: StageSetting) -> float:
    """Blocks that are whole for a while: weights of the one at work and those fetched ahead, and the gradients of one
    on their way to their owners."""

    def whole(block: BlockPass) -> tuple[float, float]:
        groups = weights_of(block.pooled, s.sizes)
        return float(sum(map(s.states.gathered, groups))), float(
            sum(map(s.states.reducing, groups))
        )

    blocks = of_each(passes, whole)
    weights = sorted((weights for weights, _ in blocks), reverse=True)
    gradients = (gradients for _, gradients in blocks)
    return sum(weights[: s.states.blocks_gathered]) + max(gradients, default=0.0)
