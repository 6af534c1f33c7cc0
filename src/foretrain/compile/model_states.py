"""Model states of a stage: what a rank keeps of its weights, what an update of them moves, what replicas exchange.

ZeRO calls weights, gradients and optimizer states *model states* (Rajbhandari et al. 2020). Everything a stack does with
them is derived here, once: the compiler asks for one stage and gets numbers, the search asks for many plans at once and
gets columns. All arithmetic is element by element, so both get the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from foretrain.arrays import Bools, Floats
from foretrain.compile.passes.bucket import sharding_axes
from foretrain.compile.passes.communicate import WeightShard
from foretrain.model.optimizer import MASTER_BYTES, MOMENT_BYTES
from foretrain.model.workload import Workload
from foretrain.plan.strategy import STATE_ROLES
from foretrain.runtime import Runtime
from foretrain.runtime.features.flattened_update import FlattenedUpdate

Amount = float | Floats
"""Of one stage, or of many plans and stages."""

NORM_BYTES = 4.0
"""The square of a rank's gradients, one fp32 number."""


class Shards(NamedTuple):
    """Into how many shards ZeRO splits each state; 1 where it is whole on every replica."""

    optimizer: Amount = 1.0
    gradient: Amount = 1.0
    weight: Amount = 1.0


class Weights(NamedTuple):
    """Weights that have copies on the same ranks, added up."""

    elements: Amount  # as a rank holds them before ZeRO splits them
    gathered: Amount  # … of full width, as many as a gather moves
    trained: Amount  # elements with a gradient and optimizer states …
    refreshed: Amount  # … of full width, as many as a gather moves once they were updated
    touched: Amount  # elements that have a gradient in a step
    rows: Amount  # … of tables without a copy, which backward itself steps
    shards: Shards
    has_copies: bool


def weights_of(shards: Iterable[WeightShard], sizes: Mapping[str, int]) -> list[Weights]:
    """The weights of a stage or a block, those with the same copies and the same sharding together."""
    groups: dict[tuple[object, ...], list[WeightShard]] = {}
    for shard in shards:
        groups.setdefault((shard.reduce_axes, shard.state), []).append(shard)
    return [_added_up(group, sizes) for group in groups.values()]


class Sums(NamedTuple):
    """The amounts of `Weights`; `rows` are those of all tables, with copies or without."""

    elements: float
    gathered: float
    trained: float
    refreshed: float
    touched: float
    rows: float


def sums(shards: Sequence[WeightShard]) -> Sums:
    trained = [w for w in shards if not w.is_frozen]
    return Sums(
        elements=sum(w.elements for w in shards),
        gathered=sum(w.elements * w.sent for w in shards),
        trained=sum(w.elements for w in trained),
        refreshed=sum(w.elements * w.sent for w in trained),
        touched=sum(map(_touched, trained)),
        rows=sum(_touched(w) for w in trained if w.is_table),
    )


def _added_up(group: Sequence[WeightShard], sizes: Mapping[str, int]) -> Weights:
    # frozen weights have no other state than themselves, so any of the trained ones speaks for all
    one = next((w for w in group if not w.is_frozen), group[0])
    pieces = (prod(sizes[a] for a in sharding_axes(one, role)) for role in STATE_ROLES)
    has_copies = bool(one.reduce_axes)
    n = sums(group)
    rows = 0.0 if has_copies else n.rows
    amounts = (n.elements, n.gathered, n.trained, n.refreshed, n.touched, rows)
    return Weights(*amounts, Shards(*pieces), has_copies)


def _touched(shard: WeightShard) -> float:
    """Elements that have a gradient: of tables with sparse updates the rows that were looked up."""
    return shard.elements if shard.touched is None else shard.touched


