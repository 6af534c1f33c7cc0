"""Direct exchange: every rank sends its own part to every other one at the same time."""

from __future__ import annotations

import numpy as np

from foretrain.cost.collectives.base import Flows, Ints, Steps


class Direct:
    """All-to-all as grouped sends and receives: (n-1)/n of the buffer leaves each rank in equal parts."""

    name = "direct"
    pattern = "direct"
    collectives: tuple[str, ...] = ("all_to_all",)

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        count, ranks = groups.shape
        shifts = np.arange(1, ranks)
        partner = (np.arange(ranks)[:, None] + shifts[None, :]) % ranks
        src = np.repeat(groups, ranks - 1, axis=1)
        dst = groups[:, partner.ravel()]
        return Flows(
            group=np.repeat(np.arange(count), ranks * (ranks - 1)),
            src=src.ravel(),
            dst=dst.ravel(),
            weight=np.full(count * ranks * (ranks - 1), 1.0 / (ranks - 1)),
        )

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return (ranks - 1) / ranks * size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return Steps(1, 1) if domains > 1 else Steps(1, 0)
