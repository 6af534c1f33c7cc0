"""The machines: devices, links, nodes, clusters and how traffic finds its way."""

from __future__ import annotations

from foretrain.cluster.cluster import Cluster, NodeRun
from foretrain.cluster.device import Device
from foretrain.cluster.fabric import Fabric, Routes, Site
from foretrain.cluster.link import ClusterNetwork, Interconnect, Link, NetworkEdge, Nics
from foretrain.cluster.node import Host, Node, Price
from foretrain.cluster.topology import Topology

__all__ = [
    "Cluster",
    "ClusterNetwork",
    "Device",
    "Fabric",
    "Host",
    "Interconnect",
    "Link",
    "NetworkEdge",
    "Nics",
    "Node",
    "NodeRun",
    "Price",
    "Routes",
    "Site",
    "Topology",
]
