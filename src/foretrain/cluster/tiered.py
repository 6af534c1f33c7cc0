"""Tiered fabric: ports under leaf switches, leaf switches under the next tier, up to one top.

Fat trees, rail-optimised networks and hierarchies are all of this kind; they differ in who shares a leaf
and how wide the uplinks are. A group of tier `t` has `width[t]` equal switches (one for leaves); every switch is
joined to every switch of the group above.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.fabric import Fabric, Routes, Site, compressed, expect_links, left_packed


@dataclass(frozen=True, eq=False, slots=True)
class Tier:
    """One tier of switches: the group each port belongs to, and what leads up from each group."""

    name: str
    group: Ints
    uplink: Floats
    """Bytes/s from each group to the tier above, all switches together; empty for the top."""
    width: int = 1
    latency: float = 0.0
    """Seconds that crossing to the tier above adds."""


def whole_uplinks(site: Site, group: Ints, ratio: float, whole_nodes: int) -> Floats:
    """Uplink rate of groups: what all ports of a *full* group carry, divided by the oversubscription.

    A group with nodes missing keeps the uplinks it was built with.
    """
    below = np.bincount(group, weights=site.bandwidth)
    pairs = np.unique(np.stack([group, site.host], axis=1), axis=0)
    nodes = np.bincount(pairs[:, 0], minlength=len(below))
    return np.asarray(below * np.maximum(whole_nodes / nodes, 1.0) / ratio)


class _Numbering:
    """Which numbers the vertices and links of a tiered fabric have."""

    def __init__(self, ports: int, tiers: Sequence[Tier]) -> None:
        self.ports = ports
        self.tiers = tiers
        self.groups = [int(tier.group.max()) + 1 for tier in tiers]
        self.vertex = [ports]
        for groups, tier in zip(self.groups, tiers, strict=True):
            self.vertex.append(self.vertex[-1] + groups * tier.width)
        self.pairs = [tier.width * above.width for tier, above in itertools.pairwise(tiers)]
        self.up = [2 * ports]
        for groups, pairs in zip(self.groups, self.pairs, strict=False):
            self.up.append(self.up[-1] + 2 * groups * pairs)

    @property
    def links(self) -> int:
        return self.up[-1]

    def name(self, vertex: int) -> str:
        if vertex < self.ports:
            return f"nic{vertex}"
        tier = int(np.searchsorted(self.vertex, vertex, side="right")) - 1
        return f"{self.tiers[tier].name}{vertex - self.vertex[tier]}"


def tiered_fabric(site: Site, tiers: Sequence[Tier]) -> Fabric:
    """Routes go up to the lowest switches both ports share and down again.

    One path: the switch of each tier is chosen by the receiver's number (destination-modulo-k, as subnet
    managers of InfiniBand do). Spread: over all switches of each tier alike.
    """
    numbers = _Numbering(site.ports, tiers)
    expect_links(numbers.links, "The network")
    tail, head, capacity, latency = _links(site, numbers)
    ports = np.arange(site.ports, dtype=np.int64)
    single = _Ways(numbers)
    is_wide = any(tier.width > 1 for tier in tiers)
    return Fabric(
        capacity=capacity,
        latency=latency,
        tail=tail,
        head=head,
        port_vertex=ports,
        route=single.route,
        vertex_name=numbers.name,
        spread=single.spread if is_wide else None,
        link_port=np.concatenate([ports, ports, np.full(len(tail) - 2 * site.ports, -1)]),
        diameter=_diameter(tiers),
    )


def _diameter(tiers: Sequence[Tier]) -> int:
    """Twice as many links as tiers up to the first that joins all."""
    for number, tier in enumerate(tiers):
        if int(tier.group.max()) == 0:
            return 2 * (number + 1)
    return 2 * len(tiers)


def _links(site: Site, numbers: _Numbering) -> tuple[Ints, Ints, Floats, Floats]:
    ports = np.arange(site.ports, dtype=np.int64)
    leaf = numbers.vertex[0] + numbers.tiers[0].group * numbers.tiers[0].width
    tails, heads = [ports, leaf], [leaf, ports]
    rates, delays = [site.bandwidth, site.bandwidth], [site.latency / 2, site.latency / 2]
    for level, pairs in enumerate(numbers.pairs):
        tier, above = numbers.tiers[level], numbers.tiers[level + 1]
        parent = np.zeros(numbers.groups[level], dtype=np.int64)
        parent[tier.group] = above.group
        group, pair = np.divmod(np.arange(numbers.groups[level] * pairs), pairs)
        low, high = np.divmod(pair, above.width)
        below = numbers.vertex[level] + group * tier.width + low
        over = numbers.vertex[level + 1] + parent[group] * above.width + high
        tails += [below, over]
        heads += [over, below]
        rates += [tier.uplink[group] / pairs] * 2
        delays += [np.full(len(group), tier.latency)] * 2
    return tuple(np.concatenate(part) for part in (tails, heads, rates, delays))  # type: ignore[return-value]


class _Ways:
    def __init__(self, numbers: _Numbering) -> None:
        self._numbers = numbers

    def route(self, src: Ints, dst: Ints) -> Ints:
        switch = [dst % tier.width for tier in self._numbers.tiers]
        pair = [
            low * tier.width + high
            for low, high, tier in zip(switch, switch[1:], self._numbers.tiers[1:], strict=False)
        ]
        return left_packed(self._columns(src, dst, [one[:, None] for one in pair]))

    def spread(self, src: Ints, dst: Ints) -> Routes:
        pairs = self._numbers.pairs
        rows = self._columns(src, dst, [np.arange(count)[None, :] for count in pairs])
        up = [np.full(count, 1.0 / count) for count in pairs]
        one = np.ones(1)
        return compressed(rows, np.concatenate([one, *up, *up[::-1], one]))

    def _columns(self, src: Ints, dst: Ints, pair: Sequence[Ints]) -> Ints:
        """Links up and down by tier, -1 above the first tier that both ports share."""
        numbers = self._numbers
        apart = src != dst
        up = [np.where(apart, src, -1)[:, None]]
        down = [np.where(apart, dst + numbers.ports, -1)[:, None]]
        for level, count in enumerate(numbers.pairs):
            group = numbers.tiers[level].group
            a, b = group[src], group[dst]
            climbs = (a != b)[:, None]
            base = numbers.up[level]
            back = base + numbers.groups[level] * count
            up.append(np.where(climbs, base + a[:, None] * count + pair[level], -1))
            down.append(np.where(climbs, back + b[:, None] * count + pair[level], -1))
        return np.concatenate([*up, *down[::-1]], axis=1)
