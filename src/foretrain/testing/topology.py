"""Conformance kit for topologies: what every topology must hold, said once."""

from __future__ import annotations

import numpy as np

from foretrain.cluster.fabric import Fabric, IntArray
from foretrain.cluster.topology import Topology

__all__ = ["check_fabric", "check_topology"]

MOST_PAIRS = 4096


def check_topology(topology: Topology, seed: int = 0) -> None:
    """Raise `AssertionError` unless the topology is sound.

    - capacities are positive and finite, latencies zero or more, tiers 0 or 1, names distinct;
    - a route from a device to itself crosses nothing, any other crosses at least one link;
    - links follow on each other from sender to receiver, and no link is crossed twice;
    - a route stays in one tier, and there and back cross equally many links;
    - asking for many routes at once gives the same as asking one by one.
    """
    _check_links(topology)
    src, dst = _pairs(topology.device_count, seed)
    there, back = topology.routes(src, dst), topology.routes(dst, src)
    assert len(there) == len(src), "one route for each pair"
    hops = np.diff(there.ptr)
    assert ((hops == 0) == (src == dst)).all(), "only the way to itself is empty"
    assert (hops == np.diff(back.ptr)).all(), "there and back cross equally many links"
    if len(there.links):
        assert there.links.min() >= 0, "link ids are not negative"
        assert there.links.max() < len(topology.capacity), "link ids are within range"
    _check_ways(topology, src, dst)
    _check_one_by_one(topology, src[:16], dst[:16])


def check_fabric(fabric: Fabric) -> None:
    """The same for one fabric on its own: each route leads from port to port along joined links."""
    ports = len(fabric.port_vertex)
    assert fabric.links == len(fabric.latency) == len(fabric.tail) == len(fabric.head)
    src, dst = np.divmod(np.arange(ports * ports, dtype=np.int64), ports)
    for row, a, b in zip(fabric.route(src, dst), src.tolist(), dst.tolist(), strict=True):
        here = int(fabric.port_vertex[a])
        padding = row < 0
        assert (np.diff(padding.astype(int)) >= 0).all(), "padding stands on the right"
        for link in row[~padding].tolist():
            assert fabric.tail[link] == here, f"{fabric.link_name(link)} does not start at {here}"
            here = int(fabric.head[link])
        assert here == fabric.port_vertex[b], f"the route {a} to {b} ends elsewhere"


def _check_links(topology: Topology) -> None:
    capacity, latency = topology.capacity, topology.latency
    assert len(capacity) == len(latency) == len(topology.tier)
    assert np.isfinite(capacity).all()
    assert (capacity > 0).all(), "capacities are positive"
    assert np.isfinite(latency).all()
    assert (latency >= 0).all(), "latencies are zero or more"
    assert np.isin(topology.tier, (0, 1)).all(), "tiers are 0 or 1"
    sample = range(0, len(capacity), max(len(capacity) // 500, 1))
    names = [topology.name(link) for link in sample]
    assert len(set(names)) == len(names), "links have names of their own"


def _pairs(count: int, seed: int) -> tuple[IntArray, IntArray]:
    """All pairs of a small cluster, a random sample (with some equal pairs) of a large one."""
    if count * count <= MOST_PAIRS:
        src, dst = np.divmod(np.arange(count * count, dtype=np.int64), count)
        return src, dst
    draw = np.random.default_rng(seed)
    src = draw.integers(0, count, MOST_PAIRS)
    dst = draw.integers(0, count, MOST_PAIRS)
    dst[::100] = src[::100]
    return src, dst


def _check_ways(topology: Topology, src: IntArray, dst: IntArray) -> None:
    tail, head = topology.ends()
    doors = topology.doors()
    routes = topology.routes(src, dst)
    for number, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        way = routes[number]
        if not len(way):
            continue
        assert len(set(way.tolist())) == len(way), f"the route {a} to {b} crosses a link twice"
        assert len(set(topology.tier[way].tolist())) == 1, f"the route {a} to {b} mixes tiers"
        assert int(tail[way[0]]) in (a, int(doors[a])), f"the route {a} to {b} starts elsewhere"
        assert int(head[way[-1]]) in (b, int(doors[b])), f"the route {a} to {b} ends elsewhere"
        assert (head[way[:-1]] == tail[way[1:]]).all(), f"the route {a} to {b} has a gap"


def _check_one_by_one(topology: Topology, src: IntArray, dst: IntArray) -> None:
    together = topology.routes(src, dst)
    for number in range(len(src)):
        alone = topology.routes(src[number : number + 1], dst[number : number + 1])
        assert alone.links.tolist() == together[number].tolist(), "alone and together agree"
