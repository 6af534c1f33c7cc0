"""Nodes on a grid of one to six dimensions that wraps around (2D and 3D torus, as in TPU pods)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.grid import grid_fabric, grid_sizes
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import STRICT, Bandwidth, Count, Seconds


@dataclass(frozen=True, slots=True)
class Parameters:
    __pydantic_config__: ClassVar[Any] = STRICT
    dims: Count = 2
    sizes: tuple[Count, ...] | None = None
    """Nodes along each dimension, fastest first; may leave places empty. Overrides `dims`."""
    link_bandwidth: Bandwidth | None = None
    link_latency: Seconds | None = None


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    nodes = len(np.unique(site.host))
    return grid_fabric(site, grid_sizes(nodes, given.dims, given.sizes), True, given)
