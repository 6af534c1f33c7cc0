"""Nodes in a ring, each joined to the next; traffic takes the shorter way round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.grid import grid_fabric
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import STRICT, Bandwidth, Seconds


@dataclass(frozen=True, slots=True)
class Parameters:
    __pydantic_config__: ClassVar[Any] = STRICT
    link_bandwidth: Bandwidth | None = None
    link_latency: Seconds | None = None


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    return grid_fabric(site, (len(np.unique(site.host)),), True, given)
