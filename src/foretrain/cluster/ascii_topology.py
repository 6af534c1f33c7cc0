"""A cluster's topology as text, and as plain data."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.cluster.fabric import Fabric
from foretrain.cluster.network_metrics import (
    LinkKind,
    bisection_bandwidth,
    diameter,
    half_bandwidth,
    link_kinds,
)
from foretrain.cluster.topologies import network_shape
from foretrain.cluster.topology import device_rate
from foretrain.units import counted, show_bandwidth, show_seconds

if TYPE_CHECKING:
    from foretrain.cluster.cluster import Cluster, NodeRun

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
