"""A network drawn by the user: cables between nodes and named switches, any graph.

Nodes are named by their number. Every network port of a node is plugged into the node's vertex.
"""

from __future__ import annotations

import numpy as np

from foretrain.cluster.fabric import Edge, Fabric, Site, graph_fabric
from foretrain.cluster.link import Network
from foretrain.errors import ClusterError

__all__ = ["build"]


def build(site: Site, network: Network) -> Fabric:
    hosts = sorted(set(site.host.tolist()))
    vertex_of: dict[int | str, int] = {host: number for number, host in enumerate(hosts)}
    names = [f"node{host}" for host in hosts]
    faults = []
    edges: list[Edge] = []
    for number, cable in enumerate(network.edges):
        for end in cable.ends:
            if isinstance(end, str) and end not in vertex_of:
                vertex_of[end] = len(names)
                names.append(end)
            elif isinstance(end, int) and end not in vertex_of:
                faults.append(
                    f"network.edges[{number}]: there is no node {end} with network cards."
                )
        if not faults:
            one, other = (vertex_of[end] for end in cable.ends)
            edge = Edge(one, other, cable.bandwidth, cable.latency)
            edges.extend((edge, edge.reverse))
    if not network.edges:
        faults.append("network.edges: empty; a graph network needs at least one cable.")
    if faults:
        raise ClusterError("The network graph is not usable:", faults=faults)
    place = np.array([vertex_of[host] for host in site.host.tolist()], dtype=np.int64)
    return graph_fabric(edges, place, names.__getitem__)
