"""A network drawn by the user: cables between nodes and named switches, any graph.

Nodes are named by their number. Every network port of a node is plugged into the node's vertex. Parallel cables
are one link with the rate of all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.connectivity import expect_joined
from foretrain.cluster.fabric import Fabric, Site, no_route
from foretrain.cluster.link import ClusterNetwork, NetworkEdge, self_loop
from foretrain.cluster.quantities import STRICT
from foretrain.cluster.routing import shortest_routed
from foretrain.cluster.schema import MOST_VERTICES, too_many
from foretrain.errors import ClusterError, did_you_mean

MOST_FAULTS = 20


@dataclass(frozen=True, slots=True)
class Parameters:
    __pydantic_config__: ClassVar[Any] = STRICT
    switches: tuple[str, ...] | None = None
    """The names that cables may lead to besides nodes; without it any name is a switch."""


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    hosts, first, place = np.unique(site.host, return_index=True, return_inverse=True)
    known: dict[int | str, int] = {host: number for number, host in enumerate(hosts.tolist())}
    faults = _faults(network.edges, known, given.switches)
    ends = {end for cable in network.edges for end in cable.ends}
    if (count := len(ends | known.keys())) > MOST_VERTICES:
        faults.append(f"edges: {too_many(count)}")
    if faults:
        raise ClusterError("Invalid network graph:", faults=faults)
    for cable in network.edges:
        for end in cable.ends:
            known.setdefault(end, len(known))
    names = [f"node{end}" if isinstance(end, int) else end for end in known]
    fabric = _fabric(network.edges, known, names, place.astype(np.int64))
    owner = np.full(len(names), -1, dtype=np.int64)
    owner[: len(hosts)] = first
    link_port = np.where(owner[fabric.tail] >= 0, owner[fabric.tail], owner[fabric.head])
    expect_joined(fabric, "Add cables between them.")
    return shortest_routed(replace(fabric, link_port=link_port))


def _faults(
    edges: tuple[NetworkEdge, ...], known: dict[int | str, int], switches: tuple[str, ...] | None
) -> list[str]:
    faults = []
    last = max((node for node in known if isinstance(node, int)), default=-1)
    if not edges:
        faults.append("edges: empty; a graph network needs at least one cable.")
    for number, cable in enumerate(edges):
        one, other = cable.ends
        if one == other:
            faults.append(f"edges[{number}]: {self_loop(one)}")
        for end in dict.fromkeys(cable.ends):
            if isinstance(end, int) and end not in known:
                faults.append(
                    f"edges[{number}]: there is no node {end} with NICs; the last node is {last}."
                )
            if isinstance(end, str) and switches is not None and end not in switches:
                hint = did_you_mean(end, switches)
                faults.append(f"edges[{number}]: there is no switch {end!r}.{hint}")
    if len(faults) > MOST_FAULTS:
        return [*faults[:MOST_FAULTS], f"edges: … {len(faults) - MOST_FAULTS:,} more errors."]
    return faults


def _fabric(
    edges: tuple[NetworkEdge, ...], known: dict[int | str, int], names: list[str], place: Ints
) -> Fabric:
    """Links in the order drawn, there before back; the same way again adds to the first."""
    number: dict[tuple[int, int], int] = {}
    capacity: list[float] = []
    latency: list[float] = []
    for cable in edges:
        one, other = (known[end] for end in cable.ends)
        for tail, head, rate, delay in cable.directions(one, other):
            link = number.setdefault((tail, head), len(number))
            if link == len(capacity):
                capacity.append(rate)
                latency.append(delay)
            else:
                capacity[link] += rate
                latency[link] = max(latency[link], delay)
    ends = np.array(list(number), dtype=np.int64).reshape(-1, 2)
    rates, delays = np.array(capacity), np.array(latency)
    tail_of, head_of = np.ascontiguousarray(ends[:, 0]), np.ascontiguousarray(ends[:, 1])
    return Fabric(rates, delays, tail_of, head_of, place, no_route, names.__getitem__)
