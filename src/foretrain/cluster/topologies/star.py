"""Nodes on a non-blocking network: traffic is limited by the sender's and the receiver's card only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import STRICT
from foretrain.cluster.topologies.nvswitch import hub


@dataclass(frozen=True, slots=True)
class Parameters:
    __pydantic_config__: ClassVar[Any] = STRICT


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    return hub(site, "nic", "fabric")
