"""Nodes as a tree: node 0 is the root, node i hangs under node (i - 1) // arity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.direct import Cables, direct_fabric, hosts_of
from foretrain.cluster.fabric import Fabric, Site, left_packed
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import STRICT, Bandwidth, Count, Seconds


@dataclass(frozen=True, slots=True)
class Parameters:
    __pydantic_config__: ClassVar[Any] = STRICT
    arity: Count = 2
    link_bandwidth: Bandwidth | None = None
    link_latency: Seconds | None = None


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    """Link i - 1 leads from node i up to its parent, link n - 1 + i - 1 from the parent down to it."""
    hosts = hosts_of(site)
    child = np.arange(1, hosts.count, dtype=np.int64)
    cables = Cables(child, (child - 1) // given.arity).both_ways

    def route(src: Ints, dst: Ints) -> Ints:
        return _climbed(hosts.port_vertex[src], hosts.port_vertex[dst], given.arity, hosts.count)

    diameter = _diameter(hosts.count, given.arity)
    return direct_fabric(hosts, cables, given, route, diameter=diameter)


def _diameter(nodes: int, arity: int) -> int:
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
