"""Each pair of nodes has a cable with probability p (Erdős–Rényi), drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from foretrain.cluster.connectivity import expect_joined
from foretrain.cluster.direct import Cables, direct_fabric, hosts_of
from foretrain.cluster.fabric import Fabric, Site, expect_links, no_route
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import STRICT, Bandwidth, Number, Seconds
from foretrain.cluster.routing import shortest_routed
from foretrain.errors import ClusterError
from foretrain.loading import Quantity
from foretrain.units import parse_count

MOST_NODES = 4096
"""Every pair is drawn, so the number of nodes is bounded too."""


@dataclass(frozen=True, slots=True)
class Parameters:
    __pydantic_config__: ClassVar[Any] = STRICT
    p: Number = 0.5
    seed: Annotated[int, Quantity(parse_count, zero_allowed=True)] = 0
    link_bandwidth: Bandwidth | None = None
    link_latency: Seconds | None = None


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    hosts = hosts_of(site)
    faults = []
    if given.p > 1:
        faults.append(f"p: {given.p} must be a probability above 0 and up to 1.")
    if hosts.count > MOST_NODES:
        faults.append(f"random: {hosts.count:,} nodes; at most {MOST_NODES:,}.")
    if faults:
        raise ClusterError("Invalid network:", faults=faults)
    one, other = np.triu_indices(hosts.count, 1)
    has = np.random.default_rng(given.seed).random(len(one)) < given.p
    expect_links(2 * int(has.sum()), "The random network")
    cables = Cables(one[has].astype(np.int64), other[has].astype(np.int64)).both_ways
    fabric = direct_fabric(hosts, cables, given, no_route)
    expect_joined(fabric, f"Increase p (now {given.p}) or use another seed (now {given.seed}).")
    return shortest_routed(fabric)
