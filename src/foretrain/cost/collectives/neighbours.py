"""Exchange with neighbours: every rank sends to the one before and the one after it, the ends to one only."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import Edges, Flows, Plain, Steps, everywhere, one_exchange
from foretrain.cost.collectives.program import CollectiveProgram, Round


class Neighbours(Plain):
    """Halo rows of a spatial split. The size is what goes to one neighbour; both directions go at once."""

    name = "neighbours"
    pattern = "neighbours"
    collectives: tuple[str, ...] = ("exchange",)

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        return everywhere(groups, _edges(groups.shape[1]))

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return one_exchange(domains)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        src, dst, share = _edges(len(layout))
        return CollectiveProgram(len(layout), (Round.of(src, dst, share * size),))


def _edges(ranks: int) -> Edges:
    low, high = np.arange(ranks - 1), np.arange(1, ranks)
    return np.concatenate([low, high]), np.concatenate([high, low]), np.ones(2 * (ranks - 1))
