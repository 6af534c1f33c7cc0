"""Ring: every rank passes to its neighbour; reduce-scatter then all-gather make an all-reduce.

Patarasuk & Yuan 2009: all-reduce moves 2(n-1)/n of the buffer over every hop, its halves (n-1)/n.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import Edges, Flows, Plain, Steps, by_layout, in_order
from foretrain.cost.collectives.channels import channel_rings
from foretrain.cost.collectives.program import CollectiveProgram, Round


class Ring(Plain):
    """Rings laid out as NCCL does: one channel per rank that a domain holds, each channel leaving the domain
    through another rank's port, so that all ports work in parallel."""

    name = "ring"
    pattern = "ring"
    is_ring = True
    collectives: tuple[str, ...] = ("all_reduce", "reduce_scatter", "all_gather")

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        return ring_flows(groups, domain_of)

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return halves(collective) * (ranks - 1) / ranks * size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        between = halves(collective) * (domains - 1) if domains > 1 else 0
        return Steps(halves(collective) * (ranks - 1) - between, between)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        rings = channel_rings(in_order(layout))
        each = size / (ranks * len(rings))
        one = Round.joined([Round.of(ring, np.roll(ring, -1), each) for ring in rings])
        return CollectiveProgram(ranks, (one,) * (halves(collective) * (ranks - 1)))


def halves(collective: str) -> int:
    """An all-reduce is a reduce-scatter and an all-gather."""
    return 2 if collective == "all_reduce" else 1


def ring_flows(groups: Ints, domain_of: Ints) -> Flows:
    count, ranks = groups.shape
    order = np.argsort(domain_of[groups], axis=1, kind="stable")
    members = np.take_along_axis(groups, order, axis=1)
    domains = domain_of[members]
    per_domain = _even_share(domains)
    if per_domain is None:
        return by_layout(groups, domain_of, _edges)
    if per_domain == ranks:
        return _single_ring(members)
    nodes = ranks // per_domain
    grid = members.reshape(count, nodes, per_domain)
    number = np.broadcast_to(np.arange(count)[:, None, None], grid.shape)
    parts = [(grid, np.roll(grid, -1, axis=1), 1.0 / per_domain)]
    if per_domain > 1:
        parts.append((grid, np.roll(grid, -1, axis=2), (per_domain - 1) / per_domain))
    return Flows(
        group=np.concatenate([number.ravel() for _ in parts]),
        src=np.concatenate([src.ravel() for src, _, _ in parts]),
        dst=np.concatenate([dst.ravel() for _, dst, _ in parts]),
        weight=np.concatenate([np.full(grid.size, weight) for _, _, weight in parts]),
    )


def _edges(layout: Ints) -> Edges:
    """Flows of one layout. Unlike numbers of ranks per domain: as many rings as the smallest has ports."""
    order = np.argsort(layout, kind="stable")
    if _even_share(layout[order][None, :]) is not None:
        found = ring_flows(np.arange(len(layout))[None, :], layout)
        return found.src, found.dst, found.weight
    rings = channel_rings(layout)
    src = np.concatenate(rings)
    dst = np.concatenate([np.roll(ring, -1) for ring in rings])
    pairs, uses = np.unique(src * len(layout) + dst, return_counts=True)
    return pairs // len(layout), pairs % len(layout), uses / len(rings)


def _single_ring(members: Ints) -> Flows:
    count, ranks = members.shape
    return Flows(
        group=np.repeat(np.arange(count), ranks),
        src=members.ravel(),
        dst=np.roll(members, -1, axis=1).ravel(),
        weight=np.ones(count * ranks),
    )


def _even_share(domains: Ints) -> int | None:
    """Ranks per domain where every group has the same number in each of its domains, else None."""
    changes = (domains[:, 1:] != domains[:, :-1]).sum(axis=1) + 1
    count, ranks = domains.shape
    nodes = int(changes[0])
    if (changes != nodes).any() or ranks % nodes:
        return None
    grid = domains.reshape(count, nodes, ranks // nodes)
    return ranks // nodes if (grid == grid[:, :, :1]).all() else None
