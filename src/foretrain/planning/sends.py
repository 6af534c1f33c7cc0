"""What stages send each other, and how long that keeps links busy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.compile.passes.pipeline import boundary_slices
from foretrain.planning.exchanges import Exchange, SendLinks
from foretrain.planning.plan_batch import PlanBatch

Parts = tuple[Floats, Floats, Floats]
"""[plans, parts] forward, whole backward and weight-gradient seconds of a micro-batch."""


@dataclass(frozen=True, eq=False, slots=True)
class Sends:
    """[plans, parts - 1] columns from each part to the next."""

    f: PlanBatch
    size: Floats  # bytes of a rank
    seconds: Floats
    flow: (
        Floats  # those in which links between nodes are busy; inside, sends have lanes of their own
    )

    def take(self, f: PlanBatch, rows: Ints) -> Sends:
        """Some of the plans, which `f` holds."""
        columns = {name: getattr(self, name)[rows] for name in ("size", "seconds", "flow")}
        return replace(self, f=f, **columns)

    @property
    def is_far(self) -> bool:
        """Whether pipelines cross the network."""
        if self.f.stages == 1:
            return False
        nodes = np.asarray(self.f.task.cluster.node_of)[self.f.mesh.groups(("pp",))]
        return bool((nodes != nodes[:, :1]).any())

    def latencies(self, links: SendLinks) -> Floats:
        """[plans, classes of pipelines, parts - 1] seconds of sends in which no link between nodes is busy."""
        f = self.f
        if len(links.classes) == 1:
            return (self.seconds - self.flow)[:, None]
        each = [_moved(f, self.size, f.exchanges.sends(f.mesh, mine)) for mine in links.classes]
        return np.stack([seconds - flow for seconds, flow in each], axis=1)

    def sent(self) -> Floats:
        """[2, plans, stages] seconds in which what a stage sends keeps links between nodes busy: forward and back."""
        return np.stack([self.f.summed(parts) for parts in self.leaving(self.flow)])

    def leaving(self, send: Floats) -> Floats:
        """[2, plans, parts] what each part sends forward and back."""
        both = np.zeros((2, len(send), self.f.share.shape[0]))
        both[0, :, :-1] = both[1, :, 1:] = send
        return both

    def blocking(self, parts: Parts) -> tuple[Parts, Floats]:
        """Where sends block their stage they are part of its work, and nothing else waits for them."""
        if self.f.task.runtime.pipeline.overlaps_pipeline or self.f.stages == 1:
            return parts, self.seconds
        ahead, back = self.leaving(self.seconds)
        return (parts[0] + ahead, parts[1] + back, parts[2]), np.zeros_like(self.seconds)

    def arrivals(self) -> Floats:
        """[2, plans, parts] seconds to gather a boundary that was sent in slices, at every part but the first (or,
        going back, the last)."""
        f = self.f
        out = np.zeros((2, len(f.choices), f.share.shape[0]))
        slices = _slices(f)
        if f.stages == 1 or (slices == 1).all():
            return out
        size = np.where(slices > 1, self.size * slices, 0.0)
        out[0, :, 1:] = out[1, :, :-1] = f.exchange(f.mesh.expand("tp"), "all_gather").seconds(size)
        return out

    def met(self, parts: Parts, send: Floats, is_apart: Bools) -> Floats:
        """[plans, parts - 1] sends that share the links out of a node with those that go the other way: longer by what
        the shorter of the two takes, as often as the links are busy. `is_apart`: [plans] which never meet."""
        f, flow = self.f, self.flow
        if f.chunks > 1 or not send.any() or not flow.any():
            return send
        other = np.zeros((len(flow), flow.shape[1] + 2))
        other[:, 1:-1] = flow
        # what leaves with a send forward goes back from the same part; with one back, forward from the next
        longer = np.minimum(flow, other[:, :-2]) + np.minimum(flow, other[:, 2:])
        load = self.sent().sum(axis=0).max(axis=1)
        work = parts[0] + parts[1]
        whole = work.sum(axis=1) + 2.0 * send.sum(axis=1)
        # a loop turns in (whole + longer · load / turn) / stages
        root = np.sqrt(whole**2 + 4.0 * f.stages * load * longer.sum(axis=1))
        turn = np.maximum((whole + root) / (2.0 * f.stages), np.maximum(load, work.max(axis=1)))
        busy = np.where(is_apart, 0.0, load / np.maximum(turn, 1e-12))
        return np.asarray(send + 0.5 * longer * busy[:, None])

    def turns(self, parts: Parts, send: Floats) -> Floats:
        """[plans] no sooner than the links out of every domain have carried what its stages send, forward and back, and
        one micro-batch has come through. Chunks take turns: each goes forward beside another that goes back, the next
        turn begins when what both have sent is there; where every stage has a domain for itself, nothing is on its way
        while forward work is done."""
        f = self.f
        if f.stages == 1 or not send.any():
            return np.zeros(len(f.choices))
        homes = f.task.network.domain_of[f.mesh.groups(("pp",))[0]]
        home = np.unique(homes, return_inverse=True)[1].ravel()
        at = home[f.pieces.stage_of]
        is_far = at[:-1] != at[1:]
        ahead, back = (
            f.by_chunk(leaves) @ np.eye(int(home.max()) + 1)[home]
            for leaves in self.leaving(np.where(is_far, send, 0.0))
        )
        turns = (ahead + back[:, ::-1]).max(axis=2).sum(axis=1)
        if f.chunks > 1 and is_far.all():
            turns = turns + np.where(turns > 0.0, f.summed(parts[0]).max(axis=1), 0.0)
        through = f.first_chunk(parts[0] + parts[1]).sum(axis=1)
        return np.asarray(f.counts * turns + through)


def _slices(f: PlanBatch) -> Floats:
    """[plans, 1] slices that a boundary is sent in."""
    tp = int(f.choices.tp[0])
    whole, cut = (boundary_slices(f.task.runtime, tp, is_cut) for is_cut in (False, True))
    return np.where(f.choices.sp > 0, float(cut), float(whole))[:, None]


def sends(f: PlanBatch) -> Sends:
    """Of the plans of a fleet."""
    size = f.layers.boundary[f.rows][:, f.last_blocks()[:-1]] / _slices(f)
    size[:, f.pieces.hops == 0] = 0.0
    return Sends(f, size, *_moved(f, size, f.exchanges.sends(f.mesh) if f.stages > 1 else []))


def _moved(f: PlanBatch, size: Floats, ways: Sequence[Exchange]) -> tuple[Floats, Floats]:
    """[plans, parts - 1] seconds, and those in which links between nodes are busy."""
    seconds, flow = np.zeros_like(size), np.zeros_like(size)
    stage, hops = f.pieces.stage_of, f.pieces.hops
    # going back over a stage's neighbour takes as long as coming from it
    over = (
        [ways[stage[part] if hops[part] > 0 else stage[part + 1]] for part in range(len(hops))]
        if ways
        else []
    )
    for way in dict.fromkeys(ways):
        mine = [part for part, hop in enumerate(hops.tolist()) if hop and over[part] is way]
        seconds[:, mine] = way.seconds(size[:, mine])
        if way.is_network:
            flow[:, mine] = way.flow(size[:, mine])
    return seconds, flow
