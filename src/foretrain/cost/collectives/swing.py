"""Swing: halving and doubling over pairs that alternate direction, so that partners stay near on a ring or torus.

De Sensi, Bonato, Saam & Hoefler, NSDI 2024 (arXiv 2401.09356), bandwidth-optimal form: in round s even ranks exchange
with the rank rho(s) further, odd ones with the rank rho(s) before, where rho(s) = (1 - (-2)^(s+1)) / 3: distances 1, 1, 3,
5, 11 … in place of 1, 2, 4, 8, 16, with most bytes in the first rounds, between neighbours. Time on uniform links is that
of Rabenseifner's all-reduce: 2·log₂(n)·alpha + 2(n-1)/n·M·beta. Surplus ranks of a number that is no power of two hand
over their buffer first, as there; the paper's own forms for such numbers, which save those two hops, are not modelled.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import Steps, levels
from foretrain.cost.collectives.halving_doubling import HalvingDoubling, core_of


class Swing(HalvingDoubling):
    """Short-cut rings: on a switch no better than Rabenseifner's, on a torus with less on every cable."""

    name = "swing"
    pattern = "swing"

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        rounds = super().steps(collective, ranks, 1).inside
        if domains == 1:
            return Steps(rounds, 0)
        # from the second round on somebody's partner is beyond the end of its domain
        is_paired = not core_of(ranks)[1] and ranks % (2 * domains) == 0
        return Steps(2, rounds - 2) if is_paired else Steps(0, rounds)

    def _halving(self, core: int, size: float) -> list[tuple[Ints, float]]:
        place = np.arange(core)
        direction = np.where(place % 2 == 0, 1, -1)
        return [
            ((place + direction * distance(step)) % core, size / 2 ** (step + 1))
            for step in range(levels(core))
        ]


def distance(step: int) -> int:
    """How far an even rank's partner is in a round, negative where it is before it."""
    return int((1 - (-2) ** (step + 1)) // 3)
