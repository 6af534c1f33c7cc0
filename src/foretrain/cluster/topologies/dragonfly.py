"""Dragonfly: routers with a few nodes each, groups of fully connected routers, and cables between all groups.

Kim et al., "Technology-driven, highly-scalable dragonfly topology", ISCA 2008: a routers in a group, p nodes
and h global cables on each; balanced where a = 2p = 2h. The cables between two groups are one trunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.fabric import Fabric, Site, expect_links, left_packed
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import Bandwidth, Count, Seconds
from foretrain.errors import ClusterError
from foretrain.loading import Strict


@dataclass(frozen=True, slots=True)
class Parameters(Strict):
    group_routers: Count | None = None
    router_nodes: Count | None = None
    global_links: Count | None = None
    """Cables to other groups on each router."""
    local_bandwidth: Bandwidth | None = None
    """One cable inside a group; the rate of one node's cards if not given."""
    global_bandwidth: Bandwidth | None = None
    """One cable between groups; the rate of one node's cards if not given."""
    local_latency: Seconds = 0.0
    global_latency: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class _Shape:
    groups: int
    routers: int
    nodes: int
    cables: int

    @property
    def trunk(self) -> int:
        """Cables between each two groups."""
        return self.routers * self.cables // max(self.groups - 1, 1)


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    _, host = np.unique(site.host, return_inverse=True)
    shape = _shape(int(host.max()) + 1, given)
    ways = _Ways(site, host // shape.nodes, shape)
    expect_links(ways.links, "The dragonfly network")
    ports = np.arange(site.ports, dtype=np.int64)
    return Fabric(
        *_rates(site, host, shape, given),
        *ways.ends(),
        port_vertex=ports,
        route=ways.route,
        vertex_name=ways.name,
        link_port=np.concatenate([ports, ports, np.full(ways.links - 2 * site.ports, -1)]),
        diameter=5 if shape.groups > 1 else 3,
    )


def _shape(hosts: int, given: Parameters) -> _Shape:
    """What is not given is balanced, the smallest that holds all nodes."""
    half = 1
    while 2 * half * half * (2 * half * half + 1) < hosts:
        half += 1
    routers = given.group_routers or 2 * half
    nodes = given.router_nodes or half
    groups = -(-hosts // (routers * nodes))
    cables = given.global_links or max(half, -(-(groups - 1) // routers))
    if routers * cables < groups - 1:
        raise ClusterError(
            "Invalid network:",
            faults=[
                f"global_links: {routers} routers with {cables} each reach {routers * cables} "
                f"groups, the {hosts:,} nodes need {groups}. Increase global_links, "
                "group_routers or router_nodes."
            ],
        )
    return _Shape(groups, routers, nodes, cables)


def _rates(site: Site, host: Ints, shape: _Shape, given: Parameters) -> tuple[Floats, Floats]:
    node = float(np.bincount(host, weights=site.bandwidth).mean())
    inside = shape.groups * shape.routers * (shape.routers - 1)
    between = shape.groups * (shape.groups - 1)
    trunk = shape.trunk * (given.global_bandwidth or node)
    capacity = [site.bandwidth, site.bandwidth, np.full(inside, given.local_bandwidth or node)]
    latency = [site.latency / 2, site.latency / 2, np.full(inside, given.local_latency)]
    capacity.append(np.full(between, trunk))
    latency.append(np.full(between, given.global_latency))
    return np.concatenate(capacity), np.concatenate(latency)


class _Ways:
    """Links: ports up, ports down, router to router of each group, group to group."""

    def __init__(self, site: Site, router: Ints, shape: _Shape) -> None:
        self.ports, self.router, self.shape = site.ports, router, shape
        self.local = 2 * site.ports
        self.trunk = self.local + shape.groups * shape.routers * (shape.routers - 1)
        self.links = self.trunk + shape.groups * (shape.groups - 1)

    def gateway(self, group: Ints, other: Ints) -> Ints:
        """The router of `group` where the trunk to `other` is plugged in: trunks go round the routers."""
        slot = (other - group - 1) % self.shape.groups
        return np.asarray(group * self.shape.routers + slot % self.shape.routers)

    def ends(self) -> tuple[Ints, Ints]:
        shape, port = self.shape, np.arange(self.ports, dtype=np.int64)
        leaf = self.router + self.ports
        rest = shape.routers - 1
        tail, other = np.divmod(np.arange(shape.groups * shape.routers * rest), max(rest, 1))
        here = tail % max(shape.routers, 1)
        head = tail - here + other + (other >= here)
        group, far = np.divmod(
            np.arange(shape.groups * (shape.groups - 1)), max(shape.groups - 1, 1)
        )
        far = far + (far >= group)
        tails = [port, leaf, tail + self.ports, self.gateway(group, far) + self.ports]
        heads = [leaf, port, head + self.ports, self.gateway(far, group) + self.ports]
        return np.concatenate(tails), np.concatenate(heads)

    def route(self, src: Ints, dst: Ints) -> Ints:
        """Port, own router, gateway of the own group, gateway of the other, router, port."""
        a, b = self.router[src], self.router[dst]
        own, other = a // self.shape.routers, b // self.shape.routers
        apart, far = src != dst, own != other
        leave = np.where(far, self.gateway(own, other), b)
        enter = np.where(far, self.gateway(other, own), b)
        trunk = self.trunk + own * (self.shape.groups - 1) + other - (other > own)
        columns = [
            np.where(apart, src, -1),
            self._inside(a, leave),
            np.where(far, trunk, -1),
            self._inside(enter, b),
            np.where(apart, dst + self.ports, -1),
        ]
        return left_packed(np.stack(columns, axis=1))

    def _inside(self, a: Ints, b: Ints) -> Ints:
        here, there = a % self.shape.routers, b % self.shape.routers
        link = self.local + a * (self.shape.routers - 1) + there - (there > here)
        return np.where(a != b, link, -1)

    def name(self, vertex: int) -> str:
        if vertex < self.ports:
            return f"nic{vertex}"
        group, router = divmod(vertex - self.ports, self.shape.routers)
        return f"group{group}.router{router}"
