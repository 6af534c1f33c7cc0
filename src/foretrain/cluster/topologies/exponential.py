"""Node i has a cable to nodes i + 1, i + base, i + base² … (mod n): few cables, short ways.

Ying et al., "Exponential graph is provably efficient for decentralized deep training", NeurIPS 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.direct import Cables, direct_fabric, hosts_of
from foretrain.cluster.fabric import Fabric, Site, expect_links
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import STRICT, Bandwidth, Count, Seconds
from foretrain.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Parameters:
    __pydantic_config__: ClassVar[Any] = STRICT
    base: Count = 2
    one_way: bool = False
    """Cables carry data from i to i + base^k only."""
    link_bandwidth: Bandwidth | None = None
    link_latency: Seconds | None = None


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    if given.base < 2:
        raise ClusterError("Invalid network:", faults=[f"base: {given.base} must be 2 or more."])
    hosts = hosts_of(site)
    offsets = _offsets(hosts.count, given)
    expect_links(hosts.count * len(offsets), "The exponential network")
    tail, number = np.divmod(np.arange(hosts.count * len(offsets)), max(len(offsets), 1))
    head = (tail + np.array([*offsets, 0])[number]) % hosts.count
    walks = _walks(hosts.count, offsets)

    def route(src: Ints, dst: Ints) -> Ints:
        here, goal = hosts.port_vertex[src], hosts.port_vertex[dst]
        walk = walks[(goal - here) % hosts.count]
        moved = np.where(walk >= 0, np.array([*offsets, 0])[walk], 0)
        before = (here[:, None] + np.cumsum(moved, axis=1) - moved) % hosts.count
        return np.where(walk >= 0, before * len(offsets) + walk, -1)

    diameter = walks.shape[1]
    return direct_fabric(hosts, Cables(tail, head), given, route, diameter=diameter)


def _offsets(nodes: int, given: Parameters) -> list[int]:
    """How far each cable of a node leads, forwards and (modulo n) backwards."""
    steps: list[int] = []
    while (step := given.base ** len(steps)) < nodes:
        steps.append(step)
    back = [] if given.one_way else [nodes - step for step in steps]
    return list(dict.fromkeys([*steps, *back]))


def _walks(nodes: int, offsets: list[int]) -> Ints:
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
