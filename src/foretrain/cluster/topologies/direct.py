"""Direct networks: nodes are joined to each other without switches (ring, torus, tree, any graph).

Each node is one vertex and all its ports are plugged into it. The rate of a node's cards is shared out
over its own cables, and a cable runs at the lower of what its two ends give it, unless its rate is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.fabric import Fabric, Site, expect_links, left_packed
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import Bandwidth, Count, Seconds
from foretrain.errors import ClusterError
from foretrain.loading import Strict


class RatedCables(Protocol):
    """What every direct network lets the user say about its cables."""

    @property
    def link_bandwidth(self) -> float | None: ...

    @property
    def link_latency(self) -> float | None: ...


@dataclass(frozen=True, eq=False, slots=True)
class Hosts:
    """The nodes that have ports, renumbered without gaps."""

    number: Ints
    port_vertex: Ints
    bandwidth: Floats
    latency: Floats
    first_port: Ints

    @property
    def count(self) -> int:
        return len(self.number)

    def name(self, vertex: int) -> str:
        return f"node{self.number[vertex]}" if vertex < self.count else f"spare{vertex}"


@dataclass(frozen=True, slots=True)
class CableParameters(Strict):
    link_bandwidth: Bandwidth | None = None
    link_latency: Seconds | None = None


def hosts_of(site: Site) -> Hosts:
    number, first, vertex = np.unique(site.host, return_index=True, return_inverse=True)
    return Hosts(
        number=number,
        port_vertex=vertex.astype(np.int64),
        bandwidth=np.bincount(vertex, weights=site.bandwidth).astype(np.float64),
        latency=site.latency[first],
        first_port=first.astype(np.int64),
    )


@dataclass(frozen=True, eq=False, slots=True)
class Cables:
    """Directed links between vertices; those beyond the hosts are places without a node."""

    tail: Ints
    head: Ints

    @property
    def both_ways(self) -> Cables:
        return Cables(
            np.concatenate([self.tail, self.head]), np.concatenate([self.head, self.tail])
        )


def direct_fabric(
    hosts: Hosts,
    cables: Cables,
    given: RatedCables,
    route: Callable[[Ints, Ints], Ints],
    *,
    places: int | None = None,
    diameter: int | None = None,
) -> Fabric:
    """A fabric whose cables run at the rate given, or share out what the slower end's cards carry."""
    expect_links(len(cables.tail), "The network")
    count = max(places or 0, hosts.count)
    bandwidth = _padded(hosts.bandwidth, count)
    delay = _padded(hosts.latency, count)
    each = bandwidth / _most_cables(cables, count)
    capacity = np.minimum(each[cables.tail], each[cables.head])
    latency = (delay[cables.tail] + delay[cables.head]) / 2
    if given.link_bandwidth is not None:
        capacity = np.full(len(capacity), given.link_bandwidth)
    if given.link_latency is not None:
        latency = np.full(len(latency), given.link_latency)
    owner = np.full(count, -1, dtype=np.int64)
    owner[: hosts.count] = hosts.first_port
    return Fabric(
        capacity=capacity,
        latency=latency,
        tail=cables.tail,
        head=cables.head,
        port_vertex=hosts.port_vertex,
        route=route,
        vertex_name=hosts.name,
        link_port=np.where(owner[cables.tail] >= 0, owner[cables.tail], owner[cables.head]),
        diameter=diameter,
    )


def _most_cables(cables: Cables, count: int) -> Ints:
    """Cables that leave or enter each vertex, whichever are more; places without any count as one."""
    leaving, entering = (np.bincount(end, minlength=count) for end in (cables.tail, cables.head))
    return np.maximum(np.maximum(leaving, entering), 1)


def _padded(values: Floats, count: int) -> Floats:
    """Places without a node have the hardware of the slowest node."""
    return np.concatenate([values, np.full(count - len(values), values.min())])


# --- networks of this kind ------------------------------------------------------------------------------


def fully_connected(site: Site, network: ClusterNetwork, given: CableParameters) -> Fabric:
    """Every node has a cable to every other node: link a * (n - 1) + k leads from node a to the k-th of the others."""
    hosts = hosts_of(site)
    others = hosts.count - 1
    expect_links(hosts.count * others, "The fully connected network")
    tail, rest = np.divmod(np.arange(hosts.count * others, dtype=np.int64), max(others, 1))
    head = rest + (rest >= tail)

    def route(src: Ints, dst: Ints) -> Ints:
        a, b = hosts.port_vertex[src], hosts.port_vertex[dst]
        return np.where(a != b, a * others + b - (b > a), -1)[:, None]

    return direct_fabric(hosts, Cables(tail, head), given, route, diameter=1)


@dataclass(frozen=True, slots=True)
class TreeParameters(Strict):
    arity: Count = 2
    link_bandwidth: Bandwidth | None = None
    link_latency: Seconds | None = None


