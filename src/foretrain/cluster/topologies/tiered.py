"""Tiered fabric: ports under leaf switches, leaf switches under the next tier, up to one top.

Fat trees, rail-optimised networks and hierarchies are all of this kind; they differ in who shares a leaf
and how wide the uplinks are. A group of tier `t` has `width[t]` equal switches (one for leaves); every switch is
joined to every switch of the group above.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.fabric import Fabric, Routes, Site, compressed, expect_links, left_packed
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import Bandwidth, Count, Number, Seconds
from foretrain.errors import ClusterError, refuse
from foretrain.loading import Strict


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


# --- networks of this kind ------------------------------------------------------------------------------

WORDS = ("leaf", "spine", "core")


@dataclass(frozen=True, slots=True)
class FatTreeParameters(Strict):
    leaf_nodes: Count = 16
    """Nodes under one leaf switch."""
    pod_leaves: Count | tuple[Count, ...] | None = None
    """Leaves under one pod of spines; with it the tree has a core above. A list goes on upwards."""
    oversubscription: Number | tuple[Number, ...] = 1.0
    """Of all tiers alike, or tier by tier from the leaves up."""
    spines: Count | tuple[Count, ...] = 1
    """Switches of each group above the leaves."""
    hop_latency: Seconds = 0.0
    """Added by each switch above the leaf."""


def fat_tree(site: Site, network: ClusterNetwork, given: FatTreeParameters) -> Fabric:
    """Fat tree: nodes under leaf switches, leaves under spines, pods of leaves under a core, as many tiers as wanted.

    `oversubscription` r of a tier: its switches have r times more bandwidth to below than to above. Al-Fares et
    al., "A scalable, commodity data center network architecture", SIGCOMM 2008. Spines that are not counted
    (`spines: 1`) stand for as many as perfect spreading needs; counted ones are cables of their own, over which
    `ecmp` spreads and `shortest` chooses one by the receiver's number.
    """
    pods = given.pod_leaves or ()
    sizes = [given.leaf_nodes, *(pods if isinstance(pods, tuple) else (pods,))]
    ratios = per_tier("oversubscription", given.oversubscription, len(sizes))
    widths = [1, *(int(count) for count in per_tier("spines", given.spines, len(sizes)))]
    _, host = np.unique(site.host, return_inverse=True)
    tiers, nodes = [], 1
    for number, size in enumerate(sizes):
        nodes = min(nodes * size, 2**40)  # more than there can be
        group = host // nodes
        # a tier's ratio is to the tier below, so the ratios multiply on the way up
        over = float(np.prod(ratios[: number + 1]))
        uplink = whole_uplinks(site, group, over, nodes)
        tiers.append(Tier(_word(number), group, uplink, widths[number], given.hop_latency))
    top = Tier(_word(len(sizes)), np.zeros_like(host), np.empty(0), widths[-1])
    return tiered_fabric(site, [*tiers, top])


def _word(tier: int) -> str:
    return WORDS[tier] if tier < len(WORDS) else f"tier{tier}."


def per_tier(name: str, given: Any, tiers: int) -> tuple[float, ...]:
    """One value for each tier with uplinks."""
    if not isinstance(given, tuple):
        return (given,) * tiers
    if len(given) != tiers:
        raise ClusterError(
            "Invalid network:",
            faults=[f"{name}: {len(given)} values for {tiers} tiers with uplinks."],
        )
    return given


@dataclass(frozen=True, slots=True)
class RailParameters(Strict):
    leaf_nodes: Count = 32
    """Nodes whose card r shares a leaf."""
    oversubscription: Number = 1.0
    """Bandwidth of a leaf to its nodes over that to the spines."""
    spines: Count = 1
    """Spine switches; 1 stands for as many as perfect spreading needs."""
    hop_latency: Seconds = 0.0


def rail(site: Site, network: ClusterNetwork, given: RailParameters) -> Fabric:
    """Rail-optimised network: card r of every node is plugged into the leaf switch of rail r, spines join the rails.

    Ranks with the same place in their nodes meet under one leaf. The default of 32 nodes to a leaf is the scalable
    unit of NVIDIA's DGX SuperPOD H100 reference architecture (RA-11333-001).
    """
    _, first, host = np.unique(site.host, return_index=True, return_inverse=True)
    rail = np.arange(site.ports) - first[host]
    unit = host // given.leaf_nodes
    # not every node need have every rail, so leaves are numbered as found
    _, leaf = np.unique(unit * (int(rail.max()) + 1) + rail, return_inverse=True)
    uplink = whole_uplinks(site, leaf, given.oversubscription, given.leaf_nodes)
    top = Tier("spine", np.zeros_like(leaf), np.empty(0), given.spines)
    return tiered_fabric(site, [Tier("leaf", leaf, uplink, 1, given.hop_latency), top])


@dataclass(frozen=True, slots=True)
class HierarchyParameters(Strict):
    sizes: tuple[Count, ...] = (8,)
    uplink_bandwidths: tuple[Bandwidth, ...] | None = None
    """One direction of each switch's uplink, tier by tier; without it uplinks carry all that is below."""
    uplink_latencies: tuple[Seconds, ...] | None = None


def hierarchical(site: Site, network: ClusterNetwork, given: HierarchyParameters) -> Fabric:
    """Tiers of switches with any sizes and rates: racks, rows, halls, sites.

    `sizes` are how many nodes (then switches) each switch of a tier joins, `uplink_bandwidths` what leads up from
    each switch; one top joins all that is left.
    """
    _require_lengths(given)
    _, host = np.unique(site.host, return_inverse=True)
    delays = given.uplink_latencies or (0.0,) * len(given.sizes)
    tiers = []
    for number in range(len(given.sizes)):
        nodes = min(math.prod(given.sizes[: number + 1]), 2**40)  # more than there can be
        group = host // nodes
        if given.uplink_bandwidths is None:
            uplink = whole_uplinks(site, group, 1.0, nodes)
        else:
            uplink = np.full(int(group.max()) + 1, given.uplink_bandwidths[number])
        tiers.append(Tier(f"tier{number + 1}.", group, uplink, 1, delays[number]))
    top = Tier("top", np.zeros_like(host), np.empty(0))
    return tiered_fabric(site, [*tiers, top])


def _require_lengths(given: HierarchyParameters) -> None:
    tiers = len(given.sizes)
    faults = [] if given.sizes else ["sizes: empty; specify at least one tier."]
    for name in ("uplink_bandwidths", "uplink_latencies"):
        values = getattr(given, name)
        if values is not None and len(values) != tiers:
            faults.append(f"{name}: {len(values)} values for {tiers} tiers in sizes.")
    refuse("Invalid network:", faults, ClusterError)
