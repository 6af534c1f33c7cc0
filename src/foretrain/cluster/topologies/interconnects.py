"""Devices of a node that are joined by links and bridges, without a switch that blocks nothing: meshes and trees."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import Interconnect
from foretrain.cluster.routing import Edge, graph_fabric
from foretrain.errors import ClusterError


def nvlink_mesh(site: Site, interconnect: Interconnect) -> Fabric:
    """Devices joined pair by pair with one or more links (DGX-1 hybrid cube mesh, eight MI300X).

    Which pairs, and how many links each, is data (`meshes` in `catalog/links.yaml`). Devices that are not
    neighbours are reached through one in between. A node with fewer devices is the first part of its mesh.
    """
    lanes = _lanes(interconnect, site.ports)
    degree = lanes.sum(axis=1).max(initial=1)
    per_lane = site.bandwidth / degree
    edges = [
        Edge(a, b, float(lanes[a, b] * min(per_lane[a], per_lane[b])), float(site.latency[a]))
        for a in range(site.ports)
        for b in range(site.ports)
        if lanes[a, b] and a != b
    ]
    ports = np.arange(site.ports, dtype=np.int64)
    return graph_fabric(edges, ports, lambda vertex: f"device{vertex}")


def _lanes(interconnect: Interconnect, ports: int) -> Ints:
    """Links between each pair in the *whole* mesh: a device's rate is shared over all its lanes."""
    if interconnect.lanes is None:
        return np.ones((ports, ports), dtype=np.int64) - np.eye(ports, dtype=np.int64)
    lanes = np.array(interconnect.lanes, dtype=np.int64)
    if ports > len(lanes):
        raise ClusterError(
            f"Interconnect {interconnect.kind!r} connects up to {len(lanes)} devices, but the "
            f"node uses {ports}. Specify a switched interconnect such as "
            f"{interconnect.kind}-nvswitch."
        )
    return lanes


def pcie_tree(site: Site, interconnect: Interconnect) -> Fabric:
    """Devices on PCIe: device, PCIe switch (optional), host bridge of a CPU socket, and the link between sockets.

    With `through_root` the devices of a socket share a slot, up and down, and meet at the bridge alone.

    With `bridge_bandwidth` each pair of consecutive devices also has its own link (NVLink bridges on PCIe cards). A path
    crosses the latency of the interconnect once, spread over device-up and device-down.
    """
    ports = site.ports
    bridges = -(-ports // interconnect.socket_devices)
    names = [f"device{port}" for port in range(ports)]
    names += [f"bridge{number}" for number in range(bridges)]
    edges: list[Edge] = []
    for port in range(ports):
        socket = port // interconnect.socket_devices
        if interconnect.through_root:
            _share(port, ports + socket, names, edges, site)
            continue
        above = _above(port, socket, ports, names, edges, site, interconnect)
        rate, half = float(site.bandwidth[port]), float(site.latency[port]) / 2
        _both(edges, Edge(port, above, rate, half))
    across = interconnect.cpu_link_bandwidth or float(site.bandwidth.max())
    for one in range(bridges):
        for other in range(one + 1, bridges):
            _both(edges, Edge(ports + one, ports + other, across * interconnect.scale, 0.0))
    if interconnect.bridge_bandwidth is not None:
        direct = interconnect.bridge_bandwidth * interconnect.scale
        for port in range(0, ports - 1, 2):
            _both(edges, Edge(port, port + 1, direct, float(site.latency[port])))
    return graph_fabric(edges, np.arange(ports, dtype=np.int64), names.__getitem__)


def _above(
    port: int,
    socket: int,
    ports: int,
    names: list[str],
    edges: list[Edge],
    site: Site,
    interconnect: Interconnect,
) -> int:
    """The vertex a device is plugged into; makes the PCIe switch with its first device."""
    size = interconnect.switch_devices
    if size <= 1:
        return ports + socket
    name = f"switch{socket}.{port % interconnect.socket_devices // size}"
    if name not in names:
        names.append(name)
        _both(edges, Edge(len(names) - 1, ports + socket, float(site.bandwidth[port]), 0.0))
    return names.index(name)


def _share(port: int, bridge: int, names: list[str], edges: list[Edge], site: Site) -> None:
    """Joins a device to its bridge by the slot of its socket; makes the slot, one way up and one down, with its first."""
    rate, half = float(site.bandwidth[port]), float(site.latency[port]) / 2
    for name in (f"up{bridge}", f"down{bridge}"):
        if name not in names:
            names.append(name)
            slot = len(names) - 1
            ends = (slot, bridge) if name.startswith("up") else (bridge, slot)
            edges.append(Edge(*ends, rate, 0.0))
    up, down = names.index(f"up{bridge}"), names.index(f"down{bridge}")
    edges += (Edge(port, up, rate, half), Edge(down, port, rate, half))


def _both(edges: list[Edge], edge: Edge) -> None:
    edges.extend((edge, edge.reverse))