def binary_tree(site: Site, network: ClusterNetwork, given: TreeParameters) -> Fabric:
    """Node 0 is the root, node i hangs under node (i - 1) // arity.

    Link i - 1 leads from node i up to its parent, link n - 1 + i - 1 from the parent down to it.
    """
    hosts = hosts_of(site)
    child = np.arange(1, hosts.count, dtype=np.int64)
    cables = Cables(child, (child - 1) // given.arity).both_ways

    def route(src: Ints, dst: Ints) -> Ints:
        return _climbed(hosts.port_vertex[src], hosts.port_vertex[dst], given.arity, hosts.count)

    diameter = _tree_diameter(hosts.count, given.arity)
    return direct_fabric(hosts, cables, given, route, diameter=diameter)


def _tree_diameter(nodes: int, arity: int) -> int:
    """From the last node up to the root and down to the deepest node of another branch."""
    depth, last = 0, nodes - 1
    while last > 0:
        last, depth = (last - 1) // arity, depth + 1
    if arity == 1 or depth < 1:
        return depth
    level_start = (arity**depth - 1) // (arity - 1)
    is_even = nodes - 1 >= level_start + arity ** (depth - 1)
    return 2 * depth - (0 if is_even else 1)


def _climbed(src: Ints, dst: Ints, arity: int, nodes: int) -> Ints:
    """The higher number is never nearer to the root, so it climbs until both meet."""
    low, high = src.copy(), dst.copy()
    up, down = [], []
    while (low != high).any():
        left, right = low > high, high > low
        up.append(np.where(left, low - 1, -1))
        down.append(np.where(right, nodes - 1 + high - 1, -1))
        low = np.where(left, (low - 1) // arity, low)
        high = np.where(right, (high - 1) // arity, high)
    if not up:
        return np.full((len(src), 0), -1, dtype=np.int64)
    return left_packed(np.stack([*up, *down[::-1]], axis=1))


@dataclass(frozen=True, slots=True)
class ExponentialParameters(Strict):
    base: Count = 2
    one_way: bool = False
    """Cables carry data from i to i + base^k only."""
    link_bandwidth: Bandwidth | None = None
    link_latency: Seconds | None = None


def exponential(site: Site, network: ClusterNetwork, given: ExponentialParameters) -> Fabric:
    """Node i has a cable to nodes i + 1, i + base, i + base² … (mod n): few cables, short ways.

    Ying et al., "Exponential graph is provably efficient for decentralized deep training", NeurIPS 2021.
    """
    if given.base < 2:
        raise ClusterError("Invalid network:", faults=[f"base: {given.base} must be 2 or more."])
    hosts = hosts_of(site)
    offsets = _exponential_offsets(hosts.count, given)
    expect_links(hosts.count * len(offsets), "The exponential network")
    tail, number = np.divmod(np.arange(hosts.count * len(offsets)), max(len(offsets), 1))
    head = (tail + np.array([*offsets, 0])[number]) % hosts.count
    walks = _shortest_walks(hosts.count, offsets)

    def route(src: Ints, dst: Ints) -> Ints:
        here, goal = hosts.port_vertex[src], hosts.port_vertex[dst]
        walk = walks[(goal - here) % hosts.count]
        moved = np.where(walk >= 0, np.array([*offsets, 0])[walk], 0)
        before = (here[:, None] + np.cumsum(moved, axis=1) - moved) % hosts.count
        return np.where(walk >= 0, before * len(offsets) + walk, -1)

    diameter = walks.shape[1]
    return direct_fabric(hosts, Cables(tail, head), given, route, diameter=diameter)


def _exponential_offsets(nodes: int, given: ExponentialParameters) -> list[int]:
    """How far each cable of a node leads, forwards and (modulo n) backwards."""
    steps: list[int] = []
    while (step := given.base ** len(steps)) < nodes:
        steps.append(step)
    back = [] if given.one_way else [nodes - step for step in steps]
    return list(dict.fromkeys([*steps, *back]))


def _shortest_walks(nodes: int, offsets: list[int]) -> Ints:
    """For each distance around the circle the cables of a shortest walk: every node sees the same graph."""
    visited = np.zeros(nodes, dtype=np.bool_)
    visited[0] = True
    front = np.zeros(1, dtype=np.int64)
    walks = np.full((nodes, 0), -1, dtype=np.int64)
    while not visited.all():
        walks = np.concatenate([walks, np.full((nodes, 1), -1)], axis=1)
        reached = []
        for number, offset in enumerate(offsets):
            far = (front + offset) % nodes
            fresh = ~visited[far]
            walks[far[fresh]] = walks[front[fresh]]
            walks[far[fresh], -1] = number
            visited[far[fresh]] = True
            reached.append(far[fresh])
        front = np.concatenate(reached)
    return walks
