"""Topologies: one builder each, listed here; those of a kind share a file.

An interconnect builder joins the devices of a node or NVLink domain; a network builder joins the network
ports of nodes. Each returns a `Fabric`; `foretrain.testing.topology.check_topology` says if it is sound.
A new topology is one new builder and one row below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import Interconnect
from foretrain.cluster.topologies.shape import NetworkShape
from foretrain.errors import ClusterError, hint
from foretrain.named import named

__all__ = ["INTERCONNECTS", "NETWORKS", "InterconnectBuilder", "NetworkShape", "network_shape"]

InterconnectBuilder: TypeAlias = Callable[[Site, Interconnect], Fabric]


def _interconnect(home: str) -> InterconnectBuilder:
    """The builder of that name, whose file is loaded when something is built."""

    def build(site: Site, interconnect: Interconnect) -> Fabric:
        fabric: Fabric = named(f"{__name__}.{home}")(site, interconnect)
        return fabric

    return build


INTERCONNECTS: Mapping[str, InterconnectBuilder] = {
    "nvswitch": _interconnect("hub:nvswitch"),
    "nvlink_mesh": _interconnect("interconnects:nvlink_mesh"),
    "pcie_tree": _interconnect("interconnects:pcie_tree"),
    "single": _interconnect("hub:single"),
}

_ONE = ("shortest",)
_GRID = ("dimension-order", "shortest", "ecmp")
_SPREAD = ("ecmp", "shortest")

# Each row names its builder, whose file is loaded when the network is used.
NETWORKS: Mapping[str, NetworkShape] = {
    "star": NetworkShape("hub:star", _ONE, own=_ONE),
    "graph": NetworkShape("graph:graph", own=_ONE),
    "ring": NetworkShape("grid:ring", _GRID, own=_GRID[:2]),
    "torus": NetworkShape("grid:torus", _GRID, own=_GRID[:2]),
    "mesh": NetworkShape("grid:mesh", _GRID, own=_GRID[:2]),
    "binary-tree": NetworkShape("direct:binary_tree", _ONE, own=_ONE),
    "fat-tree": NetworkShape("tiered:fat_tree", _SPREAD, own=_SPREAD),
    "rail-optimised": NetworkShape("tiered:rail", _SPREAD, own=_SPREAD),
    "hierarchical": NetworkShape("tiered:hierarchical", _ONE, own=_ONE),
    "dragonfly": NetworkShape("dragonfly:build", ("minimal",), own=("minimal",)),
    "fully-connected": NetworkShape("direct:fully_connected", _ONE, own=_ONE),
    "exponential": NetworkShape("direct:exponential", own=_ONE),
    "random": NetworkShape("graph:random_graph", own=_ONE),
}

_ALSO = {
    "tree": "binary-tree",
    "leaf-spine": "fat-tree",
    "rail": "rail-optimised",
    "rail-optimized": "rail-optimised",
    "full": "fully-connected",
    "erdos-renyi": "random",
}


def network_shape(word: str) -> tuple[str, NetworkShape]:
    """The network's own name and its row, for a name as users write it."""
    name = word.strip().lower().replace("_", "-").replace(" ", "-")
    name = _ALSO.get(name, name)
    if name not in NETWORKS:
        raise ClusterError(f"Unknown topology {word!r}.{hint(name, [*NETWORKS, *_ALSO])}")
    return name, NETWORKS[name]
