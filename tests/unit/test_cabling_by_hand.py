"""Rings along cables, worked out by hand on small networks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest

from foretrain.cluster.fabric import Routes
from foretrain.cost.collectives import cabling
from foretrain.cost.collectives.cabling import Lap, depth_first, laps, many_laps, round_trip


def length(cost: np.ndarray, order: Any) -> float:
    return float(cost[order, np.roll(order, -1)].sum())


@pytest.mark.parametrize("seed", range(6))
def test_two_cheap_cycles_are_patched_at_the_least_cost(seed: int) -> None:
    """Six places on two cheap cycles of three: of the ways to swap one edge of each the cheapest is taken."""
    chance = np.random.default_rng(seed)
    cost = chance.random((6, 6)) + 5.0
    cycles = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)]
    for start, goal in cycles:
        cost[start, goal] = chance.random()
    np.fill_diagonal(cost, 0.0)  # nobody is its own neighbour
    found = round_trip(cost)
    assert sorted(found.tolist()) == list(range(6))
    assert found[0] == 0
    apart = sum(cost[edge] for edge in cycles)
    swaps = [
        cost[a, d] + cost[c, b] - cost[a, b] - cost[c, d]
        for a, b in cycles[:3]
        for c, d in cycles[3:]
    ]
    assert length(cost, found) == pytest.approx(apart + min(swaps))


def test_several_cycles_become_one() -> None:
    cost = np.full((8, 8), 3.0)
    for place in range(8):
        cost[place, place ^ 1] = 0.0  # four cycles of two
        cost[place, (place + 2) % 8] = 1.0
    found = round_trip(cost)
    assert sorted(found.tolist()) == list(range(8))
    best = min(length(cost, np.array([0, *rest])) for rest in permutations(range(1, 8)))
    assert best <= length(cost, found) <= best + 4.0


def between(domains: int, *ways: tuple[int, int, tuple[int, ...]]) -> Routes:
    """Routes of a network: `ways` from one domain to another, over these links."""
    links = {(start, goal): over for start, goal, over in ways}
    each = [links.get(divmod(number, domains), ()) for number in range(domains**2)]
    return Routes(
        np.cumsum([0, *map(len, each)]), np.array([x for one in each for x in one], dtype=np.int64)
    )


def rate(found: tuple[Lap, ...], routes: Routes, capacity: np.ndarray) -> float:
    """Bytes/s of all rings together: the fullest link decides."""
    load = np.zeros(len(capacity))
    domains = len(found[0].order)
    for lap in found:
        for start, goal in zip(lap.order, np.roll(lap.order, -1), strict=True):
            np.add.at(load, routes[int(start) * domains + int(goal)], lap.share)
    return float((capacity[load > 0] / load[load > 0]).min())


def cabled(domains: int) -> tuple[Routes, int]:
    """A cable for each ordered pair."""
    pairs = [(a, b) for a in range(domains) for b in range(domains) if a != b]
    return between(domains, *((a, b, (i,)) for i, (a, b) in enumerate(pairs))), len(pairs)


@pytest.mark.parametrize("domains", [3, 5, 7, 8])
def test_rings_use_every_cable_of_a_full_mesh(domains: int) -> None:
    """Each domain sends over n - 1 cables: as many rings side by side, no more is possible."""
    routes, count = cabled(domains)
    capacity = np.full(count, 2e9)
    found = laps(domains, routes, capacity)
    assert sum(lap.share for lap in found) == pytest.approx(1.0)
    assert all(sorted(lap.order.tolist()) == list(range(domains)) for lap in found)
    most = (domains - 1) * 2e9
    assert cabling.ENOUGH * most * 0.99 <= rate(found, routes, capacity) <= most * (1 + 1e-6)


def test_a_fast_direction_gets_the_larger_share() -> None:
    """A triangle with cables of 3 and 1 GB/s around it: four GB/s on two rings, three quarters on the fast one."""
    clockwise = [(i, (i + 1) % 3, (i,)) for i in range(3)]
    back = [((i + 1) % 3, i, (3 + i,)) for i in range(3)]
    routes, capacity = between(3, *clockwise, *back), np.array([3e9] * 3 + [1e9] * 3)
    found = laps(3, routes, capacity)
    assert {tuple(lap.order.tolist()): lap.share for lap in found} == {
        (0, 1, 2): pytest.approx(0.75), (2, 1, 0): pytest.approx(0.25),
    }  # fmt: skip
    assert rate(found, routes, capacity) == pytest.approx(4e9)
    (only,) = laps(2, between(2, (0, 1, (0,)), (1, 0, (1,))), capacity)
    assert (only.order.tolist(), only.share) == ([0, 1], 1.0)


def searches(monkeypatch: pytest.MonkeyPatch, routes: Routes, capacity: np.ndarray, domains: int) -> int:  # fmt: skip
    """How many round trips are looked for beside the two in the order of ranks."""
    asked: list[int] = []
    real = cabling.round_trip

    def counted(cost: np.ndarray) -> np.ndarray:
        asked.append(len(cost))
        return real(cost)

    monkeypatch.setattr(cabling, "round_trip", counted)
    laps(domains, routes, capacity)
    monkeypatch.undo()
    return len(asked)


def cards(up: list[float], down: list[float]) -> tuple[Routes, np.ndarray]:
    """Domains on one switch: up from the sender, down to the receiver."""
    n = len(up)
    ways = [(a, b, (a, n + b)) for a in range(n) for b in range(n) if a != b]
    return between(n, *ways), np.array(up + down) * 1e9


def test_the_search_ends_when_no_more_is_possible_or_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # four rings are as good as any over the scarcest card, whichever way it is scarce
    for up, down in (([1, 4, 4, 4], [9, 9, 9, 9]), ([9, 9, 9, 9], [4, 4, 1, 4])):
        assert searches(monkeypatch, *cards(up, down), 4) == 2
    # eight rings for a full mesh of eight, of which each domain has seven cables
    routes, count = cabled(8)
    assert searches(monkeypatch, routes, np.full(count, 1e9), 8) >= 6
    # two triangles on a bridge, over which all rings go: sixteen are no better than eight
    pairs = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (2, 3)]
    cables = {pair: i for i, pair in enumerate([*pairs, *((b, a) for a, b in pairs)])}
    hops = {(a, b): (a, b) for a, b in cables}
    for a in (0, 1, 2):
        for b in (3, 4, 5):
            way = [a, *([2] if a != 2 else []), 3, *([b] if b != 3 else [])]
            hops[a, b], hops[b, a] = tuple(way), tuple(way[::-1])
    ways = [(a, b, tuple(cables[step] for step in pairwise(way))) for (a, b), way in hops.items()]  # fmt: skip
    bridged, capacity = between(6, *ways), np.full(len(cables), 1e9)
    assert searches(monkeypatch, bridged, capacity, 6) == 14
    assert rate(laps(6, bridged, capacity), bridged, capacity) == pytest.approx(1e9, rel=1e-6)
    # of ways that fork no bound is known: the search goes on until nothing is found
    forked = replace(bridged, share=np.where(np.arange(len(bridged.links)) == 0, 0.5, 1.0))
    assert searches(monkeypatch, forked, capacity, 6) >= 14


def test_large_groups_keep_the_best_of_the_orders_they_try() -> None:
    """Four domains on a ring of cables in one direction, 1 GB/s each: back around takes three hops for one."""
    steps = [(a, b, tuple((a + k) % 4 for k in range((b - a) % 4))) for a in range(4) for b in range(4)]  # fmt: skip
    routes, capacity = between(4, *steps), np.full(4, 1e9)

    def around(order: np.ndarray) -> Routes:
        ways = [routes[int(a) * 4 + int(b)] for a, b in zip(order, np.roll(order, -1), strict=True)]
        return Routes(np.cumsum([0, *map(len, ways)]), np.concatenate(ways))

    asked: list[tuple[int, list[float]]] = []

    def walk(number: int, busy: np.ndarray) -> np.ndarray:
        asked.append((number, busy.tolist()))
        return np.array([0, 3, 2, 1])

    (only,) = many_laps(4, walk, around, capacity, 2)
    assert (only.order.tolist(), only.share) == ([0, 1, 2, 3], 1.0)
    # every walk is told how long all before it keep each cable busy
    assert asked == [(0, [0.0] * 4), (1, pytest.approx([3e-9] * 4))]
    twice = np.concatenate([capacity, capacity])  # a second ring of cables the other way

    def either(order: np.ndarray) -> Routes:
        forth = around(order)
        back = around(order[::-1])
        return forth if len(forth.links) <= len(back.links) else Routes(back.ptr, back.links + 4)

    one, other = many_laps(4, walk, either, twice, 2)
    assert (one.order.tolist(), other.order.tolist()) == ([0, 1, 2, 3], [3, 2, 1, 0])
    assert one.share == other.share == 0.5


def test_a_walk_takes_the_idlest_cable_but_dead_ends_first() -> None:
    """0 joined to 1, 2 and 3; 3 to 4; 1 to 2. Vertices with one way left go first, then by how busy the cable is."""
    onward = [[(1, 0), (2, 1), (3, 2)], [(0, 0), (2, 3)], [(0, 1), (1, 3)], [(0, 2), (4, 4)], [(3, 4)]]  # fmt: skip
    assert depth_first(onward, 0, [3.0, 2.0, 1.0, 0.0, 0.0]) == [0, 3, 4, 2, 1]
    assert depth_first(onward, 0, [1.0, 2.0, 3.0, 0.0, 0.0]) == [0, 1, 2, 3, 4]
    assert depth_first(onward, 4, [1.0, 2.0, 3.0, 0.0, 0.0]) == [4, 3, 0, 1, 2]
    # from 0 the leaf 2 goes before 1, which has two ways on, whatever their cables
    star = [[(1, 0), (2, 1)], [(0, 0), (3, 2), (4, 3)], [(0, 1)], [(1, 2)], [(1, 3)]]
    assert depth_first(star, 0, [0.0, 9.0, 8.0, 0.0]) == [0, 2, 1, 4, 3]
