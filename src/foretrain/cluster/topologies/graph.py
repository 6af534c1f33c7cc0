"""Any graph: drawn by the user, cables between nodes and named switches, or drawn at random. All ports must be joined."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from foretrain.arrays import Ints, Ints32
from foretrain.cluster.fabric import Fabric, Site, expect_links, no_route
from foretrain.cluster.link import ClusterNetwork, NetworkEdge, self_loop
from foretrain.cluster.quantities import Bandwidth, Number, Seconds
from foretrain.cluster.routing import distances, shortest_routed, sparse_graph
from foretrain.cluster.schema import MOST_VERTICES, too_many
from foretrain.cluster.topologies.direct import Cables, direct_fabric, hosts_of
from foretrain.errors import ClusterError, did_you_mean, refuse
from foretrain.loading import Quantity, Strict
from foretrain.units import parse_count

MOST_FAULTS = 20


@dataclass(frozen=True, slots=True)
class GraphParameters(Strict):
    switches: tuple[str, ...] | None = None
    """The names that cables may lead to besides nodes; without it any name is a switch."""


def graph(site: Site, network: ClusterNetwork, given: GraphParameters) -> Fabric:
    """Nodes are named by their number. Every network port of a node is plugged into the node's vertex. Parallel cables
    are one link with the rate of all."""
    hosts, first, place = np.unique(site.host, return_index=True, return_inverse=True)
    known: dict[int | str, int] = {host: number for number, host in enumerate(hosts.tolist())}
    faults = _faults(network.edges, known, given.switches)
    ends = {end for cable in network.edges for end in cable.ends}
    if (count := len(ends | known.keys())) > MOST_VERTICES:
        faults.append(f"edges: {too_many(count)}")
    refuse("Invalid network graph:", faults, ClusterError)
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


MOST_NODES = 4096
"""Every pair is drawn, so the number of nodes is bounded too."""


@dataclass(frozen=True, slots=True)
class RandomParameters(Strict):
    p: Number = 0.5
    seed: Annotated[int, Quantity(parse_count, zero_allowed=True)] = 0
    link_bandwidth: Bandwidth | None = None
    link_latency: Seconds | None = None


def random_graph(site: Site, network: ClusterNetwork, given: RandomParameters) -> Fabric:
    """Each pair of nodes has a cable with probability p (Erdős–Rényi), drawn from a seed."""
    hosts = hosts_of(site)
    faults = []
    if given.p > 1:
        faults.append(f"p: {given.p} must be a probability above 0 and up to 1.")
    if hosts.count > MOST_NODES:
        faults.append(f"random: {hosts.count:,} nodes; at most {MOST_NODES:,}.")
    refuse("Invalid network:", faults, ClusterError)
    one, other = np.triu_indices(hosts.count, 1)
    has = np.random.default_rng(given.seed).random(len(one)) < given.p
    expect_links(2 * int(has.sum()), "The random network")
    cables = Cables(one[has].astype(np.int64), other[has].astype(np.int64)).both_ways
    fabric = direct_fabric(hosts, cables, given, no_route)
    expect_joined(fabric, f"Increase p (now {given.p}) or use another seed (now {given.seed}).")
    return shortest_routed(fabric)


# --- is everything joined? --------------------------------------------------------------------------------

MOST_NAMES = 6
MOST_PARTS = 8


def expect_joined(fabric: Fabric, remedy: str) -> None:
    """Refuse a fabric in which some port cannot reach another, naming the parts or the pair."""
    from scipy.sparse.csgraph import connected_components

    graph = sparse_graph(fabric)
    _, part = connected_components(graph, directed=True, connection="weak")
    inside = part[fabric.port_vertex]
    if len(np.unique(inside)) > 1:
        raise ClusterError(f"The network is not connected: {_parts(fabric, part)}. {remedy}")
    _, strong = connected_components(graph, directed=True, connection="strong")
    if len(np.unique(strong[fabric.port_vertex])) > 1:
        raise ClusterError(_one_way(fabric, strong, remedy))


def _parts(fabric: Fabric, part: Ints32) -> str:
    homes = np.unique(part[fabric.port_vertex])
    texts = [_names(fabric, np.flatnonzero(part == home)) for home in homes[:MOST_PARTS].tolist()]
    more = f" and {len(homes) - MOST_PARTS:,} more components" if len(homes) > MOST_PARTS else ""
    return f"it has {len(homes):,} components: {' | '.join(texts)}{more}"


def _names(fabric: Fabric, vertices: Ints) -> str:
    shown = ", ".join(fabric.vertex_name(vertex) for vertex in vertices[:MOST_NAMES].tolist())
    more = len(vertices) - MOST_NAMES
    return shown + (f" and {more:,} more" if more > 0 else "")


def _one_way(fabric: Fabric, strong: Ints32, remedy: str) -> str:
    vertices = np.unique(fabric.port_vertex)
    for start in vertices[np.unique(strong[vertices], return_index=True)[1]].tolist():
        reached = distances(sparse_graph(fabric), np.array([start]))[0]
        lost = vertices[reached[vertices] < 0]
        if len(lost):
            one, other = fabric.vertex_name(start), fabric.vertex_name(int(lost[0]))
            return f"Cables are one-way: there is no path from {one} to {other}. {remedy}"
    return f"Cables are one-way and not all nodes reach each other. {remedy}"
