"""Flow mapping: between which ranks an algorithm's flows run on a given cluster, and how far apart those are.

Algorithms know ranks and domains only. On switched networks nodes are numbered leaf by leaf, and rings in the
order of ranks are what libraries lay. Where nodes are cabled to each other, or the user drew the network, rings
follow the cables (`collectives.cabling`).
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.fabric import Routes
from foretrain.compile.passes.fold import Subgroups
from foretrain.cost.collectives.base import Algorithm, Flows
from foretrain.cost.collectives.cabling import (
    MOST_RINGS,
    MOST_SEARCHED,
    MOST_WALKED,
    Lap,
    depth_first,
    laps,
    many_laps,
)
from foretrain.cost.collectives.graphs import DRAWN
from foretrain.errors import InputError

SWITCHED = ("star", "fat-tree", "rail-optimised", "hierarchical", "dragonfly")
RINGS = ("ring", "hierarchical ")


class FlowMapping:
    """Flows of algorithms over one cluster's links; `capacity` is what each of them reaches."""

    def __init__(self, cluster: Cluster, capacity: Floats) -> None:
        self.topology = cluster.topology
        self.capacity = capacity
        self.domain_of = np.asarray(cluster.domain_of, dtype=np.int64)
        self.first = np.asarray(cluster.layout.domain_first, dtype=np.int64)
        self.fabric, self.layout = cluster.network_fabric, cluster.layout
        is_joined = self.fabric is not None
        self.follows_cables = is_joined and cluster.network.topology not in SWITCHED
        self.has_delays = is_joined and cluster.network.topology != "star"
        ports = self.layout.port_count
        usual = self.layout.port_latency[self.layout.port_of] if ports else 0.0
        self.usual = np.broadcast_to(usual, self.domain_of.shape)
        self._cables: str | None = None
        self._known: dict[bytes, tuple[Lap, ...]] = {}

    def flows(self, algorithm: Algorithm, groups: Ints) -> Flows:
        """The algorithm's flows; where rings follow cables, of several rings with a share each."""
        if not self.follows_cables or not algorithm.pattern.startswith(RINGS):
            return algorithm.flows(groups, self.domain_of)
        homes = np.sort(self.domain_of[groups], axis=1)
        sets, kind = np.unique(homes, axis=0, return_inverse=True)
        parts = []
        for number, row in enumerate(sets):
            rows = np.flatnonzero(kind.ravel() == number)
            for lap in self._laps(found := np.unique(row)):
                parts.append(self._along(algorithm, groups, rows, found[lap.order], lap.share))
        return Flows.joined(parts)

    def subgroups(self, algorithm: Algorithm, groups: Ints) -> Subgroups | None:
        """Who sends by itself, and who receives from whom; None where all members of a group move together."""
        if algorithm.senders == "all":
            return None
        of = np.arange(len(self.domain_of))
        if algorithm.senders == "domains":
            group = np.zeros_like(of)
            group[groups] = np.arange(len(groups))[:, None]
            homes = np.stack([group, self.domain_of], axis=1)
            of = np.unique(homes, axis=0, return_inverse=True)[1].ravel()
        flows = self.flows(algorithm, groups)
        pairs = np.unique(np.stack([of[flows.src], of[flows.dst]]), axis=1)
        src, dst = pairs[:, pairs[0] != pairs[1]]
        return Subgroups(of, src, dst)

    def _along(
        self, algorithm: Algorithm, groups: Ints, rows: Ints, homes: Ints, share: float
    ) -> Flows:
        """The flows of some groups as if their domains were numbered along a ring."""
        place = np.full(len(self.first), -1, dtype=np.int64)
        place[homes] = np.arange(len(homes))
        place_of = place[self.domain_of]
        order = np.argsort(place_of[groups[rows]], axis=1, kind="stable")
        found = algorithm.flows(np.take_along_axis(groups[rows], order, axis=1), place_of)
        return Flows(rows[found.group], found.src, found.dst, found.weight * share)

    def _laps(self, homes: Ints) -> tuple[Lap, ...]:
        count, ranks = len(homes), self.first[homes]
        if count < 3:
            return (Lap(np.arange(count), 1.0),)
        if count > MOST_SEARCHED:
            return self._walked(homes)
        start, goal = np.divmod(np.arange(count * count), count)
        routes = self.topology.routes(ranks[start], ranks[goal])
        # Groups that see the same distances get the same rings, so that they stay alike when folded.
        far = np.bincount(routes.owner, routes.share / self.capacity[routes.links], count * count)
        key = far.astype(np.float32).tobytes()
        if key not in self._known:
            self._known[key] = laps(count, routes, self.capacity)
        return self._known[key]

    def _walked(self, homes: Ints) -> tuple[Lap, ...]:
        """Rings of a large group: walks over the whole network, which pass its domains in some order."""
        key = homes.tobytes()
        if key in self._known or self.fabric is None:
            return self._known.get(key, (Lap(np.arange(len(homes)), 1.0),))
        fabric, ranks = self.fabric, self.first[homes]
        door = fabric.port_vertex[self.layout.port_of[ranks]]
        onward: list[list[tuple[int, int]]] = [[] for _ in range(fabric.vertices)]
        ends = zip(fabric.tail.tolist(), fabric.head.tolist(), strict=True)
        for cable, (tail, head) in enumerate(ends):
            onward[tail].append((head, cable))
        most = int(np.clip(MOST_WALKED // max(fabric.links, 1), 2, MOST_RINGS))

        def walk(number: int, busy: Floats) -> Ints:
            start = int(door[number * len(door) // most])
            price = busy[-fabric.links :].tolist()  # the network's links are the last
            place = np.full(fabric.vertices, fabric.vertices, dtype=np.int64)
            met = depth_first(onward, start, price)
            place[met] = np.arange(len(met))
            return np.argsort(place[door], kind="stable")

        def around(order: Ints) -> Routes:
            return self.topology.routes(ranks[order], np.roll(ranks[order], -1))

        self._known[key] = many_laps(len(homes), walk, around, self.capacity, most)
        return self._known[key]

    def named(self, collective: str) -> str:
        """A collective whose graph is `network`, with the cables between nodes written out as that graph."""
        if not collective.endswith("(network)"):
            return collective
        if self._cables is None:
            self._cables = self._drawn()
        return f"{collective.removesuffix('(network)')}({DRAWN}{self._cables})"

    def _drawn(self) -> str:
        if self.fabric is None:
            raise InputError(
                "graph 'network': the cluster has no network. Specify a graph (ring_left …)."
            )
        home = np.full(self.fabric.vertices, -1, dtype=np.int64)
        home[self.fabric.port_vertex[self.layout.port_of[self.first]]] = np.arange(len(self.first))
        pairs = np.stack([home[self.fabric.tail], home[self.fabric.head]])
        pairs = np.unique(pairs[:, (pairs >= 0).all(axis=0)], axis=1)
        if not pairs.size:
            raise InputError(
                "graph 'network': nodes are connected by switches, not directly. Specify a "
                "graph (ring_bidirectional, exponential2 …)."
            )
        return ",".join(f"{one}>{other}" for one, other in pairs.T.tolist())

    def delays(self, algorithm: Algorithm, groups: Ints) -> Floats:
        """Seconds by which a hop between domains takes longer than one between two cards on one switch.

        What goes around a ring meets every hop, so the mean counts; else a round waits for its longest way.
        """
        late = np.zeros(len(groups))
        if not self.has_delays:
            return late
        flows = self.flows(algorithm, groups)
        is_far = self.domain_of[flows.src] != self.domain_of[flows.dst]
        src, dst, group = flows.src[is_far], flows.dst[is_far], flows.group[is_far]
        routes = self.topology.routes(src, dst)
        taken = np.bincount(
            routes.owner, self.topology.latency[routes.links] * routes.share, len(src)
        )
        usual = (self.usual[src] + self.usual[dst]) / 2
        more = np.maximum(0.0, taken - usual)
        if not algorithm.pattern.startswith(RINGS):
            np.maximum.at(late, group, more)
            return late
        weight = flows.weight[is_far]
        total = np.bincount(group, weight, len(groups))
        sums = np.bincount(group, weight * more, len(groups))
        return np.divide(sums, total, out=late, where=total > 0)
