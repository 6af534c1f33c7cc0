"""Topology: every link of a cluster and the way between any two devices.

The cluster's topology is composed: one fabric per *kind* of node (or NVLink domain), laid out once for each
domain, and one network fabric over all network ports. Inside a domain routes come from a small table,
between domains from the network's own vectorised route, so 20,000 routes cost a few array operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Floats, Ints
from foretrain.cluster.fabric import Fabric, Routes, Site, compressed
from foretrain.cluster.layout import RankLayout
from foretrain.cluster.topologies import INTERCONNECTS, network_shape
from foretrain.errors import ClusterError, hint

if TYPE_CHECKING:
    from foretrain.cluster.cluster import Cluster
    from foretrain.cluster.device import Device
    from foretrain.cluster.link import ClusterNetwork, Interconnect
    from foretrain.cluster.node import Node

INSIDE, BETWEEN = 0, 1


@dataclass(frozen=True, eq=False, slots=True)
class Topology:
    """Fabrics of all domains, then the network fabric, with directed links numbered in that order."""

    layout: RankLayout
    templates: tuple[Fabric, ...]
    paths: Ints
    path_base: Ints
    link_base: Ints
    network: Fabric | None
    capacity: Floats
    """Bytes/s of each link."""
    latency: Floats
    """Seconds that each link adds to a message."""
    tier: NDArray[np.int8]
    """0 for links inside a node or NVLink domain, 1 for links of the network."""
    kind: Ints
    """For each link the number in `kinds` of what it is made of."""
    kinds: tuple[str, ...]
    """Interconnect kinds (`nvlink3-nvswitch`), card kinds (`infiniband`), the network's own kind."""

    @property
    def device_count(self) -> int:
        return self.layout.device_count

    def routes(self, src: Ints, dst: Ints) -> Routes:
        """The links between each pair of devices; none from a device to itself."""
        src, dst = self._checked(src), self._checked(dst)
        if src.shape != dst.shape:
            raise ClusterError(
                f"{len(src)} senders but {len(dst)} receivers; the counts must match."
            )
        layout = self.layout
        home = layout.domain_of[src]
        inside = home == layout.domain_of[dst]
        if len(src) and not inside.any():
            return self._remote(src, dst)
        shape = layout.template_of[home]
        size = layout.template_devices[shape]
        row = self.path_base[shape] + layout.domain_index[src] * size
        paths = self.paths[np.where(inside, row + layout.domain_index[dst], 0)]
        used = paths >= 0
        used &= inside[:, None]
        paths += self.link_base[home][:, None]
        local = compressed(paths, used=used)
        if inside.all():
            return local
        return self._with_network(local, src, dst, np.flatnonzero(~inside))

    def _remote(self, src: Ints, dst: Ints) -> Routes:
        senders, receivers = self.layout.port_of[src], self.layout.port_of[dst]
        if self.network is None or min(senders.min(), receivers.min()) < 0:
            raise ClusterError(self._unjoined(src, dst))
        routes = self.network.routes(senders, receivers)
        return Routes(routes.ptr, routes.links + self.link_base[-1], routes.share)

    def _with_network(self, local: Routes, src: Ints, dst: Ints, outside: Ints) -> Routes:
        remote = self._remote(src[outside], dst[outside])
        # each route is wholly local or wholly remote: entries of both, in the order of routes
        counts = np.diff(local.ptr)
        counts[outside] = np.diff(remote.ptr)
        ptr = np.concatenate([[0], np.cumsum(counts)])
        is_remote = np.zeros(len(src), dtype=np.bool_)
        is_remote[outside] = True
        place = np.repeat(is_remote, counts)
        both, share = np.empty(len(place), dtype=np.int64), np.ones(len(place))
        both[place], both[~place] = remote.links, local.links
        share[place] = remote.share
        return Routes(ptr, both, share)

    def _unjoined(self, src: Ints, dst: Ints) -> str:
        port, node = self.layout.port_of, self.layout.node_of
        lost = np.flatnonzero((port[src] < 0) | (port[dst] < 0))
        pair = int(lost[0]) if len(lost) else 0
        one, other = int(src[pair]), int(dst[pair])
        bare = [f"node{node[rank]}" for rank in (one, other) if port[rank] < 0]
        why = f"{' and '.join(bare)} without NICs" if bare else "network is none"
        return (
            f"There is no route from rank {one} (node{node[one]}) to rank {other} "
            f"(node{node[other]}): {why}. They communicate under this plan, but the cluster "
            "has no network between them. Add NICs (nics) to the nodes, specify the network, "
            "or keep the plan within a node."
        )

    def _checked(self, devices: Ints) -> Ints:
        ranks = np.atleast_1d(np.asarray(devices, dtype=np.int64))
        if len(ranks) and (ranks.min() < 0 or ranks.max() >= self.device_count):
            raise ClusterError(f"Devices are numbered 0 to {self.device_count - 1}.")
        return ranks

    def name(self, link: int) -> str:
        domain = int(np.searchsorted(self.link_base, link, side="right")) - 1
        local = link - int(self.link_base[domain])
        if domain == len(self.layout.template_of):
            return f"network.{_required(self.network).link_name(local)}"
        fabric = self.templates[int(self.layout.template_of[domain])]
        return f"domain{domain}.{fabric.link_name(local)}"

    def ends(self) -> tuple[Ints, Ints]:
        """(tail, head) vertex of each link. Vertices 0..device_count-1 are the devices."""
        tails, heads = [], []
        free = self.device_count
        for domain, shape in enumerate(self.layout.template_of.tolist()):
            fabric = self.templates[shape]
            ports = int(self.layout.template_devices[shape])
            extra = max(fabric.vertices - ports, 0)
            first = int(self.layout.domain_first[domain])
            number = np.concatenate(
                [np.arange(first, first + ports), np.arange(free, free + extra)]
            )
            tails.append(number[fabric.tail])
            heads.append(number[fabric.head])
            free += extra
        if self.network is not None:
            tails.append(self.network.tail + free)
            heads.append(self.network.head + free)
        return np.concatenate(tails), np.concatenate(heads)

    def doors(self) -> Ints:
        """For each device the vertex where its network port is plugged in, or -1."""
        if self.network is None:
            return np.full(self.device_count, -1, dtype=np.int64)
        shapes = self.layout.template_of
        extra = [max(f.vertices - n, 0) for f, n in self._sizes()]
        free = self.device_count + int(np.array(extra, dtype=np.int64)[shapes].sum())
        port = self.layout.port_of
        return np.where(port >= 0, self.network.port_vertex[port] + free, -1)

    def _sizes(self) -> list[tuple[Fabric, int]]:
        return list(zip(self.templates, self.layout.template_devices.tolist(), strict=True))


