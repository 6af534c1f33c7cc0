"""Direct exchange: every rank sends its own part to every other one, all at once or pair by pair."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import (
    Edges,
    Flows,
    GroupTopology,
    Plain,
    Steps,
    everywhere,
    one_exchange,
)
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.cost.collectives.ring import halves


class Direct(Plain):
    """All-to-all as grouped sends and receives: (n-1)/n of the buffer leaves each rank in equal parts."""

    name = "direct"
    pattern = "direct"

    def streams(self, group: GroupTopology) -> int:
        return group.ranks - 1

    collectives: tuple[str, ...] = ("all_to_all",)

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        return everywhere(groups, _all_pairs(groups.shape[1]))

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return halves(collective) * (ranks - 1) / ranks * size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return one_exchange(domains)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        src, dst, _ = _all_pairs(ranks)
        return CollectiveProgram(ranks, (Round.of(src, dst, size / ranks),) * halves(collective))


class AllPairs(Direct):
    """Reduce-scatter, all-gather and all-reduce in one or two hops: 2·alpha + 2(n-1)/n·M·beta for the latter."""

    name = "all_pairs"
    collectives: tuple[str, ...] = ("all_reduce", "reduce_scatter", "all_gather")

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        one = one_exchange(domains)
        return Steps(halves(collective) * one.inside, halves(collective) * one.between)


class Pairwise(Direct):
    """Every round another partner: (n-1)·alpha, but one message at a time into every port.

    Thakur et al. 2005: all-to-all and reduce-scatter of long messages.
    """

    name = "pairwise"
    collectives: tuple[str, ...] = ("all_to_all", "reduce_scatter")

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        inside = -(-ranks // domains) - 1
        return Steps(inside, ranks - 1 - inside)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        rank = np.arange(ranks)
        return CollectiveProgram(
            ranks,
            tuple(Round.of(rank, (rank + k) % ranks, size / ranks) for k in range(1, ranks)),
        )


def _all_pairs(ranks: int) -> Edges:
    rank, shifts = np.arange(ranks), np.arange(1, ranks)
    partner = (rank[:, None] + shifts[None, :]) % ranks
    weight = np.full(ranks * (ranks - 1), 1.0 / (ranks - 1))
    return np.repeat(rank, ranks - 1), partner.ravel(), weight
