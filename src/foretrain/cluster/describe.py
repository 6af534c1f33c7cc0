"""A cluster for people: in a few lines, its topology drawn and as plain data, what its network can do."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.fabric import Fabric
from foretrain.cluster.routing import distances, sparse_graph
from foretrain.cluster.topologies import network_shape
from foretrain.cluster.topology import device_rate
from foretrain.units import counted, show_bandwidth, show_bytes, show_seconds

if TYPE_CHECKING:
    from foretrain.cluster.cluster import Cluster, NodeRun
    from foretrain.cluster.node import Node


def described(cluster: Cluster) -> str:
    devices = counted(cluster.device_count, "device")
    lines = [f"{cluster.name}: {devices} in {counted(cluster.node_count, 'node')}"]
    lines += [line for run in cluster.runs for line in _run_lines(run)]
    if cluster.node_count > 1:
        lines.append(f"network: {cluster.network.kind}, {_shape(cluster)}")
    lines.append(_money(cluster))
    return "\n".join(lines)


def _shape(cluster: Cluster) -> str:
    network = cluster.network
    given = [f"{key}={_value(value)}" for key, value in network.parameters]
    if network.routing is not None:
        given.append(f"routing={network.routing}")
    return network.topology + (f"({', '.join(given)})" if given else "")


def _value(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(_value(one) for one in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _run_lines(run: NodeRun) -> list[str]:
    node = run.node
    use = (
        "" if run.used == node.device_count else f", {run.used} of {node.device_count} devices used"
    )
    lines = [f"  {run.count} x {node.title} ({node.name}){use}"]
    for device, same in groupby(node.devices):
        peaks = ", ".join(f"{dtype} {rate / 1e12:,.4g}" for dtype, rate in device.peak_flops)
        lines.append(
            f"    {len(list(same))} x {device.title}: {show_bytes(device.memory_bytes)}, "
            f"{show_bandwidth(device.memory_bandwidth)}, TFLOP/s {peaks}"
        )
    lines.append(f"    interconnect: {node.interconnect.kind}{_port(node)}")
    if node.nics is not None:
        lines.append(
            f"    NICs: {node.nics.count} x {node.nics.bandwidth * 8 / 1e9:,.4g} Gb/s "
            f"{node.nics.kind}"
        )
    return lines


def _port(node: Node) -> str:
    rate = device_rate(node.interconnect, node.devices[0])
    return f", {show_bandwidth(rate)} each way per device" if rate and node.device_count > 1 else ""


def _money(cluster: Cluster) -> str:
    price = cluster.usd_per_hour
    if price is None:
        return "price: unknown"
    return f"price: ${price:,.2f} per hour ({cluster.price_date})"


# --- the topology, drawn and as data ----------------------------------------------------------------------

MOST_LISTED = 16
"""Vertices of a network up to which every neighbour is listed."""
MOST_KINDS = 24


def topology_facts(cluster: Cluster) -> dict[str, Any]:
    """What `drawn_*` show, as plain data in SI units."""
    topology, fabric = cluster.topology, cluster.network_fabric
    nodes = [_node_facts(run) for run in cluster.runs]
    facts: dict[str, Any] = {
        "name": cluster.name,
        "devices": cluster.device_count,
        "nodes": cluster.node_count,
        "machines": nodes,
        "network": None,
    }
    if fabric is None:
        return facts
    network = cluster.network
    _, shape = network_shape(network.topology)
    first = int(topology.link_base[-1])
    kinds = link_kinds(fabric, topology.kinds, topology.kind[first:])
    facts["network"] = {
        "kind": network.kind,
        "topology": network.topology,
        "routing": network.routing or shape.routings[0],
        "parameters": dict(network.parameters),
        "ports": cluster.layout.port_count,
        "bisection_bandwidth": bisection_bandwidth(cluster),
        "half_bandwidth": half_bandwidth(cluster),
        "diameter": diameter(cluster),
        "links": [_link_facts(one) for one in kinds[:MOST_KINDS]],
        "link_kinds": len(kinds),
    }
    return facts


def _node_facts(run: NodeRun) -> dict[str, Any]:
    node = run.node
    return {
        "node": node.name,
        "title": node.title,
        "count": run.count,
        "used": run.used,
        "devices": [
            {"device": device.name, "count": len(list(same))}
            for device, same in groupby(node.devices)
        ],
        "interconnect": node.interconnect.kind,
        "interconnect_topology": node.interconnect.topology,
        "interconnect_bandwidth": device_rate(node.interconnect, node.devices[0]) or None,
        "domain_devices": node.interconnect.domain_devices,
        "ports": node.nic_ports,
        "port_bandwidth": node.port_bandwidth or None,
        "network": None if node.nics is None else node.nics.kind,
    }


def _link_facts(one: LinkKind) -> dict[str, Any]:
    return {
        "ends": list(one.ends),
        "count": one.count,
        "two_way": one.is_two_way,
        "bandwidth": one.bandwidth,
        "latency": one.latency,
        "kind": one.kind,
    }


def drawn_nodes(facts: dict[str, Any]) -> list[str]:
    """Each kind of machine with its interconnect and its way out."""
    lines = []
    for machine in facts["machines"]:
        used = machine["used"]
        total = sum(one["count"] for one in machine["devices"])
        part = "" if used == total else f", {used} of {total} devices used"
        lines.append(f"{machine['count']:,} x {machine['title']} ({machine['node']}){part}")
        devices = " + ".join(f"{one['count']} x {one['device']}" for one in machine["devices"])
        rate = machine["interconnect_bandwidth"]
        each = f", {show_bandwidth(rate)} each way per device" if rate and total > 1 else ""
        span = machine["domain_devices"]
        wide = f", connects {span} devices across nodes" if span and span > total else ""
        lines.append(f"  ├─ {devices}")
        lines.append(f"  ├─ {machine['interconnect']}{each}{wide}")
        out = "no NICs"
        if machine["ports"]:
            speed = show_bandwidth(machine["port_bandwidth"])
            ports = counted(machine["ports"], "network port")
            out = f"{ports} of {speed} each way ({machine['network']})"
        lines.append(f"  └─ {out}")
    return lines


def drawn_network(cluster: Cluster, facts: dict[str, Any]) -> list[str]:
    """Tiers from the top down with the cables between; who is joined to whom if there are few."""
    network, fabric = facts["network"], cluster.network_fabric
    if network is None or fabric is None:
        return []
    lines = _tower(fabric, network["links"])
    if network["link_kinds"] > MOST_KINDS:
        lines.append(f"… {network['link_kinds'] - MOST_KINDS:,} more kinds of cable")
    if fabric.vertices <= MOST_LISTED:
        lines += ["", *_neighbours(fabric)]
    return lines


def _tower(fabric: Fabric, links: list[dict[str, Any]]) -> list[str]:
    words = _counted(fabric)
    lines: list[str] = []
    shown: set[str] = set()
    ends = list(dict.fromkeys(tuple(link["ends"]) for link in reversed(links)))
    for low, high in ends:
        for word, cables in ((high, links), (low, [])):
            if word not in shown:
                lines.append(f"{words[word]:,} x {word}")
                shown.add(word)
            lines += [_cable(link) for link in cables if tuple(link["ends"]) == (low, high)]
    return lines


def _cable(link: dict[str, Any]) -> str:
    low, high = link["ends"]
    noun = "cable" if link["two_way"] else "one-way link"
    way = " each way" if link["two_way"] else f" {low} to {high}"
    late = f", {show_seconds(link['latency'])}" if link["latency"] else ""
    rate = show_bandwidth(link["bandwidth"])
    return f"  │ {counted(link['count'], noun)} of {rate}{way}{late}, {link['kind']}"


def _counted(fabric: Fabric) -> Counter[str]:
    """How many vertices of each word there are, without their numbers."""
    names = (fabric.vertex_name(vertex) for vertex in range(fabric.vertices))
    return Counter(re.sub(r"\d+", "", name) for name in names)


def _neighbours(fabric: Fabric) -> list[str]:
    lines = []
    for vertex in range(fabric.vertices):
        far = np.unique(fabric.head[fabric.tail == vertex]).tolist()
        names = ", ".join(fabric.vertex_name(one) for one in far) or "nothing"
        lines.append(f"{fabric.vertex_name(vertex)} → {names}")
    return lines


# --- what the network can do, and its links by kind; for showing, not for costs ---------------------------

MOST_FLOW_LINKS = 400_000
MOST_STEPS = 300_000_000
FLOW_UNITS = 1_000_000_000
"""scipy counts flow in 32-bit whole numbers."""


@dataclass(frozen=True, slots=True)
class LinkKind:
    """Links that are alike: between the same kinds of ends, at the same rate."""

    ends: tuple[str, str]
    count: int
    is_two_way: bool
    """`count` cables of two directions each, or single directions."""
    bandwidth: float
    latency: float
    kind: str


def half_bandwidth(cluster: Cluster) -> float:
    """What the cards of the smaller half of the nodes carry: the bisection of a network without limits."""
    host, rate = cluster.layout.port_host, cluster.layout.port_bandwidth
    lower = host < cluster.node_count // 2
    return float(min(rate[lower].sum(), rate[~lower].sum()))


def bisection_bandwidth(cluster: Cluster) -> float | None:
    """Bytes/s from the first half of the nodes to the second or back, whichever is less (maximum flow).

    None without a network or where the network is too large to work it out.
    """
    fabric = cluster.network_fabric
    if fabric is None or fabric.links > MOST_FLOW_LINKS:
        return None
    lower = cluster.layout.port_host < cluster.node_count // 2
    one, other = (np.unique(fabric.port_vertex[side]) for side in (lower, ~lower))
    return min(_flow(fabric, one, other), _flow(fabric, other, one))


def _flow(fabric: Fabric, sources: Ints, sinks: Ints) -> float:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    size = fabric.vertices
    leaving = np.bincount(fabric.tail, weights=fabric.capacity, minlength=size)[sources]
    arriving = np.bincount(fabric.head, weights=fabric.capacity, minlength=size)[sinks]
    unit = max(float(leaving.sum()), float(arriving.sum()), float(fabric.capacity.max()))
    unit = 10.0 ** math.ceil(math.log10(unit / FLOW_UNITS))
    tail = np.concatenate([fabric.tail, np.full(len(sources), size), sinks])
    head = np.concatenate([fabric.head, sources, np.full(len(sinks), size + 1)])
    rate = np.concatenate([fabric.capacity, leaving, arriving]) / unit
    graph = csr_array((np.rint(rate).astype(np.int32), (tail, head)), shape=(size + 2, size + 2))
    return float(maximum_flow(graph, size, size + 1).flow_value) * unit


def diameter(cluster: Cluster) -> int | None:
    """Links of the longest of the shortest ways between nodes; None where that takes too long to find."""
    fabric = cluster.network_fabric
    if fabric is None:
        return None
    if fabric.diameter is not None:
        return fabric.diameter
    sources = np.unique(fabric.port_vertex)
    if len(sources) * (fabric.links + fabric.vertices) > MOST_STEPS:
        return None
    graph = sparse_graph(fabric)
    step = max(2**22 // fabric.vertices, 1)
    parts = [sources[first : first + step] for first in range(0, len(sources), step)]
    return max(int(distances(graph, part)[:, sources].max()) for part in parts)


def link_kinds(fabric: Fabric, kinds: tuple[str, ...], kind: Ints) -> list[LinkKind]:
    """The links of a fabric, like with like."""
    words = [re.sub(r"\d+", "", fabric.vertex_name(vertex)) for vertex in range(fabric.vertices)]
    known = list(dict.fromkeys(words))
    number = {word: place for place, word in enumerate(known)}
    of_vertex = np.array([number[word] for word in words], dtype=np.int64)
    table = np.stack(
        [of_vertex[fabric.tail], of_vertex[fabric.head], kind, fabric.capacity, fabric.latency],
        axis=1,
    )
    rows, counts = np.unique(table, axis=0, return_counts=True)
    counted = {tuple(row): count for row, count in zip(rows.tolist(), counts.tolist(), strict=True)}
    return list(_paired(counted, known, kinds, _is_mirrored(fabric)))


Row = tuple[float, ...]


def _paired(
    counted: dict[Row, int], known: list[str], kinds: tuple[str, ...], is_mirrored: bool
) -> Iterator[LinkKind]:
    """Both directions of cables that are alike as one."""
    for (a, b, kind, rate, delay), count in counted.items():
        ends = known[int(a)], known[int(b)]
        back = counted.get((b, a, kind, rate, delay)) if is_mirrored else None
        if back == count and a > b:
            continue  # told from the other end
        if back == count:
            cables = count if a != b else count // 2
            yield LinkKind(ends, cables, True, rate, delay, kinds[int(kind)])
        else:
            yield LinkKind(ends, count, False, rate, delay, kinds[int(kind)])


def _is_mirrored(fabric: Fabric) -> bool:
    """Every link has one the other way."""
    size = fabric.vertices
    there = np.sort(fabric.tail * size + fabric.head)
    back = np.sort(fabric.head * size + fabric.tail)
    return bool((there == back).all())
