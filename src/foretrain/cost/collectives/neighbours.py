"""Exchange with neighbours: every rank sends to the one before and the one after it, the ends to one only."""

from __future__ import annotations

import numpy as np

from foretrain.cost.collectives.base import Flows, Ints, Steps


class Neighbours:
    """Halo rows of a spatial split. The size is what goes to one neighbour; both directions go at once."""

    name = "neighbours"
    pattern = "neighbours"
    collectives: tuple[str, ...] = ("exchange",)

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        count, ranks = groups.shape
        low, high = groups[:, :-1], groups[:, 1:]
        number = np.repeat(np.arange(count), ranks - 1)
        return Flows(
            group=np.concatenate([number, number]),
            src=np.concatenate([low.ravel(), high.ravel()]),
            dst=np.concatenate([high.ravel(), low.ravel()]),
            weight=np.ones(2 * count * (ranks - 1)),
        )

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return Steps(1, 1) if domains > 1 else Steps(1, 0)
