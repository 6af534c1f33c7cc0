"""Layout: where every device of a cluster sits, as integer arrays over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.device import Device
from foretrain.cluster.node import Node


@dataclass(frozen=True, eq=False, slots=True)
class RankLayout:
    """Ranks are numbered node by node, inside a node by local index.

    A *domain* is what one interconnect joins: a node, or several nodes with rack-wide NVLink. A *template*
    is a kind of domain; domains of one template are alike. Network ports are numbered node by node.
    """

    devices: tuple[Device, ...]
    device_kind: Ints
    node_of: Ints
    local_index: Ints
    node_used: Ints
    domain_of: Ints
    domain_index: Ints
    domain_first: Ints
    template_of: Ints
    template_members: tuple[tuple[tuple[Node, int], ...], ...]
    template_devices: Ints
    port_of: Ints
    port_bandwidth: Floats
    port_latency: Floats
    port_host: Ints
    port_kind: Ints
    port_kinds: tuple[str, ...]
    """The kinds of network card; `port_kind` numbers them over ports."""

    @property
    def device_count(self) -> int:
        return len(self.node_of)

    @property
    def node_count(self) -> int:
        return len(self.node_used)

    @property
    def port_count(self) -> int:
        return len(self.port_host)


def lay_out(runs: Sequence[tuple[Node, int, int]]) -> RankLayout:
    """Arrays for runs of (node, how many nodes, devices used in each)."""
    nodes = list(dict.fromkeys(node for node, _, _ in runs))
    kind = np.repeat([nodes.index(node) for node, _, _ in runs], [count for _, count, _ in runs])
    used = np.repeat([used for _, _, used in runs], [count for _, count, _ in runs])
    node_of = np.repeat(np.arange(len(kind)), used)
    local = np.arange(len(node_of)) - np.repeat(np.cumsum(used) - used, used)
    devices, device_table = _device_table(nodes)
    domain_of_node = _domains(nodes, kind)
    templates, template_of = _templates(nodes, kind, used, domain_of_node)
    domain_of = domain_of_node[node_of]
    sizes = np.bincount(domain_of)
    first = np.cumsum(sizes) - sizes
    ports = np.array([node.nic_ports for node in nodes])[kind]
    port_base = np.cumsum(ports) - ports
    port_table = _port_table(nodes)
    near = port_table[kind[node_of], local]
    host = np.repeat(np.arange(len(kind)), ports)
    kinds = tuple(dict.fromkeys(node.nics.kind for node in nodes if node.nics is not None))
    return RankLayout(
        devices=devices,
        device_kind=device_table[kind[node_of], local],
        node_of=node_of,
        local_index=local,
        node_used=used,
        domain_of=domain_of,
        domain_index=np.arange(len(node_of)) - first[domain_of],
        domain_first=first,
        template_of=template_of,
        template_members=templates,
        template_devices=np.array([sum(n for _, n in members) for members in templates]),
        port_of=np.where(near >= 0, near + port_base[node_of], -1),
        port_bandwidth=np.array([node.port_bandwidth for node in nodes])[kind[host]],
        port_latency=np.array([n.nics.latency if n.nics else 0.0 for n in nodes])[kind[host]],
        port_host=host,
        port_kind=np.array([kinds.index(n.nics.kind) if n.nics else -1 for n in nodes])[kind[host]],
        port_kinds=kinds,
    )


def _device_table(nodes: list[Node]) -> tuple[tuple[Device, ...], Ints]:
    """Distinct devices, and for each kind of node the number of the device at each local index."""
    number: dict[Device, int] = {}
    table = np.zeros((len(nodes), max(node.device_count for node in nodes)), dtype=np.int64)
    for row, node in enumerate(nodes):
        for column, device in enumerate(node.devices):
            table[row, column] = number.setdefault(device, len(number))
    return tuple(number), table


def _port_table(nodes: list[Node]) -> Ints:
    """For each kind of node the network port nearest to each device; -1 without NICs."""
    table = np.full((len(nodes), max(node.device_count for node in nodes)), -1, dtype=np.int64)
    for row, node in enumerate(nodes):
        if node.nic_ports:
            table[row, : node.device_count] = [node.port_of(i) for i in range(node.device_count)]
    return table


def _domains(nodes: list[Node], kind: Ints) -> Ints:
    """The domain of each node: consecutive nodes alike share one where their NVLink spans several.

    Alike are nodes of the same devices on the same interconnect: one that is slower stays in its rack.
    """
    span = np.array([_nodes_per_domain(node) for node in nodes], dtype=np.int64)[kind]
    kinds = [(node.interconnect, tuple(d.identity for d in node.devices)) for node in nodes]
    sort = np.array([kinds.index(one) for one in kinds], dtype=np.int64)[kind]
    starts = np.flatnonzero(np.diff(sort, prepend=-1))
    stretch_start = np.repeat(starts, np.diff(starts, append=len(kind)))
    place = (np.arange(len(kind)) - stretch_start) % span
    return np.asarray(np.cumsum(place == 0) - 1, dtype=np.int64)


def _nodes_per_domain(node: Node) -> int:
    devices = node.interconnect.domain_devices
    return 1 if devices is None else max(devices // node.device_count, 1)


def _templates(
    nodes: list[Node], kind: Ints, used: Ints, domain_of_node: Ints
) -> tuple[tuple[tuple[tuple[Node, int], ...], ...], Ints]:
    """Distinct domains as tuples of (node, devices used), and which of them each domain is."""
    count = int(domain_of_node[-1]) + 1
    sizes = np.bincount(domain_of_node)
    place = np.arange(len(kind)) - (np.cumsum(sizes) - sizes)[domain_of_node]
    most = int(max(node.device_count for node in nodes)) + 1
    code = np.full((count, int(sizes.max())), -1, dtype=np.int64)
    code[domain_of_node, place] = kind * most + used
    rows, template_of = np.unique(code, axis=0, return_inverse=True)
    members = tuple(
        tuple((nodes[value // most], value % most) for value in row if value >= 0)
        for row in rows.tolist()
    )
    return members, np.asarray(template_of, dtype=np.int64).reshape(-1)
