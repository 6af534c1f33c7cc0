"""Survey: what a cluster's network can do, and its links counted by kind. For showing, not for costs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.fabric import Fabric
from foretrain.cluster.routing import distances, sparse_graph

if TYPE_CHECKING:
    from foretrain.cluster.cluster import Cluster

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