@dataclass(frozen=True, slots=True)
class ModelStates:
    """What a stack keeps and moves for the weights of a stage."""

    workload: Workload
    runtime: Runtime

    @property
    def weight_bytes(self) -> float:
        return self.workload.precision.weight_bytes

    @property
    def gradient_bytes(self) -> float:
        """Per element of the buffer that gradients are accumulated and reduced in."""
        own = self.runtime.gradients.gradient_bytes
        return self.workload.precision.gradient_bytes if own is None else own

    @property
    def has_master(self) -> bool:
        return self.workload.precision.has_master_weights and self.workload.optimizer.has_update

    # --- what is kept ---------------------------------------------------------------------------------

    def weights(self, w: Weights) -> Amount:
        """Bytes of the weights; of frozen ones once, whatever else GEMMs read (MLPerf's Llama 2 70B LoRA in FP8 fits
        141 GB without a transposed copy)."""
        frozen = (w.gathered - w.refreshed) * self.weight_bytes
        held = w.trained
        if self.has_master and not self.runtime.memory.keeps_transposed:
            # two copies of half the size are as large as one whole
            held = np.where(self._is_master(w), w.trained, w.refreshed)
        each = np.where(self._is_master(w), MASTER_BYTES, self.weight_bytes)
        return (held * each + frozen) / w.shards.weight

    def gradients(self, w: Weights) -> Amount:
        return w.touched * self.gradient_bytes / w.shards.gradient

    def optimizer(self, w: Weights, is_offloaded: bool | Bools = False) -> Amount:
        """Bytes of moments and the master copy, which fully sharded weights may be themselves."""
        master = np.where(self._is_master(w), 0.0, MASTER_BYTES if self.has_master else 0.0)
        each = self.workload.optimizer.state_bytes + master
        return w.trained * np.where(is_offloaded, 0.0, each) / w.shards.optimizer

    def _is_master(self, w: Weights) -> bool | Bools:
        """Whether the sharded weights are the fp32 master copy, cast when they are gathered."""
        is_own = self.has_master and self.runtime.sharding.shards_master
        return is_own & (np.asarray(w.shards.weight) > 1)

    # --- what is there for a while ----------------------------------------------------------------------

    def update_copies(self, w: Weights, is_offloaded: bool | Bools = False) -> Amount:
        """Flat gradients of the shard a rank owns, in wider formats: blocks so large that nothing activations leave
        behind takes them up, so that the allocator holds both."""
        flattened = self.runtime.flattened_update or FlattenedUpdate()
        copies = flattened.update_copies * self.optimizer(w, is_offloaded)
        return np.where(np.asarray(w.shards.optimizer) > 1, copies, 0.0)

    def gathered(self, w: Weights) -> Amount:
        """Bytes of fully sharded weights once they are gathered."""
        return np.where(np.asarray(w.shards.weight) > 1, w.gathered * self.weight_bytes, 0.0)

    def reducing(self, w: Weights) -> Amount:
        """Bytes of gradients on their way to their owners, once more where they are reduced in another format."""
        if not self.runtime.gradients.overlaps_gradients:
            return 0.0 * w.trained
        made = self.workload.precision.gradient_bytes
        formats = made + (self.gradient_bytes if self.gradient_bytes != made else 0.0)
        return np.where(np.asarray(w.shards.gradient) > 1, w.trained * formats, 0.0)

    @property
    def blocks_gathered(self) -> int:
        """Blocks whose weights are whole at the same time: the one at work and those fetched ahead."""
        return 1 + self.runtime.sharding.prefetched_blocks

    def staging(self, groups: Iterable[Weights], bucket: Amount) -> Amount:
        """What the reduction of gradients keeps beside them: a place for each, or some buckets of so many bytes."""
        reduced = sum(w.trained for w in groups if w.has_copies)
        each = (
            self.runtime.gradients.reducer_copies * reduced * self.workload.precision.gradient_bytes
        )
        return each + self.runtime.gradients.staging_buckets * np.minimum(
            bucket, reduced * self.gradient_bytes
        )

    def unreduced(self, groups: Iterable[Weights], bucket: Amount) -> Amount:
        """Reduced after backward, gradients are whole until then, when no activation is left; those that are sharded
        and reduced in buckets fill no more than one. No step waits for them where nothing is updated."""
        overlaps = self.runtime.gradients.overlaps_gradients
        if overlaps or not self.workload.optimizer.has_update:
            return 0.0 * bucket
        lost = sum(w.trained * (1.0 - 1.0 / w.shards.gradient) for w in groups)
        return np.minimum(lost * self.gradient_bytes, bucket)

    # --- the update -----------------------------------------------------------------------------------

    def owned(self, groups: Iterable[Weights]) -> Amount:
        """Elements that the optimizer steps on a rank; backward has stepped the rows of tables that are nowhere else."""
        return sum((w.touched - w.rows) / w.shards.optimizer for w in groups)

    def update_traffic(self, groups: Sequence[Weights]) -> Amount:
        """Bytes that an update moves through device memory."""
        optimizer, precision = self.workload.optimizer, self.workload.precision
        owned = self.owned(groups)
        traffic = owned * optimizer.update_bytes(1.0, precision) * self.runtime.update.update_passes
        # rows themselves were read and written with their gradients; their moments come with them
        traffic = traffic + 2 * optimizer.table_state_bytes * sum(w.rows for w in groups)
        if (
            self.runtime.gradients.gradient_bytes is None
            or not self.runtime.gradients.adds_gradients
        ):
            return traffic
        # the accumulation buffer: gradients wider than those an update counts, a pass that clears it, and for clipping
        # one that takes the norm and one that scales
        buffer = sum(w.trained / w.shards.gradient for w in groups) * self.gradient_bytes
        wider = owned * (self.gradient_bytes - precision.gradient_bytes)
        return traffic + wider + buffer * (4.0 if self.runtime.update.clips_gradients else 1.0)

    def update_flops(self, groups: Iterable[Weights]) -> Amount:
        return self.owned(groups) * self.workload.optimizer.update_flops(1.0)

    def offloaded(self, groups: Sequence[Weights]) -> tuple[Amount, Amount, Amount]:
        """An update in host memory: bytes of gradients out, of traffic there, of weights back."""
        owned = self.owned(groups)
        return owned * self.gradient_bytes, self.update_traffic(groups), owned * self.weight_bytes

    def tensors_issued(self, tensors: Amount) -> Amount:
        """For how many tensors hosts issue kernels while devices have nothing else to do: each weight and every fp32
        value kept of it."""
        kept = self.workload.optimizer.memory_bytes(1.0, self.workload.precision) / MOMENT_BYTES
        return np.round(tensors * max(1.0, kept))

    @property
    def waits_for_hosts(self) -> bool:
        return self.runtime.per_tensor_update is not None or self.runtime.host.jitter_seconds > 0

    @property
    def copied_bytes(self) -> float:
        """Per element of a gathered weight that is brought to its place by copies of each owner's shard. Packing counts
        with them: gradients are copied twice on their way into a flat buffer, weights into one, out of it and to their
        places (nanotron's coalesced collectives over lists of tensors)."""
        copies = self.runtime.gather_copies
        if copies is None or not copies.copies_gathered:
            return 0.0
        return 3 * 2 * self.weight_bytes + 2 * 2 * self.gradient_bytes

    # --- what replicas exchange -----------------------------------------------------------------------

    @property
    def reduced_bytes(self) -> float:
        """Per element of what replicas agree on: gradients, or weights."""
        at_gradient = self.runtime.gradients.synchronises_at == "gradient"
        return self.gradient_bytes if at_gradient else self.weight_bytes

    def reduces_blocks(self, bucket: float | None) -> bool:
        """Whether a block's gradients go together; not in a plan that names the size of its buckets."""
        return self.runtime.gradients.reduces_blocks and bucket is None

    def bucket_limits(self, bucket: float | None) -> tuple[float, float]:
        """Bytes of the first bucket and of the others, in a plan that may name their size."""
        first, limit = (
            self.runtime.gradients.first_bucket_bytes,
            self.runtime.gradients.bucket_bytes,
        )
        return (first, limit) if bucket is None else (min(bucket, first), bucket)

    @property
    def refreshes(self) -> bool:
        """Whether weights are other ones after a step, and have to be brought together again."""
        return self.workload.optimizer.has_update

    def refreshed(self, w: Weights) -> Amount:
        """Bytes of weights that are gathered after the update: those whose optimizer states alone are sharded."""
        is_due = (
            self.refreshes
            & (np.asarray(w.shards.optimizer) > 1)
            & (np.asarray(w.shards.weight) == 1)
        )
        return np.where(is_due, w.refreshed * self.weight_bytes, 0.0)

    @property
    def joins_ranks(self) -> bool:
        """Whether a global gradient norm joins all ranks before the update."""
        return self.runtime.update.clips_gradients and self.workload.optimizer.has_update
