"""Max-min fair sharing: knows capacities and demands only.

*Progressive filling* (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2): the rates of all
flows rise together; a flow freezes when a link it crosses is full or when it reaches its own cap; the
others rise on. A flow of weight w on a link loads it with w times its rate.

The arithmetic, which the compiled engine repeats operation by operation:

    left[l]  = capacity[l];  load[l] = sum of the weights on l, added in flow order
    least[l] = 1e-12 * load[l];  share[l] = left[l] / load[l]
    repeat until every flow is frozen:
        level = min(shares of links that still have open flows, caps of open flows)
        limit = level * (1 + 1e-12)
        a link is full if share == level, or if share <= limit and a flow that freezes now crosses it
        freeze at `level`, in flow order, each open flow whose cap == level or that crosses a full
        link; for each of its links: left -= weight * level, load -= weight,
            share = max(share, limit, left / max(load, least))

The tolerance in `limit` makes links that meet and are full at the same moment freeze in one round, so
equal flows get equal rates. In exact arithmetic a share never falls, and what is left of the load never
comes down to `least` (weights differ by 1e9 at most); each `max` keeps rounding from undoing that. Hence
levels rise strictly, and the state of a link at a level follows from those of its own flows that froze
below, whatever happens on other links and whatever was rated before. The compiled engine builds on this:
it fills anew only where something changed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Route = Sequence[tuple[int, float]]
"""(link, weight) pairs, each link once"""

TOLERANCE = 1.0 + 1e-12
LEAST_LOAD = 1e-12


def max_min(
    routes: Sequence[Route], caps: Sequence[float], capacity: Sequence[float]
) -> list[float]:
    """The weighted max-min fair rate of each flow, given its route and cap."""
    load: dict[int, float] = {}
    users: dict[int, set[int]] = {}
    for flow, route in enumerate(routes):
        for link, weight in route:
            if link in load:
                load[link] += weight
                users[link].add(flow)
            else:
                load[link] = weight
                users[link] = {flow}
    left = {link: capacity[link] for link in load}
    least = {link: LEAST_LOAD * value for link, value in load.items()}
    share = {link: left[link] / load[link] for link in load}
    rates = [0.0] * len(routes)
    by_cap = sorted(range(len(routes)), key=caps.__getitem__, reverse=True)
    while by_cap:
        level = min(min(share.values(), default=math.inf), caps[by_cap[-1]])
        limit = level * TOLERANCE
        capped = {f for f in by_cap if caps[f] == level} if caps[by_cap[-1]] == level else set()
        frozen, full = _freezing(level, capped, routes, users, share)
        for link in full:
            del share[link]
        for flow in sorted(frozen):
            rates[flow] = level
            for link, weight in routes[flow]:
                if link not in share:
                    continue
                users[link].remove(flow)
                if not users[link]:
                    del share[link]
                    continue
                left[link] -= weight * level
                load[link] -= weight
                now = left[link] / max(load[link], least[link])
                share[link] = max(share[link], limit, now)
        by_cap = [flow for flow in by_cap if flow not in frozen]
    return rates


def _freezing(
    level: float,
    capped: set[int],
    routes: Sequence[Route],
    users: dict[int, set[int]],
    share: dict[int, float],
) -> tuple[set[int], set[int]]:
    """The open flows that rise no further than this level, and the links full by then.

    `users` are the open flows of a link, `capped` those whose cap is this level.
    """
    limit = level * TOLERANCE
    near = {link for link, value in share.items() if value <= limit}
    full = {link for link in near if share[link] == level}
    frozen = capped.union(*[users[link] for link in full])
    while len(full) < len(near):
        met = {link for flow in frozen for link, _ in routes[flow] if link in near} - full
        if not met:
            break
        full |= met
        frozen = frozen.union(*[users[link] for link in met])
    return frozen, full


@dataclass(slots=True)
class _Flow:
    route: Route
    cap: float
    remaining: float
    factor: float = 1.0
    speed: float = 0.0
    updated: float = 0.0
    finish: float = math.inf
    announced: bool = False


class Fluid:
    """The flows under way, their rates, and when the next of them will finish.

    Between two calls of `share` rates are constant. Only the flows connected with a change (through
    links, directly or over other flows) are rated anew. A flow moves at speed = rate / factor, where the
    factor is 1 unless something slows it, which leaves its rate, the share it takes, as it is. A flow whose
    speed comes out the same keeps its finish time to the last bit. For the others, at time `now`:

        remaining = max(0, remaining - speed * (now - updated));  finish = now + remaining / new speed
    """

    def __init__(self, capacity: Sequence[float]) -> None:
        self._capacity = capacity
        self._flows: dict[int, _Flow] = {}
        self._on_link: list[dict[int, None]] = [{} for _ in capacity]
        self._seeds: list[int] = []
        self._freed: list[int] = []

    def __contains__(self, flow: int) -> bool:
        return flow in self._flows

    def finish(self, flow: int) -> float:
        """When the flow ends if nothing changes."""
        return self._flows[flow].finish

    def add(self, flow: int, route: Route, cap: float, volume: float) -> None:
        """Let a flow begin; it has no rate until `share` is called."""
        self._flows[flow] = _Flow(route, cap, volume)
        self._seeds.append(flow)
        for link, _ in route:
            self._on_link[link][flow] = None

    def slow(self, flow: int, factor: float) -> None:
        """Let a flow move at 1 / factor of its rate from the next `share` on."""
        if factor != self._flows[flow].factor:
            self._flows[flow].factor = factor
            self._seeds.append(flow)

    def remove(self, flow: int) -> None:
        """Take away a flow that has ended."""
        for link, _ in self._flows.pop(flow).route:
            del self._on_link[link][flow]
            self._freed.append(link)

    def share(self, now: float) -> list[tuple[float, int]]:
        """Rate anew whatever changed; returns the (finish, flow) pairs that have become the next.

        Of each component of connected flows only those that finish first are announced: when they do,
        the component is rated anew and announces the next.
        """
        seeds = [*self._seeds, *(flow for link in self._freed for flow in self._on_link[link])]
        self._seeds, self._freed = [], []
        seen: set[int] = set()
        coming: list[tuple[float, int]] = []
        for seed in seeds:
            if seed not in seen:
                component = self._component(seed)
                seen.update(component)
                coming.extend(self._rate(component, now))
        return coming

    def _component(self, seed: int) -> list[int]:
        """All flows connected with this one, by index."""
        component = {seed}
        links: set[int] = set()
        frontier = [seed]
        while frontier:
            for link, _ in self._flows[frontier.pop()].route:
                if link not in links:
                    links.add(link)
                    news = [flow for flow in self._on_link[link] if flow not in component]
                    component.update(news)
                    frontier.extend(news)
        return sorted(component)

    def _rate(self, component: Sequence[int], now: float) -> Iterable[tuple[float, int]]:
        flows = [self._flows[flow] for flow in component]
        rates = max_min([f.route for f in flows], [f.cap for f in flows], self._capacity)
        for flow, rate in zip(flows, rates, strict=True):
            speed = rate / flow.factor
            if speed != flow.speed:
                flow.remaining = max(0.0, flow.remaining - flow.speed * (now - flow.updated))
                flow.updated = now
                flow.speed = speed
                flow.finish = now + flow.remaining / speed
                flow.announced = False
        first = min(flow.finish for flow in flows)
        for index, flow in zip(component, flows, strict=True):
            if flow.finish == first and not flow.announced:
                flow.announced = True
                yield first, index
