"""Broadcast of long messages: scatter down a binomial tree, then a ring all-gather (van de Geijn).

Thakur et al. 2005: (log₂ n + n - 1)·alpha + 2(n-1)/n·M·beta.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import FromProgram, Steps, levels, log_steps
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.cost.collectives.ring import Ring


class ScatterGather(FromProgram):
    name = "scatter_gather"
    pattern = "scatter_gather"
    collectives: tuple[str, ...] = ("broadcast",)

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        scatter = log_steps(levels(ranks), ranks, domains)
        gather = Ring().steps("all_gather", ranks, domains)
        return Steps(scatter.inside + gather.inside, scatter.between + gather.between)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        rounds = []
        for level in reversed(range(levels(ranks))):
            stride = 1 << level
            dst = np.arange(stride, ranks, 2 * stride)
            blocks = np.minimum(stride, ranks - dst)
            rounds.append(Round.of(dst - stride, dst, blocks * (size / ranks)))
        gather = Ring().program("all_gather", size, layout)
        return CollectiveProgram(ranks, (*rounds, *gather.rounds))
