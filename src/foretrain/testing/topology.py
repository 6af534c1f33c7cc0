"""Conformance kit for topologies: what every topology must hold, said once."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.fabric import Fabric, Routes
from foretrain.cluster.routing import distances, sparse_graph
from foretrain.cluster.topology import Topology

MOST_PAIRS = 4096


def check_topology(topology: Topology, seed: int = 0, is_symmetric: bool = True) -> None:
    """Raise `AssertionError` unless the topology is sound.

    - capacities are positive and finite, latencies zero or more, tiers 0 or 1, kinds named, names distinct;
    - a route from a device to itself crosses nothing, any other crosses at least one link;
    - a route leads all its traffic from sender to receiver: links of a single path follow on each other,
      at the forks of several paths as much leaves as arrives; no link is listed twice;
    - a route stays in one tier, and (unless cables are one-way) there and back cross equally many links;
    - asking for many routes at once gives the same as asking one by one.
    """
    _check_links(topology)
    src, dst = _pairs(topology.device_count, seed)
    there = topology.routes(src, dst)
    assert len(there) == len(src), "one route for each pair"
    assert len(there.share) == len(there.links), "one share for each entry"
    hops = np.diff(there.ptr)
    assert ((hops == 0) == (src == dst)).all(), "only the way to itself is empty"
    if is_symmetric:
        back = topology.routes(dst, src)
        assert (hops == np.diff(back.ptr)).all(), "there and back cross equally many links"
    if len(there.links):
        assert there.links.min() >= 0, "link ids are not negative"
        assert there.links.max() < len(topology.capacity), "link ids are within range"
    _check_ways(topology, there, src, dst)
    _check_one_by_one(topology, src[:16], dst[:16])


def check_fabric(fabric: Fabric, is_shortest: bool = True) -> None:
    """The same for one fabric on its own, one path and spread; and that no way is longer than it must be."""
    ports = len(fabric.port_vertex)
    assert fabric.links == len(fabric.latency) == len(fabric.tail) == len(fabric.head)
    assert fabric.link_port is None or len(fabric.link_port) == fabric.links
    assert (fabric.tail != fabric.head).all(), "no link leads to its own start"
    src, dst = _pairs(ports, 0)
    rows = fabric.route(src, dst)
    for row, a, b in zip(rows, src.tolist(), dst.tolist(), strict=True):
        here = int(fabric.port_vertex[a])
        padding = row < 0
        assert (np.diff(padding.astype(int)) >= 0).all(), "padding stands on the right"
        for link in row[~padding].tolist():
            assert fabric.tail[link] == here, f"{fabric.link_name(link)} does not start at {here}"
            here = int(fabric.head[link])
        assert here == fabric.port_vertex[b], f"the route {a} to {b} ends elsewhere"
    hops = (rows >= 0).sum(axis=1)
    if fabric.diameter is not None:
        assert hops.max(initial=0) <= fabric.diameter, "no route is longer than the diameter"
    starts, goals = fabric.port_vertex[src], fabric.port_vertex[dst]
    if is_shortest:
        assert (hops == _fewest_hops(fabric, starts, goals)).all(), "a shorter way exists"
    if fabric.spread is not None:
        _check_spread(fabric, starts, goals, fabric.spread(src, dst), hops)


def _fewest_hops(fabric: Fabric, starts: Ints, goals: Ints) -> Ints:
    sources, which = np.unique(starts, return_inverse=True)
    return np.asarray(distances(sparse_graph(fabric), sources)[which, goals], dtype=np.int64)


def _check_spread(fabric: Fabric, starts: Ints, goals: Ints, routes: Routes, hops: Ints) -> None:
    total = np.bincount(routes.owner, weights=routes.share, minlength=len(starts))
    assert np.allclose(total, hops, atol=1e-9), "all paths are as long as the single one"
    for number in range(len(starts)):
        part = slice(routes.ptr[number], routes.ptr[number + 1])
        links, share = routes.links[part], routes.share[part]
        ends = {int(starts[number])}, {int(goals[number])}
        _check_flow(fabric.tail[links], fabric.head[links], share, *ends)


def _check_flow(tail: Ints, head: Ints, share: Floats, starts: set[int], goals: set[int]) -> None:
    """As much leaves each vertex as arrives, but for the start and the goal."""
    assert (share > 0).all(), "shares are positive"
    assert (share <= 1 + 1e-9).all(), "shares are at most all of the traffic"
    surplus: dict[int, float] = {}
    for one, other, part in zip(tail.tolist(), head.tolist(), share.tolist(), strict=True):
        surplus[one] = surplus.get(one, 0.0) + part
        surplus[other] = surplus.get(other, 0.0) - part
    loose = {vertex: rest for vertex, rest in surplus.items() if abs(rest) > 1e-9}
    if not loose:
        assert not len(tail) or starts & goals, "traffic goes round and round"
        return
    begins = {vertex for vertex, rest in loose.items() if abs(rest - 1) < 1e-9}
    ends = {vertex for vertex, rest in loose.items() if abs(rest + 1) < 1e-9}
    assert len(loose) == 2, f"traffic is lost or made at {sorted(loose)}"
    assert begins & starts, "the route starts elsewhere"
    assert ends & goals, "the route ends elsewhere"


def _check_links(topology: Topology) -> None:
    capacity, latency = topology.capacity, topology.latency
    assert len(capacity) == len(latency) == len(topology.tier) == len(topology.kind)
    assert np.isfinite(capacity).all()
    assert (capacity > 0).all(), "capacities are positive"
    assert np.isfinite(latency).all()
    assert (latency >= 0).all(), "latencies are zero or more"
    assert np.isin(topology.tier, (0, 1)).all(), "tiers are 0 or 1"
    assert np.isin(topology.kind, np.arange(len(topology.kinds))).all(), "every link has a kind"
    sample = range(0, len(capacity), max(len(capacity) // 500, 1))
    names = [topology.name(link) for link in sample]
    assert len(set(names)) == len(names), "links have names of their own"


def _pairs(count: int, seed: int) -> tuple[Ints, Ints]:
    """All pairs of a small cluster, a random sample (with some equal pairs) of a large one."""
    if count * count <= MOST_PAIRS:
        src, dst = np.divmod(np.arange(count * count, dtype=np.int64), count)
        return src, dst
    draw = np.random.default_rng(seed)
    src = draw.integers(0, count, MOST_PAIRS)
    dst = draw.integers(0, count, MOST_PAIRS)
    dst[::100] = src[::100]
    return src, dst


def _check_ways(topology: Topology, routes: Routes, src: Ints, dst: Ints) -> None:
    tail, head = topology.ends()
    doors = topology.doors()
    for number, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        way = routes[number]
        if not len(way):
            continue
        share = routes.share[routes.ptr[number] : routes.ptr[number + 1]]
        assert len(set(way.tolist())) == len(way), f"the route {a} to {b} crosses a link twice"
        assert len(set(topology.tier[way].tolist())) == 1, f"the route {a} to {b} mixes tiers"
        if (share == 1).all():
            gap = f"the route {a} to {b} has a gap"
            assert (head[way[:-1]] == tail[way[1:]]).all(), gap
        _check_flow(tail[way], head[way], share, {a, int(doors[a])}, {b, int(doors[b])})


def _check_one_by_one(topology: Topology, src: Ints, dst: Ints) -> None:
    together = topology.routes(src, dst)
    for number in range(len(src)):
        alone = topology.routes(src[number : number + 1], dst[number : number + 1])
        assert alone.links.tolist() == together[number].tolist(), "alone and together agree"
