"""Double binary tree (Sanders et al. 2009, as in NCCL): logarithmic latency for the price of a little bandwidth.

Two complementary trees carry half the buffer each, so every rank sends up to twice the buffer in all: the
same steady load on ports as a ring, with its volume rounded up from 2(n-1)/n to 2.
"""

from __future__ import annotations

from math import ceil, log2

from foretrain.cost.collectives.base import Flows, Ints, Steps
from foretrain.cost.collectives.ring import ring_flows


class Tree:
    """Chains inside a domain, a double binary tree between domains."""

    name = "tree"
    pattern = "ring"  # loads ports as a ring does
    collectives: tuple[str, ...] = ("all_reduce",)

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        return ring_flows(groups, domain_of)

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return 2.0 * size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        inside = 2 * (ceil(ranks / domains) - 1)
        return Steps(inside, 2 * ceil(log2(domains)) if domains > 1 else 0)
