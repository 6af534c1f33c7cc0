"""Max-min fair sharing: knows capacities and demands only.

*Progressive filling* (Bertsekas & Gallager, Data Networks, 2nd ed., section 6.5.2): the rates of all
flows rise together; a flow freezes when a link it crosses is full or when it reaches its own cap; the
others rise on. A flow of weight w on a link loads it with w times its rate.

The arithmetic, which the compiled engine repeats operation by operation:

    left[l]  = capacity[l];  load[l] = sum of the weights on l, added in flow order
    repeat until every flow is frozen:
        share[l] = left[l] / load[l]                  for links that still have open flows
        level    = max(level, min(all shares, caps of open flows))     level starts at 0
        limit    = level * (1 + 1e-12)
        freeze at `level`, in flow order, each open flow whose cap <= limit or that crosses a link
        with share <= limit; for each of its links: left -= weight * level, load -= weight

In exact arithmetic the level never falls; `max` keeps rounding from making it. The tolerance in
`limit` makes links that are full at the same moment freeze in one round, so equal flows get equal rates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Route = Sequence[tuple[int, float]]
"""(link, weight) pairs, each link once"""

TOLERANCE = 1.0 + 1e-12


def max_min(
    routes: Sequence[Route], caps: Sequence[float], capacity: Sequence[float]
) -> list[float]:
    """The weighted max-min fair rate of each flow, given its route and cap."""
    left: dict[int, float] = {}
    load: dict[int, float] = {}
    users: dict[int, int] = {}
    for route in routes:
        for link, weight in route:
            left[link] = capacity[link]
            load[link] = load.get(link, 0.0) + weight
            users[link] = users.get(link, 0) + 1
    share = {link: left[link] / load[link] for link in users}
    crossed = [[link for link, _ in route] for route in routes]
    rates = [0.0] * len(routes)
    rising = list(range(len(routes)))
    level = 0.0
    while rising:
        least = min(share.values(), default=math.inf)
        level = max(level, min(least, min([caps[flow] for flow in rising])))
        limit = level * TOLERANCE
        full = {link for link, value in share.items() if value <= limit}
        frozen = [f for f in rising if caps[f] <= limit or not full.isdisjoint(crossed[f])]
        for flow in frozen:
            rates[flow] = level
            for link, weight in routes[flow]:
                left[link] -= weight * level
                load[link] -= weight
                users[link] -= 1
                if users[link]:
                    share[link] = _share(left[link], load[link])
                else:
                    del share[link]
        done = set(frozen)
        rising = [flow for flow in rising if flow not in done]
    return rates


def _share(left: float, load: float) -> float:
    """What each unit of load may still have; 0 where rounding has eaten the load itself."""
    return left / load if load > 0.0 else 0.0


@dataclass(slots=True)
class _Flow:
    route: Route
    cap: float
    remaining: float
    rate: float = 0.0
    updated: float = 0.0
    finish: float = math.inf
    announced: bool = False


class Fluid:
    """The flows under way, their rates, and when the next of them will finish.

    Between two calls of `share` rates are constant. Only the flows connected with a change (through
    links, directly or over other flows) are rated anew, and a flow whose rate comes out the same keeps
    its finish time to the last bit. For the others, at time `now`:

        remaining = max(0, remaining - rate * (now - updated));  finish = now + remaining / new rate
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
        found = {seed}
        links: set[int] = set()
        frontier = [seed]
        while frontier:
            for link, _ in self._flows[frontier.pop()].route:
                if link not in links:
                    links.add(link)
                    news = [flow for flow in self._on_link[link] if flow not in found]
                    found.update(news)
                    frontier.extend(news)
        return sorted(found)

    def _rate(self, component: Sequence[int], now: float) -> Iterable[tuple[float, int]]:
        flows = [self._flows[flow] for flow in component]
        rates = max_min([f.route for f in flows], [f.cap for f in flows], self._capacity)
        for flow, rate in zip(flows, rates, strict=True):
            if rate != flow.rate:
                flow.remaining = max(0.0, flow.remaining - flow.rate * (now - flow.updated))
                flow.updated = now
                flow.rate = rate
                flow.finish = now + flow.remaining / rate
                flow.announced = False
        first = min(flow.finish for flow in flows)
        for index, flow in zip(component, flows, strict=True):
            if flow.finish == first and not flow.announced:
                flow.announced = True
                yield first, index
