"""Routing: how traffic finds its way over any graph. Regular fabrics bring their own, quicker, routes.

`shortest` takes one path: fewest hops, then widest bottleneck, then lowest vertex. `ecmp` spreads over every
path of fewest hops, evenly at each fork, as switches that hash flows do on average. What is found is kept,
within bounds, so a large graph costs only what is asked of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from foretrain.arrays import Floats, Ints, Ints32
from foretrain.cluster.fabric import Fabric, Routes, left_packed, no_route
from foretrain.errors import ClusterError

KEPT_CELLS = 2**25
"""Table cells (4 bytes each) that one router keeps."""
GROWN_CELLS = 2**17
"""Cells of trees that grow at the same time: few enough for a processor's cache."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One directed link of a small graph."""

    tail: int
    head: int
    capacity: float
    latency: float

    @property
    def reverse(self) -> Edge:
        return Edge(self.head, self.tail, self.capacity, self.latency)


def graph_fabric(
    edges: Sequence[Edge], port_vertex: Ints, vertex_name: Callable[[int], str]
) -> Fabric:
    """A fabric over a small directed graph: fewest hops, then widest bottleneck, then lowest vertex."""
    bare = Fabric(
        capacity=np.array([edge.capacity for edge in edges], dtype=np.float64),
        latency=np.array([edge.latency for edge in edges], dtype=np.float64),
        tail=np.array([edge.tail for edge in edges], dtype=np.int64),
        head=np.array([edge.head for edge in edges], dtype=np.int64),
        port_vertex=port_vertex,
        route=no_route,
        vertex_name=vertex_name,
    )
    return shortest_routed(bare)


def shortest_routed(fabric: Fabric) -> Fabric:
    return replace(fabric, route=_Trees(fabric).route, spread=None)


def ecmp_routed(fabric: Fabric) -> Fabric:
    single = _Trees(fabric)
    return replace(fabric, route=single.route, spread=_Spread(fabric).routes)


GRAPH_ROUTINGS: Mapping[str, Callable[[Fabric], Fabric]] = {
    "shortest": shortest_routed,
    "ecmp": ecmp_routed,
}
"""Routings that any graph can have."""

ROUTINGS: Mapping[str, str] = {
    "shortest": "one shortest path",
    "ecmp": "spread evenly over all shortest paths",
    "dimension-order": "one shortest path, dimension by dimension (grids)",
    "minimal": "at most one hop between groups (dragonfly)",
}


class _Outgoing:
    """The links that leave each vertex, in the order they were given."""

    def __init__(self, fabric: Fabric) -> None:
        self.vertices = fabric.vertices
        self.links = np.argsort(fabric.tail, kind="stable")
        counts = np.bincount(fabric.tail, minlength=self.vertices)
        self.count = counts
        self.first = np.cumsum(counts) - counts

    def of(self, vertices: Ints) -> tuple[Ints, Ints]:
        """(position in `vertices`, link) of every link that leaves one of them."""
        counts = self.count[vertices]
        place = np.repeat(np.arange(len(vertices)), counts)
        start = np.repeat(self.first[vertices] - (np.cumsum(counts) - counts), counts)
        return place, self.links[start + np.arange(len(place))]


