"""Topologies: one builder per file, listed here.

An interconnect builder joins the devices of a node or NVLink domain; a network builder joins the network
ports of nodes. Each returns a `Fabric`; `foretrain.testing.topology.check_topology` says if it is sound.
A new topology is one new file and one row below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import Interconnect
from foretrain.cluster.topologies import (
    binary_tree,
    dragonfly,
    exponential,
    fat_tree,
    fully_connected,
    graph,
    hierarchical,
    mesh,
    nvlink_mesh,
    nvswitch,
    pcie_tree,
    rail,
    random_graph,
    ring,
    single,
    star,
    torus,
)
from foretrain.cluster.topologies.shape import NetworkShape
from foretrain.errors import ClusterError, did_you_mean

__all__ = ["INTERCONNECTS", "NETWORKS", "InterconnectBuilder", "NetworkShape", "network_shape"]

InterconnectBuilder: TypeAlias = Callable[[Site, Interconnect], Fabric]

INTERCONNECTS: Mapping[str, InterconnectBuilder] = {
    "nvswitch": nvswitch.build,
    "nvlink_mesh": nvlink_mesh.build,
    "pcie_tree": pcie_tree.build,
    "single": single.build,
}

_ONE = ("shortest",)
_GRID = ("dimension-order", "shortest", "ecmp")
_SPREAD = ("ecmp", "shortest")

NETWORKS: Mapping[str, NetworkShape] = {
    "star": NetworkShape(star.build, star.Parameters, _ONE, own=_ONE),
    "graph": NetworkShape(graph.build, graph.Parameters, own=_ONE),
    "ring": NetworkShape(ring.build, ring.Parameters, _GRID, own=_GRID[:2]),
    "torus": NetworkShape(torus.build, torus.Parameters, _GRID, own=_GRID[:2]),
    "mesh": NetworkShape(mesh.build, mesh.Parameters, _GRID, own=_GRID[:2]),
    "binary-tree": NetworkShape(binary_tree.build, binary_tree.Parameters, _ONE, own=_ONE),
    "fat-tree": NetworkShape(fat_tree.build, fat_tree.Parameters, _SPREAD, own=_SPREAD),
    "rail-optimised": NetworkShape(rail.build, rail.Parameters, _SPREAD, own=_SPREAD),
    "hierarchical": NetworkShape(hierarchical.build, hierarchical.Parameters, _ONE, own=_ONE),
    "dragonfly": NetworkShape(
        dragonfly.build, dragonfly.Parameters, ("minimal",), own=("minimal",)
    ),
    "fully-connected": NetworkShape(
        fully_connected.build, fully_connected.Parameters, _ONE, own=_ONE
    ),
    "exponential": NetworkShape(exponential.build, exponential.Parameters, own=_ONE),
    "random": NetworkShape(random_graph.build, random_graph.Parameters, own=_ONE),
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
        hint = did_you_mean(name, [*NETWORKS, *_ALSO])
        raise ClusterError(f"Unknown topology {word!r}.{hint} Known: {', '.join(NETWORKS)}.")
    return name, NETWORKS[name]
