"""Nodes on a grid of one to six dimensions without wrap (2D and 3D mesh)."""

from __future__ import annotations

import numpy as np

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.grid import grid_fabric, grid_sizes
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.topologies.torus import Parameters


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    nodes = len(np.unique(site.host))
    return grid_fabric(site, grid_sizes(nodes, given.dims, given.sizes), False, given)
