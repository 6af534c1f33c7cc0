"""Bruck et al. 1997: exchanges over distances 1, 2, 4 … around a circle, for any number of ranks.

All-gather ⌈log₂ n⌉·alpha + (n-1)/n·M·beta; all-to-all ⌈log₂ n⌉·alpha + (M/2)·log₂(n)·beta: few messages
for more bytes. NCCL's PAT is the all-gather and its reverse.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import FromProgram, Steps, levels, log_steps
from foretrain.cost.collectives.program import CollectiveProgram, Round


class Bruck(FromProgram):
    """All-to-all that forwards blocks through others."""

    name = "bruck"
    pattern = "bruck"
    collectives: tuple[str, ...] = ("all_to_all",)

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return log_steps(levels(ranks), ranks, domains)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        rank, rounds = np.arange(ranks), []
        for k in range(levels(ranks)):
            blocks = int(((rank >> k) & 1).sum())  # those whose way to go has this distance in it
            rounds.append(Round.of(rank, (rank + (1 << k)) % ranks, blocks * size / ranks))
        return CollectiveProgram(ranks, tuple(rounds))


class Pat(FromProgram):
    """All-gather by doubling distances, reduce-scatter by the same backwards."""

    name = "pat"
    pattern = "pat"
    collectives: tuple[str, ...] = ("reduce_scatter", "all_gather")

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return log_steps(levels(ranks), ranks, domains)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        rounds = gather_rounds(len(layout), size)
        if collective == "reduce_scatter":
            rounds.reverse()
        return CollectiveProgram(len(layout), tuple(rounds))


def gather_rounds(ranks: int, size: float) -> list[Round]:
    rank = np.arange(ranks)
    return [
        Round.of(rank, (rank - (1 << k)) % ranks, min(1 << k, ranks - (1 << k)) * (size / ranks))
        for k in range(levels(ranks))
    ]
