"""Topologies: one builder per file, listed here.

An interconnect builder joins the devices of a node or NVLink domain; a network builder joins the network
ports of nodes. Each returns a `Fabric`; `foretrain.testing.topology.check_topology` says if it is sound.
A new topology is one new file and one row below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import Interconnect, Network
from foretrain.cluster.topologies import graph, nvlink_mesh, nvswitch, pcie_tree, single, star

__all__ = ["INTERCONNECTS", "NETWORKS", "InterconnectBuilder", "NetworkBuilder"]

InterconnectBuilder: TypeAlias = Callable[[Site, Interconnect], Fabric]
NetworkBuilder: TypeAlias = Callable[[Site, Network], Fabric]

INTERCONNECTS: Mapping[str, InterconnectBuilder] = {
    "nvswitch": nvswitch.build,
    "nvlink_mesh": nvlink_mesh.build,
    "pcie_tree": pcie_tree.build,
    "single": single.build,
}

NETWORKS: Mapping[str, NetworkBuilder] = {
    "star": star.build,
    "graph": graph.build,
}
