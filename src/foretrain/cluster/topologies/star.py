"""Nodes on a non-blocking network: traffic is limited by the sender's and the receiver's card only."""

from __future__ import annotations

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import Network
from foretrain.cluster.topologies.nvswitch import hub

__all__ = ["build"]


def build(site: Site, network: Network) -> Fabric:
    return hub(site, "nic", "fabric")
