"""Fabric: directed links and a vectorised route function between ports. What every topology builder returns.

A builder in `topologies/` receives a `Site` (the ports to join and how fast each is) and returns a
`Fabric`. Devices are the ports of an interconnect; network ports of nodes are the ports of a network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrain.errors import ClusterError

__all__ = ["Edge", "Fabric", "FloatArray", "IntArray", "Site", "graph_fabric"]

IntArray: TypeAlias = NDArray[np.int64]
FloatArray: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """What a builder joins: ports with their one-direction rate, latency and the host each sits in."""

    bandwidth: FloatArray
    latency: FloatArray
    host: IntArray

    @property
    def ports(self) -> int:
        return len(self.bandwidth)


@dataclass(frozen=True, eq=False, slots=True)
class Fabric:
    """Links with their ends as vertices, and how traffic finds its way.

    `route(src, dst)` takes equal-length port arrays and gives one row of link ids per pair, in the order
    crossed, padded with -1 on the right. `port_vertex[p]` is the vertex where port `p` is plugged in.
    """

    capacity: FloatArray
    latency: FloatArray
    tail: IntArray
    head: IntArray
    port_vertex: IntArray
    route: Callable[[IntArray, IntArray], IntArray]
    vertex_name: Callable[[int], str]

    @property
    def links(self) -> int:
        return len(self.capacity)

    @property
    def vertices(self) -> int:
        ends = (self.tail, self.head, self.port_vertex)
        return 1 + max((int(end.max()) for end in ends if len(end)), default=-1)

    def link_name(self, link: int) -> str:
        return f"{self.vertex_name(int(self.tail[link]))}->{self.vertex_name(int(self.head[link]))}"


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
    edges: Sequence[Edge], port_vertex: IntArray, vertex_name: Callable[[int], str]
) -> Fabric:
    """A fabric over any directed graph: fewest hops, then widest bottleneck, then lowest vertex.

    Routes are found per source on first use and kept, so a large graph costs only what is asked of it.
    """
    tail = np.array([edge.tail for edge in edges], dtype=np.int64)
    head = np.array([edge.head for edge in edges], dtype=np.int64)
    capacity = np.array([edge.capacity for edge in edges], dtype=np.float64)
    latency = np.array([edge.latency for edge in edges], dtype=np.float64)
    ends = [int(end.max()) for end in (tail, head, port_vertex) if len(end)]
    router = _Router(tail, head, capacity, 1 + max(ends, default=0), port_vertex, vertex_name)
    return Fabric(capacity, latency, tail, head, port_vertex, router.route, vertex_name)


class _Router:
    """Shortest-path trees over one graph, found when a source is first asked for."""

    def __init__(
        self,
        tail: IntArray,
        head: IntArray,
        capacity: FloatArray,
        vertices: int,
        port_vertex: IntArray,
        vertex_name: Callable[[int], str],
    ) -> None:
        self._tail = tail
        self._head = head.tolist()
        self._capacity = capacity.tolist()
        self._port_vertex = port_vertex
        self._name = vertex_name
        self._out: list[list[int]] = [[] for _ in range(vertices)]
        for link, start in enumerate(tail.tolist()):
            self._out[start].append(link)
        self._trees: dict[int, IntArray] = {}

    def route(self, src: IntArray, dst: IntArray) -> IntArray:
        starts, goals = self._port_vertex[src], self._port_vertex[dst]
        hops: list[IntArray] = []
        here = goals.copy()
        moving = here != starts
        while moving.any():
            step = np.full(len(here), -1, dtype=np.int64)
            for start in np.unique(starts[moving]).tolist():
                mine = moving & (starts == start)
                step[mine] = self._tree(start)[here[mine]]
            self._require(step[moving], starts[moving], here[moving])
            here = np.where(moving, self._tail[step], here)
            hops.append(step)
            moving = here != starts
        return _packed(hops, len(starts))

    def _require(self, step: IntArray, start: IntArray, goal: IntArray) -> None:
        lost = np.flatnonzero(step < 0)
        if len(lost):
            first = int(lost[0])
            names = self._name(int(start[first])), self._name(int(goal[first]))
            raise ClusterError(
                f"No route from {names[0]} to {names[1]}: the graph is not connected."
            )

    def _tree(self, start: int) -> IntArray:
        """For each vertex the link by which it is entered on the best way from `start`; -1 if none."""
        if start not in self._trees:
            self._trees[start] = self._grown(start)
        return self._trees[start]

    def _grown(self, start: int) -> IntArray:
        entered = np.full(len(self._out), -1, dtype=np.int64)
        width: dict[int, float] = {start: float("inf")}
        front = [start]
        while front:
            found: dict[int, tuple[float, int]] = {}
            for vertex in sorted(front):
                for link in self._out[vertex]:
                    far, wide = self._head[link], min(width[vertex], self._capacity[link])
                    if far not in width and (far not in found or wide > found[far][0]):
                        found[far] = (wide, link)
            for vertex, (wide, link) in found.items():
                width[vertex] = wide
                entered[vertex] = link
            front = list(found)
        return entered


def _packed(hops: list[IntArray], rows: int) -> IntArray:
    """Hop columns found from goal to start, turned round and pushed to the left."""
    if not hops:
        return np.full((rows, 0), -1, dtype=np.int64)
    paths = np.stack(hops[::-1], axis=1)
    order = np.argsort(paths < 0, axis=1, kind="stable")
    return np.take_along_axis(paths, order, axis=1)
