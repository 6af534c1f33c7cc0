"""Closed forms for the step time of plans that share a mesh.

What only depends on the weights that ranks hold and on how those are split is worked out once for all plans that have
it in common (`replicas.py`); what offloading changes is added at the end.

Links are shared fairly, so a link that is never idle is done after its whole load however the load came: where
exchanges of several stages meet on one, a pipeline fills and drains at the pace of a stage alone and runs at that of
all stages together.
"""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from foretrain.cost import interference
from foretrain.planning import pipelines
from foretrain.planning.curves import Curve
from foretrain.planning.fleet import KINDS, Fleet
from foretrain.planning.replicas import Replicas
from foretrain.planning.updates import update

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Parts = tuple[Floats, Floats, Floats]
"""[plans, parts] forward, whole backward and weight-gradient seconds of a micro-batch."""


class Times:
    """The step time of one fleet."""

    def __init__(self, ships: Fleet, update_seconds: Curve) -> None:
        self.all, self.update_seconds = ships, update_seconds
        c = ships.choices
        self.f, self.stands_for = ships.distinct(ships.rows, c.schedule, c.zero, c.buckets)
        c = self.f.choices
        few, self.few = self.f.distinct(self.f.weights, c.zero, c.buckets)
        self.replicas = Replicas(few)
        self.task, self.runtime = ships.task, ships.task.runtime
        self.slow, self.slowed = self._interference()
        self.moved = self.replicas.scatters()[self.few]
        self.names = np.array(c.palette.schedule)[c.schedule]

    def columns(self) -> dict[str, Floats]:
        f = self.f
        send = self._send()
        parts, wait = self._blocked(self._blocks(True), send)
        seconds = self._pipelined(parts, wait)
        work = self._work(parts)
        split = np.flatnonzero(f.choices.zero >= 2)
        if len(split):
            those = self._of(split)
            together = those._work(those._blocked(those._blocks(False), send[split])[0])
            seconds[split] += together - work[split]
            work[split] = together
        seconds = np.maximum(seconds, self._sending(parts, wait))
        data = np.maximum(self._reductions(parts[1], wait), self._streaming(parts, wait) - seconds)
        starts, gathers = self._parameters(parts[0], wait)
        there = self.stands_for
        end = (self._update() + gathers[there]).max(axis=1)
        end += self.replicas.barriers()[self.few][there]
        data = (data + starts)[there]
        return {
            "seconds": seconds[there] + data + end,
            "work": work[there],
            "pipeline": (seconds - work)[there],
            "data": data,
            "update": end,
        }

    def _of(self, rows: Ints) -> Times:
        """Some of the plans."""
        some = copy(self)
        some.f, some.few = self.f.take(rows), self.few[rows]
        some.moved, some.names = self.moved[rows], self.names[rows]
        return some

    def _work(self, parts: Parts) -> Floats:
        return np.asarray((self.f.counts[:, None] * self.f.summed(parts[0] + parts[1])).max(axis=1))

    def _pipelined(self, parts: Parts, send: Floats) -> Floats:
        f = self.f
        forward, backward, weight = parts
        seconds = np.zeros(len(f.choices))
        for name in np.unique(self.names).tolist():
            rows = np.flatnonzero(self.names == name)
            splits = name == "zb-h1" and f.stages > 1
            columns = pipelines.Pipelines(
                f.stages,
                forward[rows],
                (backward[rows] - weight[rows]) if splits else backward[rows],
                weight[rows] if splits else np.zeros_like(weight[rows]),
                send[rows],
                f.counts[rows],
            )
            seconds[rows] = pipelines.seconds(name if f.stages > 1 else "1f1b", columns)
        return seconds

    def _sending(self, parts: Parts, send: Floats) -> Floats:
        """No sooner than the links out of every domain have carried what its stages send, forward and back, and one
        micro-batch has come through."""
        f = self.f
        if f.stages == 1 or not send.any():
            return np.zeros(len(f.choices))
        homes = self.task.network.domain_of[f.mesh.groups(("pp",))[0]]
        home = np.unique(homes, return_inverse=True)[1].reshape(-1)
        place = np.arange(send.shape[1])
        here, there = home[place % f.stages], home[(place + 1) % f.stages]
        far = np.flatnonzero(here != there)
        leaves = np.zeros((len(place), int(home.max()) + 1))
        leaves[far, here[far]] = 1.0  # going forward …
        leaves[far, there[far]] = 1.0  # … and back
        load = send @ leaves
        through = (parts[0] + parts[1]).reshape(len(send), f.chunks, f.stages)[:, 0].sum(axis=1)
        return np.asarray(f.counts * load.max(axis=1) + through)

    def _blocks(self, alone: bool) -> Parts:
        """A stage alone, as while a pipeline fills, or with all others and what is reduced meanwhile."""
        f, layers = self.f, self.f.layers
        forward, backward, weight = self._kernels()
        # where nothing is fetched ahead, stages that share links seldom meet
        is_lone = self.replicas.shares_links and (alone or self.runtime.prefetched_blocks < 1)
        gather = self._widened(self.replicas.gathers(is_lone))
        again = gather
        if gather is not None:
            rerun = Replicas(f).reruns(is_lone)
            again = gather if rerun is None else gather + rerun
        none = np.zeros(len(f.choices))
        beside = (none, none) if alone else self._beside(gather, again)
        if gather is not None or beside[0].any() or beside[1].any():
            plain = (forward, backward)
            if gather is not None:
                plain = (
                    self._fetching(forward, None, layers.wire_forward, beside[0]),
                    self._fetching(backward, None, layers.wire_backward, beside[1]),
                )
            forward = self._fetching(forward, gather, layers.wire_forward, beside[0])
            backward = self._fetching(backward, again, layers.wire_backward, beside[1])
        parts = [f.seconds_by_part(c) for c in (forward, backward, weight)]
        if gather is not None and again is not None and self.runtime.prefetched_blocks > 0:
            # nothing runs beside the gather of the block a part begins with, none beside the block it ends with
            first, last = np.argmax(f.share > 0, axis=1), self._last_blocks()
            met = [1.0 + np.minimum(b, 1.0)[:, None] * self.replicas.crosses for b in beside]
            parts[0] += (gather * met[0])[:, first] - (forward - plain[0]).min(axis=1)[:, last]
            parts[1] += (again * met[1])[:, last] - (backward - plain[1]).min(axis=1)[:, first]
        parts = self._issued(parts)
        arrive = self._arrivals()
        return parts[0] + arrive[0], parts[1] + arrive[1], parts[2]

    def _kernels(self) -> Parts:
        """[plans, kinds of devices, blocks] forward, backward and weight-gradient seconds, with the copies that split
        weights need."""
        f, layers = self.f, self.f.layers
        forward, backward, weight = (
            column[f.rows] for column in (layers.forward, layers.backward, layers.weight)
        )
        if not layers.copied.any():
            return forward, backward, weight
        copied = layers.copied[f.rows] * (f.choices.zero >= 3)[:, None, None, None]
        out, back = copied[..., 0], copied[..., 1]
        return forward + out, backward + out + back, weight + back

    def _beside(self, gather: Floats | None, again: Floats | None) -> tuple[Floats, Floats]:
        """[plans] how long gradients of other micro-batches are reduced beside forward and beside backward work, over
        that, where ZeRO splits them. Where backward steps follow one another, beside backward work alone."""
        f = self.f
        ahead, back = (
            (column[f.rows].max(axis=1) @ f.share.T).sum(axis=1)
            for column in (f.layers.forward, f.layers.backward)
        )
        kernels = ahead + back
        if gather is not None and again is not None:
            ahead = np.maximum(ahead, (gather @ f.share.T).sum(axis=1))
            back = np.maximum(back, (again @ f.share.T).sum(axis=1))
        meets = np.minimum(1.0, kernels / np.maximum(ahead + back, 1e-12))
        moved = self.moved.sum(axis=1) * (1.0 + (self.slowed - 1.0) * meets)
        only_back = (self.names == "gpipe") & (f.stages > 1)
        both = np.minimum(self.slow, moved / np.maximum(ahead + back, 1e-12))
        one = np.minimum(self.slow, moved / np.maximum(back, 1e-12))
        return np.where(only_back, 0.0, both), np.where(only_back, one, both)

    def _widened(self, column: Floats | None) -> Floats | None:
        return None if column is None else column[self.few]

    def _last_blocks(self) -> Ints:
        share = self.f.share
        return np.asarray(share.shape[1] - 1 - np.argmax(share[:, ::-1] > 0, axis=1))

    def _issued(self, parts: list[Floats]) -> list[Floats]:
        """No faster than hosts issue kernels: step by step where a host waits for what a step receives, else over
        a micro-batch."""
        f, layers = self.f, self.f.layers
        if not layers.host_forward.any():
            return parts
        host = [
            f.by_part(c) for c in (layers.host_forward, layers.host_backward, layers.host_weight)
        ]
        if self.runtime.host_delay_on_network and self._sends_far():
            delays = (layers.late_forward, layers.late_backward, layers.late_weight)
            each = self.runtime.host_delay_on_network * f.choices.tp[:, None]
            host = [h + f.by_part(c) * each for h, c in zip(host, delays, strict=True)]
        if self.runtime.host_blocks_on_pipeline and f.stages > 1:
            lead = layers.lead[f.rows].max(axis=1)[:, None]
            slow = [np.maximum(device, issue) for device, issue in zip(parts, host, strict=True)]
            split = np.maximum(parts[1] - parts[2], host[1] - host[2]) + slow[2]
            is_split = (self.names == "zb-h1")[:, None]
            return [slow[0] + lead, np.where(is_split, split, slow[1]) + lead, slow[2]]
        device = np.maximum(parts[0] + parts[1], 1e-12)
        late = np.maximum(1.0, (host[0] + host[1]) / device)
        return [part * late for part in parts]

    def _fetching(
        self, kernels: Floats, moving: Floats | None, wire: Floats, beside: Floats
    ) -> Floats:
        """Blocks beside what is fetched for the next: the longer of the two, kernels slowed meanwhile. On a network,
        collectives of a block and what is fetched share links, among themselves and with reductions beside them."""
        same = wire[self.f.rows][:, None, :, 1] if self.replicas.crosses else np.zeros(1)
        beside = beside[:, None, None]
        free = (kernels - same) * (1.0 + beside * (1.0 - 1.0 / self.slow))
        beside = np.minimum(beside, 1.0)
        same = same * (1.0 + beside)
        if moving is None:
            return np.asarray(free + same)
        moving = moving[:, None, :] * (1.0 + beside * self.replicas.crosses)
        if self.runtime.prefetched_blocks < 1:
            return np.asarray(free + same + moving)
        return np.asarray(self._pair(free, moving) + same)

    def _pair(self, kernels: Floats, moving: Floats) -> Floats:
        """Two that start together and slow each other, until both are done."""
        first = np.minimum(kernels * self.slow, moving * self.slowed)
        left = kernels - first / self.slow + moving - first / self.slowed
        return np.asarray(first + left)

    def _streaming(self, parts: Parts, send: Floats) -> Floats:
        """[plans] when the reductions of all micro-batches are done, where ZeRO splits gradients: they follow one
        another from the first backward step on, and wait for nobody."""
        f = self.f
        is_split = f.choices.zero >= 2
        if not is_split.any():
            return np.zeros(len(f.choices))
        only_back = ((self.names == "gpipe") & (f.stages > 1))[:, None]
        moved = f.summed(self.moved)
        wire = np.zeros_like(moved)
        if self.replicas.crosses:
            ahead, back = (
                f.by_stage(column[:, :, 1])
                for column in (f.layers.wire_forward, f.layers.wire_backward)
            )
            fetched = self._widened(self.replicas.gathers(False))
            each = np.zeros_like(moved) if fetched is None else f.summed(fetched @ f.share.T)
            wire = back + each + np.where(only_back, 0.0, ahead + each)
        forward = f.summed(parts[0])
        work = np.maximum(forward + f.summed(parts[1]) - wire, 0.0)
        ways = parts[0].sum(axis=1, keepdims=True) + 2.0 * send.sum(axis=1, keepdims=True)
        last = parts[1].reshape(len(moved), f.chunks, f.stages)[:, -1]
        ways = ways + last.sum(axis=1, keepdims=True) - np.cumsum(last, axis=1)
        begin = np.where(only_back, ways + (f.counts[:, None] - 1) * forward, ways)
        kernels = f.counts[:, None] * np.where(only_back, np.maximum(work - forward, 0.0), work)
        busy = np.minimum(kernels, f.counts[:, None] * moved * self.slowed)
        link = f.counts[:, None] * (moved + wire) + busy * (1.0 - 1.0 / self.slowed)
        return np.where(is_split, (begin + link).max(axis=1), 0.0)

    def _interference(self) -> tuple[float, float]:
        """Factors on kernels and on what moves between replicas beside them."""
        if not self.runtime.overlap_slows:
            return 1.0, 1.0
        crosses = self.replicas.crosses
        tables = [interference.factors(d, crosses) for d in self.task.cluster.devices]
        compute, moving = interference.COMPUTE, interference.COLLECTIVE
        return (
            max(float(t[compute, moving]) for t in tables),
            max(float(t[moving, compute]) for t in tables),
        )

    def _boundary(self) -> Floats:
        """[plans, parts - 1] bytes a rank sends from each part to the next."""
        f = self.f
        size = f.layers.boundary[f.rows][:, self._last_blocks()[:-1]]
        if self.runtime.scatters_pipeline:
            size = np.where((f.choices.sp > 0)[:, None], size, size / f.choices.tp[:, None])
        return np.asarray(size)

    def _sends_far(self) -> bool:
        """Whether pipelines cross the network."""
        if self.f.stages == 1:
            return False
        nodes = np.asarray(self.task.cluster.node_of)[self.f.mesh.groups(("pp",))]
        return bool((nodes != nodes[:, :1]).any())

    def _send(self) -> Floats:
        f = self.f
        size = self._boundary()
        if f.stages == 1:
            return np.zeros_like(size)
        ways = f.exchanges.sends(f.mesh)
        seconds = np.empty_like(size)
        for way in dict.fromkeys(ways):
            mine = [part for part in range(size.shape[1]) if ways[part % f.stages] is way]
            seconds[:, mine] = way.seconds(size[:, mine])
        return seconds

    def _blocked(self, parts: Parts, send: Floats) -> tuple[Parts, Floats]:
        """Where sends block their stage they are part of its work."""
        if self.runtime.overlaps_pipeline or self.f.stages == 1:
            return parts, send
        forward, backward = parts[0].copy(), parts[1].copy()
        forward[:, :-1] += send
        backward[:, 1:] += send
        return (forward, backward, parts[2]), np.zeros_like(send)

    def _arrivals(self) -> tuple[Floats, Floats]:
        """Gathering a boundary that was sent in slices, at every part but the first (or, going back, the last)."""
        f = self.f
        out = np.zeros((2, len(f.choices), f.share.shape[0]))
        tp = int(f.choices.tp[0])
        if not self.runtime.scatters_pipeline or f.stages == 1 or tp == 1:
            return out[0], out[1]
        size = np.where((f.choices.sp > 0)[:, None], 0.0, self._boundary() * tp)
        seconds = f.exchange(f.mesh.expand("tp"), "all_gather").seconds(size)
        out[0, :, 1:] = seconds
        out[1, :, :-1] = seconds
        return out[0], out[1]

    @staticmethod
    def _ways(stages: Floats, send: Floats) -> Floats:
        """[plans, stages] seconds a micro-batch takes over the stages before each."""
        way = np.cumsum(stages, axis=1) - stages
        way[:, 1:] += np.cumsum(send[:, : stages.shape[1] - 1], axis=1)
        return np.asarray(way)

    def _first_chunk(self, parts: Floats) -> Floats:
        return parts.reshape(len(parts), self.f.chunks, self.f.stages)[:, 0]

    def _reductions(self, backward: Floats, send: Floats) -> Floats:
        """What of the gradients' reduction outlasts the last backward step of the last stage to end."""
        first = self._first_chunk(backward)
        tail = np.zeros_like(first)
        for kind in KINDS:
            found = self.replicas.reductions(kind)
            if found is not None:
                each, pieces = (column[self.few] for column in found)
                tail += self._exposed(each, pieces, first, kind)
        return np.asarray((tail - self._ways(first, send)).max(axis=1).clip(min=0.0))

    def _exposed(self, each: Floats, pieces: Floats, backward: Floats, kind: int) -> Floats:
        """Buckets follow one another once backward has made them: those of a chunk while the chunks before it are at
        work, those of a block while the blocks before it are."""
        f = self.f
        total = each * pieces
        of_chunk = total / f.chunks
        several = np.minimum(f.stages, f.counts)[:, None]
        early = total - (f.chunks - 1) * several * backward
        if not self.runtime.overlaps_gradients:
            return np.maximum(of_chunk, early)
        late = np.zeros_like(total)
        for done, left in self._by_block(kind, backward):
            late = np.maximum(late, self._left(of_chunk * done, left))
        late = np.maximum(np.maximum(late, np.minimum(each, of_chunk)), early)
        if self.runtime.overlaps_scatters:
            return late
        return np.where((f.choices.zero >= 1)[:, None], np.maximum(of_chunk, early), late)

    def _left(self, moving: Floats, room: Floats) -> Floats:
        """What outlasts so much work, and by how much it makes that longer."""
        hidden = np.minimum(room * self.slow, moving * self.slowed)
        return np.asarray(moving - hidden / self.slowed + hidden * (1.0 - 1.0 / self.slow))

    def _by_block(self, kind: int, backward: Floats) -> list[tuple[Floats, Floats]]:
        """[plans, stages] for every kind of block of a stage's first chunk: the share of gradients that are not yet
        made when the first of its repetitions is done, its own among them, and the work left then."""
        f = self.f
        share = f.share[: f.stages]
        bytes_ = f.elements("elements", kind)[f.rows][:, None, :] * share[None]
        work = f.layers.backward[f.rows].max(axis=1)[:, None, :] * share[None]
        sums = [np.maximum(column.sum(axis=2), 1e-30) for column in (bytes_, work)]
        done = np.cumsum(bytes_, axis=2) / sums[0][:, :, None]
        rest = np.cumsum(work, axis=2) - work / np.maximum(share, 1.0)[None]
        rest *= (backward / sums[1])[:, :, None]
        return [(done[:, :, b], rest[:, :, b]) for b in range(share.shape[1]) if share[:, b].any()]

    def _parameters(self, forward: Floats, send: Floats) -> tuple[Floats, Floats]:
        """Gathering updated weights: what it delays the next forward pass by, or adds to the update."""
        f = self.f
        gathers = self.replicas.parameters()[self.few]
        if not self.runtime.overlaps_parameter_gather:
            return np.zeros(len(f.choices)), gathers
        first = self._first_chunk(forward)
        blocks = np.maximum(f.share.sum(axis=1).reshape(f.chunks, f.stages).sum(axis=0), 1.0)
        room = first * (blocks - 1.0) / blocks
        late = np.maximum(gathers / blocks, gathers / f.chunks - room)
        return np.asarray((late - self._ways(first, send)).max(axis=1).clip(min=0.0)), gathers * 0.0

    def _update(self) -> Floats:
        """[plans of the whole fleet, stages] seconds of the optimizer."""
        c = self.all.choices
        few, inverse = self.all.distinct(self.all.weights, c.zero, c.offload)
        return update(few, self.update_seconds)[inverse]
