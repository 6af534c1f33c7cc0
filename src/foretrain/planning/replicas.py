"""What replicas exchange: gathers of split weights and reductions of gradients, by the weights that ranks hold.

None of it depends on micro-batches or recomputation, so a few rows stand for all plans of a fleet.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foretrain.compile.execution import Communicator
from foretrain.cost.calibration.efficiencies import table
from foretrain.planning.fleet import KINDS, Fleet

Floats = NDArray[np.float64]


class Replicas:
    """Columns over the plans of a fleet. `alone`: while other stages keep quiet."""

    def __init__(self, fleet: Fleet) -> None:
        self.f = fleet
        self.runtime = fleet.task.runtime
        self.precision = fleet.task.workload.precision
        self.gradient_bytes = self.runtime.gradient_bytes or self.precision.gradient_bytes
        self._gathers: dict[bool, Floats | None] = {}

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
        """[plans] how much of what the heaviest stage exchanges the others do, on average: where stages share links and
        one holds most of the weights, it has the links nearly for itself."""
        f = self.f
        sizes = sum(f.by_stage(f.elements("elements", kind)) for kind in KINDS)
        most = np.maximum(np.max(sizes, axis=1), 1.0)
        return np.asarray((np.sum(sizes, axis=1) - most) / (most * max(f.stages - 1, 1)))

    def _among(self, lone: Floats, crowded: Floats) -> Floats:
        """A stage among the others."""
        return np.asarray(lone + (crowded - lone) * self.evenness[:, None])

    @cached_property
    def crosses(self) -> bool:
        """Whether copies of weights lie on several nodes."""
        axes = self.f.axes_of(0)
        return bool(axes) and self.f.exchange(axes, "all_reduce").is_network

    def gathers(self, alone: bool) -> Floats | None:
        """[plans, blocks] seconds to gather a block's weights, where ZeRO splits them."""
        if alone not in self._gathers:
            found = self._gathered("sent", alone)
            if found is not None and not alone and self.shares_links:
                lone = self.gathers(True)
                assert lone is not None
                found = self._among(lone, found)
            self._gathers[alone] = found
        return self._gathers[alone]

    def reruns(self, alone: bool) -> Floats | None:
        """… and those that ops which run again read once more."""
        return self._gathered("rerun", alone) if self.runtime.gathers_rerun else None

    def _gathered(self, name: str, alone: bool) -> Floats | None:
        f = self.f
        is_split = f.choices.zero >= 3
        if not is_split.any() or not any(f.owners_of(kind) for kind in KINDS):
            return None
        total = np.zeros((len(f.choices), f.share.shape[1]))
        for kind in KINDS:
            owners, elements = f.owners_of(kind), f.elements(name, kind)[f.rows]
            if owners and elements.any():
                size = elements * self.precision.weight_bytes
                gather = f.exchange(owners, "all_gather", alone)
                found = gather.seconds(size.ravel()).reshape(size.shape)
                total += np.where(size > 0, found + self._listed(size, owners), 0.0)
        return np.where(is_split[:, None], total, 0.0)

    def _listed(self, size: Floats, owners: tuple[str, ...]) -> Floats:
        """A gather into a list of every rank's part of every weight: a host names them, and they are copied."""
        calls = self.runtime.calls_per_part
        if not calls:
            return np.zeros_like(size)
        parts = self.f.layers.large[self.f.rows] * self.f.mesh.size(*owners)
        named = parts * calls * self.runtime.host_seconds_per_kernel
        return np.asarray(named + self._fused(parts, size))

    def _fused(self, tensors: Floats, size: Floats) -> Floats:
        """Copies of several tensors into a fusion buffer and out of it, on the slowest device."""
        slowest = np.zeros_like(size)
        for device in self.f.task.cluster.devices:
            reached, _ = table().of(device)
            moved = 2.0 * size / (device.memory_bandwidth * reached.memory)
            slowest = np.maximum(slowest, 2.0 * (tensors * reached.start_seconds + moved))
        return slowest

    def scatters(self) -> Floats:
        """[plans, parts] seconds to reduce the gradients of a micro-batch, where ZeRO splits those."""
        found = self._scattered(False)
        return self._among(self._scattered(True), found) if self.shares_links else found

    def _scattered(self, alone: bool) -> Floats:
        f = self.f
        is_split = (f.choices.zero >= 2)[:, None]
        if not is_split.any():
            return np.zeros((len(f.choices), f.share.shape[0]))
        shares, of = np.unique(f.share, axis=0, return_inverse=True)  # parts that hold the same
        total = np.zeros((len(f.choices), len(shares)))
        for kind in KINDS:
            if f.owners_of(kind):
                size = f.elements("elements", kind)[f.rows] @ shares.T * self.gradient_bytes
                each, pieces = self._in_pieces(kind, size, shares, alone)
                total += each * pieces
        return np.where(is_split, total, 0.0)[:, of.reshape(-1)]

    def reductions(self, kind: int) -> tuple[Floats, Floats] | None:
        """[plans, stages] seconds of a bucket of gradients, and how many there are.

        Going back, stages end one after the other: where they share links, one has those for itself that the stages
        behind it are done with.
        """
        found = self._reductions(kind, False)
        if found is None or not self.shares_links:
            return found
        lone = self._reductions(kind, True)
        assert lone is not None
        among = self._among(lone[0], found[0]) / np.maximum(lone[0], 1e-12)
        ends = np.arange(1.0, self.f.stages + 1)[None, :]
        return lone[0] * np.clip(among, 1.0, ends), found[1]

    def _reductions(self, kind: int, alone: bool) -> tuple[Floats, Floats] | None:
        f = self.f
        if not f.axes_of(kind):
            return None
        size = f.by_stage(f.elements("elements", kind)) * self.gradient_bytes
        if not size.any():
            return None
        share = f.share.reshape(f.chunks, f.stages, -1).sum(axis=0)
        return self._in_pieces(kind, size, share, alone)

    def _in_pieces(
        self, kind: int, size: Floats, share: Floats, alone: bool
    ) -> tuple[Floats, Floats]:
        """`share`: [columns of size, blocks] repetitions."""
        pieces = self._pieces(size, share)
        each = (size / pieces).ravel()
        owned = np.repeat(self.f.choices.zero >= 1, size.shape[1])
        found = self._reduced(kind, each, False, alone)
        if owned.any() and self.runtime.scatters_gradients:
            found = np.where(owned, self._reduced(kind, each, True, alone), found)
        return found.reshape(size.shape), pieces

    def _pieces(self, size: Floats, share: Floats) -> Floats:
        """Buckets that gradients of so many bytes are reduced in: as many as fill up, a block's together, or a tensor's
        that is larger than a bucket."""
        f, runtime = self.f, self.runtime
        if not runtime.overlaps_gradients:
            return np.ones_like(size)
        chosen = np.array([np.nan if b is None else b for b in f.choices.palette.buckets])
        limit = chosen[f.choices.buckets][:, None]
        found = np.ceil(size / np.where(np.isnan(limit), runtime.bucket_bytes, limit))
        found = np.minimum(found, f.layers.tensors[f.rows] @ share.T)
        if runtime.reduces_blocks:
            found = np.where(np.isnan(limit), share.sum(axis=1)[None, :], found)
        return np.asarray(np.maximum(found, 1.0))

    def _reduced(self, kind: int, sizes: Floats, owned: bool, alone: bool) -> Floats:
        """Seconds to add up gradients of so many bytes, for their owners or for all."""
        f, axes = self.f, self.f.axes_of(kind)
        owners = f.owners_of(kind) if owned else ()
        rest = tuple(axis for axis in axes if axis not in owners)
        total = np.zeros(len(sizes))
        if owners:
            total += f.exchange(owners, "reduce_scatter", alone).seconds(sizes)
            sizes = sizes / f.mesh.size(*owners)
        if rest:
            total += f.exchange(rest, self.runtime.synchronises, alone).seconds(sizes)
        return total

    def parameters(self) -> Floats:
        """[plans, stages] seconds to gather updated weights."""
        f = self.f
        gathers = np.zeros((len(f.choices), f.stages))
        is_due = (f.choices.zero >= 1) & (f.choices.zero < 3)
        for kind in KINDS:
            owners = f.owners_of(kind)
            size = f.by_stage(f.elements("sent", kind)) * self.precision.weight_bytes
            if not owners or not size.any() or not f.task.workload.optimizer.has_update:
                continue
            found = f.exchange(owners, "all_gather").seconds(size.ravel()).reshape(size.shape)
            if self.shares_links:
                lone = f.exchange(owners, "all_gather", True).seconds(size.ravel())
                found = self._among(lone.reshape(size.shape), found)
            gathers += np.where(is_due[:, None], found, 0.0)
        return gathers

    def barriers(self) -> Floats:
        """[plans] tied weights between the ends of a pipeline, and the norm that joins all ranks before the update."""
        f, total = self.f, np.zeros(len(self.f.choices))
        axes = tuple(axis for axis, size in f.mesh.axes if size > 1)
        tied = f.layers.tied[f.rows].sum(axis=1)
        if f.stages > 1 and tied.any():
            ends = f.exchanges.between(f.mesh, Communicator(("pp",), "ends"), "all_reduce")
            total += ends.seconds(tied * self.gradient_bytes)
        if self.runtime.clips_gradients and axes and f.task.workload.optimizer.has_update:
            total += f.exchange(axes, "all_reduce").seconds(np.full(len(total), 4.0))
        return total
