"""Does a fabric join all its ports, and if not, which parts does it fall into?"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints, Ints32
from foretrain.cluster.fabric import Fabric
from foretrain.cluster.routing import distances, sparse_graph
from foretrain.errors import ClusterError

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
