"""Rail-optimised network: card r of every node is plugged into the leaf switch of rail r, spines join the rails.

Ranks with the same place in their nodes meet under one leaf. The default of 32 nodes to a leaf is the scalable
unit of NVIDIA's DGX SuperPOD H100 reference architecture (RA-11333-001).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import STRICT, Count, Number, Seconds
from foretrain.cluster.tiered import Tier, tiered_fabric, whole_uplinks


@dataclass(frozen=True, slots=True)
class Parameters:
    __pydantic_config__: ClassVar[Any] = STRICT
    leaf_nodes: Count = 32
    """Nodes whose card r shares a leaf."""
    oversubscription: Number = 1.0
    """Bandwidth of a leaf to its nodes over that to the spines."""
    spines: Count = 1
    """Spine switches; 1 stands for as many as perfect spreading needs."""
    hop_latency: Seconds = 0.0


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    _, first, host = np.unique(site.host, return_index=True, return_inverse=True)
    rail = np.arange(site.ports) - first[host]
    unit = host // given.leaf_nodes
    # not every node need have every rail, so leaves are numbered as found
    _, leaf = np.unique(unit * (int(rail.max()) + 1) + rail, return_inverse=True)
    uplink = whole_uplinks(site, leaf, given.oversubscription, given.leaf_nodes)
    top = Tier("spine", np.zeros_like(leaf), np.empty(0), given.spines)
    return tiered_fabric(site, [Tier("leaf", leaf, uplink, 1, given.hop_latency), top])
