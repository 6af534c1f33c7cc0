"""The machines: devices, links, nodes, clusters and how traffic finds its way."""

from foretrain.cluster.cluster import Cluster as Cluster
from foretrain.cluster.cluster import NodeRun as NodeRun
from foretrain.cluster.device import Device as Device
from foretrain.cluster.fabric import Fabric as Fabric
from foretrain.cluster.fabric import Routes as Routes
from foretrain.cluster.fabric import Site as Site
from foretrain.cluster.link import ClusterNetwork as ClusterNetwork
from foretrain.cluster.link import Interconnect as Interconnect
from foretrain.cluster.link import Link as Link
from foretrain.cluster.link import NetworkEdge as NetworkEdge
from foretrain.cluster.link import Nics as Nics
from foretrain.cluster.node import Host as Host
from foretrain.cluster.node import Node as Node
from foretrain.cluster.node import Price as Price
from foretrain.cluster.topology import Topology as Topology