def _required(network: Fabric | None) -> Fabric:
    if network is None:
        raise ClusterError("The cluster has no network links.")
    return network


def compose(cluster: Cluster) -> Topology:
    """The topology of a cluster from its nodes' interconnects and its network."""
    layout = cluster.layout
    templates = tuple(_domain_fabric(members) for members in layout.template_members)
    paths, path_base = _path_table(templates, layout)
    sizes = np.array([fabric.links for fabric in templates], dtype=np.int64)
    link_base = np.zeros(len(layout.template_of) + 1, dtype=np.int64)
    np.cumsum(sizes[layout.template_of], out=link_base[1:])
    network = cluster.network_fabric
    order = [templates[shape] for shape in layout.template_of.tolist()]
    if network is not None:
        order.append(network)
    tier = np.full(sum(fabric.links for fabric in order), INSIDE, dtype=np.int8)
    tier[link_base[-1] :] = BETWEEN
    kinds, kind = _kinds(cluster, layout, sizes, network)
    return Topology(
        layout=layout,
        templates=templates,
        paths=paths,
        path_base=path_base,
        link_base=link_base,
        network=network,
        capacity=np.concatenate([fabric.capacity for fabric in order]),
        latency=np.concatenate([fabric.latency for fabric in order]),
        tier=tier,
        kind=kind,
        kinds=kinds,
    )