class _Kept:
    """A row per vertex for some vertices, the oldest given up when there are too many."""

    def __init__(self, width: int) -> None:
        self._rows: OrderedDict[int, Ints32] = OrderedDict()
        self.most = max(KEPT_CELLS // max(width, 1), 1)

    def rows(self, keys: Ints, make: Callable[[Ints], Ints32]) -> Ints32:
        """One row for each key (no more than `most`); those not kept are made together."""
        missing = [key for key in keys.tolist() if key not in self._rows]
        if missing:
            for key in keys.tolist():
                if key in self._rows:
                    self._rows.move_to_end(key)
            fresh = make(np.array(missing, dtype=np.int64))
            self._rows.update(zip(missing, fresh, strict=True))
            while len(self._rows) > self.most:
                self._rows.popitem(last=False)
        return np.stack([self._rows[key] for key in keys.tolist()])


class _Router:
    """What is known of one graph, and found out when it is first asked for."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._kept = _Kept(fabric.vertices)

    @cached_property
    def _out(self) -> _Outgoing:
        return _Outgoing(self._fabric)

    def _require(self, hops: Ints | Ints32, start: Ints, goal: Ints) -> None:
        lost = np.flatnonzero(hops < 0)
        if len(lost):
            name, first = self._fabric.vertex_name, int(lost[0])
            raise ClusterError(
                f"No route from {name(int(start[first]))} to {name(int(goal[first]))}: "
                "the graph is not connected."
            )


class _Trees(_Router):
    """Shortest-path trees, grown from each source."""

    def route(self, src: Ints, dst: Ints) -> Ints:
        starts, goals = self._fabric.port_vertex[src], self._fabric.port_vertex[dst]
        sources, which = np.unique(starts, return_inverse=True)
        if len(sources) <= self._kept.most:
            return self._walked(sources, which, starts, goals)
        return self._in_parts(sources, which, starts, goals)

    def _in_parts(self, sources: Ints, which: Ints, starts: Ints, goals: Ints) -> Ints:
        parts: list[tuple[Ints, Ints]] = []
        for first in range(0, len(sources), self._kept.most):
            mine = np.flatnonzero((which >= first) & (which < first + self._kept.most))
            part = sources[first : first + self._kept.most]
            parts.append((mine, self._walked(part, which[mine] - first, starts[mine], goals[mine])))
        rows = np.full((len(starts), max(part.shape[1] for _, part in parts)), -1, dtype=np.int64)
        for mine, part_rows in parts:
            rows[mine, : part_rows.shape[1]] = part_rows
        return rows

    def _walked(self, sources: Ints, which: Ints, starts: Ints, goals: Ints) -> Ints:
        if not len(starts):
            return np.full((0, 0), -1, dtype=np.int64)
        trees = self._kept.rows(sources, self._all_grown)
        hops: list[Ints] = []
        here = goals.copy()
        moving = here != starts
        while moving.any():
            step = np.where(moving, trees[which, here], -1).astype(np.int64)
            self._require(step[moving], starts[moving], here[moving])
            here = np.where(moving, self._fabric.tail[step], here)
            hops.append(step)
            moving = here != starts
        if not hops:
            return np.full((len(starts), 0), -1, dtype=np.int64)
        return left_packed(np.stack(hops[::-1], axis=1))

    def _all_grown(self, starts: Ints) -> Ints32:
        """In blocks, so that what is at hand while trees grow stays small."""
        rows = max(GROWN_CELLS // max(self._fabric.vertices, 1), 1)
        blocks = np.split(starts, range(rows, len(starts), rows))
        return np.concatenate([self._grown(block) for block in blocks])

    def _grown(self, starts: Ints) -> Ints32:
        """For each vertex the link by which it is entered on the best way from each start; -1 if none.

        All trees of the block grow hop by hop together; a tree's vertices are its row of cells.
        """
        vertices = self._out.vertices
        entered = np.full(len(starts) * vertices, -1, dtype=np.int32)
        width = np.zeros(len(entered))
        front = np.arange(len(starts)) * vertices + starts
        width[front] = np.inf
        while len(front):
            place, links = self._out.of(front % vertices)
            tail = front[place]
            cell = tail - tail % vertices + self._fabric.head[links]
            fresh = width[cell] == 0
            cell, links = cell[fresh], links[fresh]
            wide = np.minimum(width[tail[fresh]], self._fabric.capacity[links])
            # written from the worst to the best, so that the best stays; of equals the first
            if len(wide) and wide.min() < wide.max():
                order = np.argsort(-wide, kind="stable")
                cell, links, wide = cell[order], links[order], wide[order]
            entered[cell[::-1]] = links[::-1]
            width[cell[::-1]] = wide[::-1]
            front = np.sort(cell[entered[cell] == links])  # each cell once: where it was entered
        return entered.reshape(len(starts), vertices)


class _Spread(_Router):
    """Routes over all paths of fewest hops, by the distances to each goal."""

    def routes(self, src: Ints, dst: Ints) -> Routes:
        starts, goals = self._fabric.port_vertex[src], self._fabric.port_vertex[dst]
        targets, which = np.unique(goals, return_inverse=True)
        walks: list[tuple[Ints, Ints, Floats]] = []
        for first in range(0, len(targets), self._kept.most):
            mine = np.flatnonzero((which >= first) & (which < first + self._kept.most))
            part = targets[first : first + self._kept.most]
            table = self._kept.rows(part, lambda goals: distances(self._backwards, goals))
            walks += self._followed(table, mine, which[mine] - first, starts[mine], goals[mine])
        if not walks:
            none = np.empty(0, dtype=np.int64)
            return Routes(np.zeros(len(src) + 1, dtype=np.int64), none)
        owner, links = (np.concatenate([part[i] for part in walks]) for i in (0, 1))
        order = np.argsort(owner, kind="stable")
        ptr = np.zeros(len(src) + 1, dtype=np.int64)
        np.cumsum(np.bincount(owner, minlength=len(src)), out=ptr[1:])
        return Routes(ptr, links[order], np.concatenate([part[2] for part in walks])[order])

    def _followed(
        self, table: Ints32, pair: Ints, row: Ints, at: Ints, goal: Ints
    ) -> list[tuple[Ints, Ints, Floats]]:
        """(pair, link, share) hop by hop; traffic that meets again at a vertex is one entry."""
        head, vertices = self._fabric.head, self._fabric.vertices
        where = np.arange(len(pair))
        share = np.ones(len(pair))
        self._require(table[row, at], at, goal)
        walks = []
        moving = at != goal
        where, at, share = where[moving], at[moving], share[moving]
        while len(where):
            place, links = self._out.of(at)
            target = row[where[place]]
            nearer = table[target, head[links]] == table[target, at[place]] - 1
            place, links = place[nearer], links[nearer]
            forks = np.bincount(place, minlength=len(where))
            part = (share / np.maximum(forks, 1))[place]
            walks.append((pair[where[place]], links, part))
            keys, same = np.unique(where[place] * vertices + head[links], return_inverse=True)
            where, at = np.divmod(keys, vertices)
            share = np.bincount(same, weights=part).astype(np.float64)
            moving = at != goal[where]
            where, at, share = where[moving], at[moving], share[moving]
        return walks

    @cached_property
    def _backwards(self) -> Any:
        return sparse_graph(self._fabric, backwards=True)


def sparse_graph(fabric: Fabric, backwards: bool = False) -> Any:
    """The fabric as a scipy sparse matrix, every link a one."""
    from scipy.sparse import csr_matrix

    ends = (fabric.head, fabric.tail) if backwards else (fabric.tail, fabric.head)
    size = fabric.vertices
    return csr_matrix((np.ones(fabric.links), ends), shape=(size, size))


def distances(graph: Any, sources: Ints) -> Ints32:
    """Hops from each source to every vertex; -1 where there is no way."""
    from scipy.sparse.csgraph import dijkstra

    hops = dijkstra(graph, directed=True, indices=sources, unweighted=True)
    return np.where(np.isfinite(hops), hops, -1).astype(np.int32)
