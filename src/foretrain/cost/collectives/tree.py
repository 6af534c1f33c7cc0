"""Double binary tree (Sanders, Speck & Träff 2009, as in NCCL): logarithmic latency, a little more bandwidth.

Two complementary trees between domains carry half the buffer each; a leaf of one is an inner node of the
other, so every domain but the two roots sends and receives exactly twice the buffer. Inside a domain the
buffer runs along chains. 2·log₂(m)·alpha + 2·M·beta.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import Flows, FromProgram, Steps, in_order, levels
from foretrain.cost.collectives.program import (
    CollectiveProgram,
    Round,
    along,
    pipelined,
    side_by_side,
)
from foretrain.cost.collectives.ring import local_paths, ring_flows


class DoubleTree(FromProgram):
    """The flows of both trees, edge by edge. Roots and leaves differ, so ranks fold less with it."""

    name = "double_tree"
    tuned_as = "tree"
    collectives = ("all_reduce",)

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return Steps(2 * (ceil(ranks / domains) - 1), 2 * levels(domains))

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        return CollectiveProgram(
            len(layout), pipelined(tree_stages(in_order(layout), size), chunks)
        )


class Tree(DoubleTree):
    """The same with what it carries spread evenly over ports: twice the buffer for all, as a ring loads them.

    Exact for every domain but the two roots, and never less than the busiest port inside or between domains
    really carries. Equal ranks stay equal, so that they fold; this is the form that selectors consider.
    """

    name = "tree"
    pattern = "ring"
    is_bound = True

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        return ring_flows(groups, domain_of)

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return 2.0 * size


def parents(count: int) -> Ints:
    """NCCL's binary tree over 0 … count-1: the root 0 has one child, odd numbers are leaves."""
    out = np.full(count, -1, dtype=np.int64)
    for node in range(1, count):
        bit = node & -node
        up = (node ^ bit) | (bit << 1)
        out[node] = up if up < count else node ^ bit
    return out


def double_parents(count: int) -> tuple[Ints, Ints]:
    """The tree and its complement: mirrored for even counts, shifted by one for odd ones."""
    first = parents(count)
    node = np.arange(count)
    if count % 2 == 0:
        up = first[count - 1 - node]
        return first, np.where(up < 0, -1, count - 1 - up)
    up = first[(node - 1) % count]
    return first, np.where(up < 0, -1, (up + 1) % count)


def tree_stages(layout: Ints, size: float) -> list[Round]:
    """One chunk's way: along the chains to the heads, up the trees, down again, back along the chains."""
    paths = local_paths(layout)
    share = size / len(paths)
    heads = [np.array([path[-1] for path in channel]) for channel in paths]
    up = [*_chain_stages(paths, share), *rising(heads, share)]
    return [*up, *reverse(up)]


def rising(heads: list[Ints], share: float) -> list[Round]:
    """Up both trees over domains, for every channel through that channel's heads."""
    count = len(heads[0])
    hops: list[list[Round]] = [[] for _ in range(levels(count))]
    for channel in heads:
        for parent in double_parents(count) if count > 1 else ():
            depth = _depths(parent)
            for level in range(1, int(depth.max()) + 1):
                nodes = np.flatnonzero(depth == level)
                hop = Round.of(channel[nodes], channel[parent[nodes]], share / 2)
                hops[len(hops) - level].append(hop)
    return [Round.joined(parts) for parts in hops]


def reverse(rounds: list[Round]) -> list[Round]:
    return [Round(r.dst, r.src, r.bytes) for r in reversed(rounds)]


def _chain_stages(paths: list[list[Ints]], share: float) -> list[Round]:
    """Chains of all channels and domains, aligned at their heads."""
    backwards = [along(path, share)[::-1] for channel in paths for path in channel]
    return side_by_side(backwards)[::-1]


def _depths(parent: Ints) -> Ints:
    depth = np.zeros(len(parent), dtype=np.int64)
    at = parent.copy()
    while (at >= 0).any():
        depth += at >= 0
        at = np.where(at >= 0, parent[at], -1)
    return depth
