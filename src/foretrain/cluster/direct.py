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
from foretrain.cluster.fabric import Fabric, Site, expect_links


class CableParameters(Protocol):
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
    given: CableParameters,
    route: Callable[[Ints, Ints], Ints],
    *,
    places: int | None = None,
    diameter: int | None = None,
    vertex_name: Callable[[int], str] | None = None,
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
        vertex_name=vertex_name or hosts.name,
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
