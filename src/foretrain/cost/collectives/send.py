"""Point to point: one message from the first rank of a pair to the second."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import Flows, Plain, Steps
from foretrain.cost.collectives.program import CollectiveProgram, Round


class Send(Plain):
    """A send and its matching receive."""

    name = "send"
    pattern = "send"
    has_own_lane = True
    collectives: tuple[str, ...] = ("send",)

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        count = len(groups)
        return Flows(np.arange(count), groups[:, 0], groups[:, 1], np.ones(count))

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return Steps(0, 1) if domains > 1 else Steps(1, 0)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        return CollectiveProgram(len(layout), (Round.of(np.array([0]), np.array([1]), size),))
