"""Rings along the cables of a network: in which orders they pass the domains, and what each carries.

Between switches the order of ranks is as good as any. Where nodes are joined to each other it is not: a ring in
the order of ranks takes ways of several hops, which meet on some cables and leave most others idle. Libraries
for such networks lay several rings, each along cables (NCCL inside an NVLink mesh; TopoOpt, Wang et al. 2023,
and ForestColl, Zhao et al. 2024, between nodes).

The best mix of rings is a fractional packing of directed Hamiltonian cycles. As Garg & Könemann 2007: every new
ring is a cheap round trip under prices that rise where earlier rings ran (an assignment, its cycles patched as
by Karp 1979), and a linear program shares the buffer out over all rings found. Ring i may get nothing, so the
mix is never slower than the order of ranks, which is among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.fabric import Routes

MOST_RINGS = 32
"""Channels that NCCL opens at most (MAXCHANNELS), and so rings that are tried."""
MOST_SEARCHED = 256
"""Domains among which rings are searched for, the cost growing with their cube. Of more, walks are taken."""
MOST_WALKED = 2_000_000
"""Cables that all walks together may look at: some seconds."""
ENOUGH = 0.97
"""Of what the scarcest domain can send and receive: then no further rings are looked for."""
PRICE_STEP = 0.3
JITTER = 0.05


@dataclass(frozen=True, eq=False, slots=True)
class Lap:
    """One ring: the domains by their place in a group, and the share of the buffer that it carries."""

    order: Ints
    share: float


def laps(domains: int, routes: Routes, capacity: Floats) -> tuple[Lap, ...]:
    """Rings for a group over `domains`; route i·domains + j leads from domain i to domain j."""
    in_order = np.arange(domains)
    if domains < 3:
        return (Lap(in_order, 1.0),)
    return _Search(domains, routes, capacity).best()


def many_laps(
    count: int,
    walk: Callable[[int, Floats], Ints],
    around: Callable[[Ints], Routes],
    capacity: Floats,
    most: int,
) -> tuple[Lap, ...]:
    """For groups too large to search: the order of ranks, or equal shares on up to `most` walks.

    `walk(number, busy)` gives another order, given the seconds per byte that all before it keep each link busy.
    """
    in_order = np.arange(count)
    back = in_order[::-1].copy()
    best: float = np.inf
    chosen: tuple[Ints, ...] = (in_order,)
    for orders in ((in_order, back), (back,), ()):
        busy, rings = np.zeros(len(capacity)), []
        for number in range(len(orders) or most):
            rings.append(orders[number] if orders else walk(number, busy))
            ways = around(rings[-1])
            busy += np.bincount(ways.links, ways.share, minlength=len(capacity)) / capacity
            if busy.max() / len(rings) < best * (1 - 1e-9):
                best, chosen = float(busy.max()) / len(rings), tuple(rings)
    return tuple(Lap(order, 1.0 / len(chosen)) for order in chosen)


def depth_first(
    onward: Sequence[Sequence[tuple[int, int]]], start: int, busy: Sequence[float]
) -> list[int]:
    """Vertices in the order in which a walk meets them that takes the idlest cable to a new one, or goes back.

    `onward[v]` are (neighbour, cable) of vertex v. A vertex with one way out left goes first: later it would be a
    dead end (Warnsdorff's rule for knights). On a tree the walk is the best ring there is: every cable once in
    each direction.
    """
    left = [len(ways) for ways in onward]  # new neighbours of each
    is_met = bytearray(len(onward))
    met: list[int] = []
    back: list[int] = []
    here = start
    while True:
        if not is_met[here]:
            is_met[here] = 1
            met.append(here)
            back.append(here)
            for far, _ in onward[here]:
                left[far] -= 1
        new = [
            (left[far] > 1, busy[cable], left[far], far)
            for far, cable in onward[here]
            if not is_met[far]
        ]
        if new:
            here = min(new)[-1]
            continue
        back.pop()
        if not back:
            return met
        here = back[-1]


class _Search:
    """Rings found so far, each with the seconds it keeps every link busy per byte."""

    def __init__(self, domains: int, routes: Routes, capacity: Floats) -> None:
        from scipy.sparse import csr_matrix

        self.domains = domains
        used, link = np.unique(routes.links, return_inverse=True)
        self.capacity = capacity[used]
        shape = (domains * domains, len(used))
        self.loads: Any = csr_matrix((routes.share, (routes.owner, link)), shape=shape)
        self.orders: list[Ints] = []
        self.busy: list[Floats] = []
        self.most = self._bound(routes, capacity)
        self.rng = np.random.default_rng(domains)  # fixed: the same network gives the same rings

    def best(self) -> tuple[Lap, ...]:
        in_order = np.arange(self.domains)
        self._add(in_order)
        self._add(in_order[::-1].copy())
        rate, tried = 0.0, 4
        while True:
            while len(self.orders) < tried:
                self._add(self._cheapest())
            before, (rate, shares) = rate, self._shared_out()
            # a round that found nothing new ends the search, unless it was too short to tell
            has_stalled = tried > 8 and rate < 1.01 * before
            if rate >= ENOUGH * self.most or has_stalled or 2 * tried > MOST_RINGS:
                break
            tried *= 2
        found = zip(self.orders, shares.tolist(), strict=True)
        return tuple(Lap(order, share) for order, share in found if share > 0)

    def _add(self, order: Ints) -> None:
        ways = order * self.domains + np.roll(order, -1)
        load = np.asarray(self.loads[ways].sum(axis=0)).ravel()
        self.orders.append(order)
        self.busy.append(load / self.capacity)

    def _bound(self, routes: Routes, capacity: Floats) -> float:
        """No mix moves more than the scarcest domain can send, or receive, over the first links of its ways."""
        if (routes.share < 1.0).any():
            return np.inf  # ways that fork: their first links are not told apart
        has_links = np.diff(routes.ptr) > 0
        start, goal = np.divmod(np.flatnonzero(has_links), self.domains)
        first, last = (
            routes.links[routes.ptr[:-1][has_links]],
            routes.links[routes.ptr[1:][has_links] - 1],
        )
        rates = []
        for place, link in ((start, first), (goal, last)):
            ends = np.unique(np.stack([place, link]), axis=1)
            rates.append(np.bincount(ends[0], capacity[ends[1]]).min())
        return float(min(rates))

    def _cheapest(self) -> Ints:
        crowd = np.sum(self.busy, axis=0) * np.median(self.capacity)
        price = np.exp(PRICE_STEP * (crowd - crowd.max())) / self.capacity
        way = np.asarray(self.loads @ price).reshape(self.domains, self.domains)
        return round_trip(way * (1.0 + JITTER * self.rng.random(way.shape)))

    def _shared_out(self) -> tuple[float, Floats]:
        """Bytes/s of all rings together, and the share of each."""
        from scipy.optimize import linprog

        busy = np.array(self.busy).T
        scale = 1.0 / float(busy.max())
        busy = np.unique(busy * scale, axis=0)
        solved = linprog(-np.ones(busy.shape[1]), A_ub=busy, b_ub=np.ones(len(busy)))
        shares: Floats = np.asarray(solved.x, dtype=np.float64)
        rate = float(shares.sum())
        shares = np.where(shares < 1e-3 * rate, 0.0, np.round(shares / rate, 6))
        return rate * scale, shares / shares.sum()


def round_trip(cost: Floats) -> Ints:
    """A cheap directed round trip through all places, from place 0: cycles of an assignment, patched."""
    from scipy.optimize import linear_sum_assignment

    count = len(cost)
    cost = cost.copy()
    np.fill_diagonal(cost, cost.max() * count)
    onward = linear_sum_assignment(cost)[1].astype(np.int64)
    label = _cycles(onward)
    here = np.arange(count)
    while label.max() > 0:
        swapped = cost[:, onward]
        now = cost[here, onward]
        more = swapped + swapped.T - now[:, None] - now[None, :]
        more[label[:, None] == label[None, :]] = np.inf
        one, other = divmod(int(np.argmin(more)), count)
        onward[[one, other]] = onward[[other, one]]
        label = np.where(label == label[other], label[one], label)
        label = np.unique(label, return_inverse=True)[1]
    return np.array(_walk(onward, 0), dtype=np.int64)


def _cycles(onward: Ints) -> Ints:
    """The number of the cycle that each place is on."""
    label = np.full(len(onward), -1, dtype=np.int64)
    for start in range(len(onward)):
        if label[start] < 0:
            label[_walk(onward, start)] = label.max() + 1
    return label


def _walk(onward: Ints, start: int) -> Sequence[int]:
    found = [start]
    while onward[found[-1]] != start:
        found.append(int(onward[found[-1]]))
    return found
