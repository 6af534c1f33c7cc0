"""Every node has a cable to every other node."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.direct import Cables, direct_fabric, hosts_of
from foretrain.cluster.fabric import Fabric, Site, expect_links
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.topologies.ring import Parameters


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    """Link a * (n - 1) + k leads from node a to the k-th of the others."""
    hosts = hosts_of(site)
    others = hosts.count - 1
    expect_links(hosts.count * others, "The fully connected network")
    tail, rest = np.divmod(np.arange(hosts.count * others, dtype=np.int64), max(others, 1))
    head = rest + (rest >= tail)

    def route(src: Ints, dst: Ints) -> Ints:
        a, b = hosts.port_vertex[src], hosts.port_vertex[dst]
        return np.where(a != b, a * others + b - (b > a), -1)[:, None]

    return direct_fabric(hosts, Cables(tail, head), given, route, diameter=1)
