"""Devices joined pair by pair with one or more links (DGX-1 hybrid cube mesh, eight MI300X).

Which pairs, and how many links each, is data (`meshes` in `catalog/links.yaml`). Devices that are not
neighbours are reached through one in between. A node with fewer devices is the first part of its mesh.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import Interconnect
from foretrain.cluster.routing import Edge, graph_fabric
from foretrain.errors import ClusterError


def build(site: Site, interconnect: Interconnect) -> Fabric:
    lanes = _lanes(interconnect, site.ports)
    degree = lanes.sum(axis=1).max(initial=1)
    per_lane = site.bandwidth / degree
    edges = [
        Edge(a, b, float(lanes[a, b] * min(per_lane[a], per_lane[b])), float(site.latency[a]))
        for a in range(site.ports)
        for b in range(site.ports)
        if lanes[a, b] and a != b
    ]
    ports = np.arange(site.ports, dtype=np.int64)
    return graph_fabric(edges, ports, lambda vertex: f"device{vertex}")


def _lanes(interconnect: Interconnect, ports: int) -> Ints:
    """Links between each pair in the *whole* mesh: a device's rate is shared over all its lanes."""
    if interconnect.lanes is None:
        return np.ones((ports, ports), dtype=np.int64) - np.eye(ports, dtype=np.int64)
    lanes = np.array(interconnect.lanes, dtype=np.int64)
    if ports > len(lanes):
        raise ClusterError(
            f"Interconnect {interconnect.kind!r} connects up to {len(lanes)} devices, but the "
            f"node uses {ports}. Specify a switched interconnect such as "
            f"{interconnect.kind}-nvswitch."
        )
    return lanes
