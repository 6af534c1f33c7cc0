"""Chain: the ring cut open at the root. Broadcast runs down it in chunks, reduce up it (NCCL's way).

n-1 hops of latency, then every hop carries the buffer once: (n-1)·alpha + M·beta.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import FromProgram, Steps, in_order
from foretrain.cost.collectives.channels import channel_rings
from foretrain.cost.collectives.program import CollectiveProgram, Round, pipelined


@dataclass(frozen=True)
class ChainAlgorithm(FromProgram):
    """`collective` is broadcast or reduce; the root is the group's first rank."""

    collective: str = "broadcast"
    name = "chain"

    @property
    def pattern(self) -> str:
        return f"chain {self.collective}"

    @property
    def collectives(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.collective,)

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return Steps(ranks - domains, domains - 1)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        rings = channel_rings(in_order(layout))
        paths = [np.roll(ring, -int(np.flatnonzero(ring == 0)[0])) for ring in rings]
        if collective == "reduce":
            paths = [path[::-1] for path in paths]
        each = size / len(paths)
        stages = [
            Round.joined([Round.of(p[hop : hop + 1], p[hop + 1 : hop + 2], each) for p in paths])
            for hop in range(len(layout) - 1)
        ]
        return CollectiveProgram(len(layout), pipelined(stages, chunks))
