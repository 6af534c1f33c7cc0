"""Binomial tree: whoever has the buffer passes it on, so that holders double every round.

Thakur, Rabenseifner & Gropp 2005: broadcast ⌈log₂ n⌉(alpha + M·beta), reduce the same, both for an all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import FromProgram, Steps, levels, log_steps
from foretrain.cost.collectives.program import CollectiveProgram, Round


@dataclass(frozen=True)
class Binomial(FromProgram):
    """`collective` is broadcast, reduce or all_reduce (a reduce, then a broadcast); rank 0 is the root."""

    collective: str = "broadcast"
    name = "binomial"

    @property
    def pattern(self) -> str:
        return f"binomial {self.collective}"

    @property
    def collectives(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.collective,)

    def volume(self, collective: str, size: float, ranks: int) -> float:
        # The root's port first receives, then sends: the two phases do not overlap.
        return 2.0 * size if collective == "all_reduce" else size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        phases = 2 if collective == "all_reduce" else 1
        return log_steps(phases * levels(ranks), ranks, domains, phases)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        down = [_doubling(ranks, 1 << k, size) for k in range(levels(ranks))]
        up = [Round(r.dst, r.src, r.bytes) for r in reversed(down)]
        parts = {"broadcast": down, "reduce": up, "all_reduce": [*up, *down]}
        return CollectiveProgram(ranks, tuple(parts[collective]))


def _doubling(ranks: int, holders: int, size: float) -> Round:
    dst = np.arange(holders, min(2 * holders, ranks))
    return Round.of(dst - holders, dst, size)