def _kinds(
    cluster: Cluster, layout: RankLayout, sizes: Ints, network: Fabric | None
) -> tuple[tuple[str, ...], Ints]:
    """What each link is made of: its domain's interconnect, its port's card, or the network's switches."""
    inside = [members[0][0].interconnect.kind for members in layout.template_members]
    kinds = tuple(dict.fromkeys([*inside, *layout.port_kinds, cluster.network.kind]))
    number = np.array([kinds.index(kind) for kind in inside])[layout.template_of]
    local = np.repeat(number, sizes[layout.template_of])
    if network is None:
        return kinds, local
    switch = kinds.index(cluster.network.kind)
    if network.link_port is None:
        return kinds, np.concatenate([local, np.full(network.links, switch)])
    card = np.array([kinds.index(kind) for kind in layout.port_kinds])[layout.port_kind]
    return kinds, np.concatenate(
        [local, np.where(network.link_port >= 0, card[network.link_port], switch)]
    )


def _domain_fabric(members: tuple[tuple[Node, int], ...]) -> Fabric:
    """The fabric that joins the used devices of the nodes of one domain."""
    interconnect = members[0][0].interconnect
    rates: list[float] = []
    hosts: list[int] = []
    for host, (node, used) in enumerate(members):
        rates += [_port_rate(node, index) for index in range(used)]
        hosts += [host] * used
    count = len(rates)
    site = Site(np.array(rates), np.full(count, interconnect.latency), np.array(hosts))
    word = "single" if count == 1 else interconnect.topology
    if word not in INTERCONNECTS:
        raise ClusterError(f"Unknown interconnect topology {word!r}.{hint(word, INTERCONNECTS)}")
    return INTERCONNECTS[word](site, interconnect)


def _port_rate(node: Node, index: int) -> float:
    interconnect, device = node.interconnect, node.devices[index]
    rate = device_rate(interconnect, device)
    if rate <= 0 and node.device_count > 1:
        raise ClusterError(
            f"Node {node.name!r}: {device.title} has no {interconnect.kind} links. Use another "
            "interconnect (pcie4 …) or specify interconnect.bandwidth."
        )
    return rate


def device_rate(interconnect: Interconnect, device: Device) -> float:
    """Bytes/s, one direction of all a device's links in an interconnect; 0 where it has none of the kind."""
    is_tree = interconnect.topology == "pcie_tree"
    own = device.pcie_bandwidth if is_tree else device.link_bandwidth
    return (interconnect.bandwidth or own) * interconnect.scale


def _path_table(templates: tuple[Fabric, ...], layout: RankLayout) -> tuple[Ints, Ints]:
    """Routes between all pairs inside each kind of domain, one row per pair, padded to one width."""
    blocks = []
    for fabric, size in zip(templates, layout.template_devices.tolist(), strict=True):
        src, dst = np.divmod(np.arange(size * size, dtype=np.int64), size)
        blocks.append(fabric.route(src, dst))
    width = max(block.shape[1] for block in blocks)
    base = np.zeros(len(blocks), dtype=np.int64)
    np.cumsum([len(block) for block in blocks[:-1]], out=base[1:])
    table = np.full((sum(len(block) for block in blocks), width), -1, dtype=np.int64)
    for start, block in zip(base.tolist(), blocks, strict=True):
        table[start : start + len(block), : block.shape[1]] = block
    return table, base


def network_fabric(network: ClusterNetwork, layout: RankLayout) -> Fabric | None:
    """What joins the network ports; None where there is nothing to join."""
    if network.kind == "none" or layout.port_count == 0 or layout.node_count < 2:
        return None
    _, shape = network_shape(network.topology)
    return shape(Site(layout.port_bandwidth, layout.port_latency, layout.port_host), network)
