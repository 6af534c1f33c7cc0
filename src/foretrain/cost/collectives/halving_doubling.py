"""Halving and doubling over pairs at distances 1, 2, 4 …: logarithmic latency at a ring's volume.

Thakur, Rabenseifner & Gropp 2005. Rabenseifner's all-reduce is a recursive halving and a recursive doubling:
2·log₂(n)·alpha + 2(n-1)/n·M·beta. Of a number that is no power of two the surplus ranks first hand their
buffer to a partner and get the result back: two more hops of M.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import FromProgram, Steps, levels, log_steps
from foretrain.cost.collectives.bruck import gather_rounds
from foretrain.cost.collectives.program import CollectiveProgram, Round


class HalvingDoubling(FromProgram):
    """Rabenseifner's all-reduce."""

    name = "halving_doubling"
    pattern = "halving_doubling"
    collectives: tuple[str, ...] = ("all_reduce",)

    def volume(self, collective: str, size: float, ranks: int) -> float:
        core, surplus = core_of(ranks)
        share = 2 * (core - 1) / core
        # Giving away and getting back load one port in two directions, one after the other.
        return size * (share + 2) / (share + 1) if surplus else size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        core, surplus = core_of(ranks)
        return log_steps(2 * levels(core) + 2 * bool(surplus), ranks, domains, 2)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        halving = self._halving(core_of(len(layout))[0], size)
        return _over_pairs(len(layout), size, [*halving, *reversed(halving)])

    def _halving(self, core: int, size: float) -> list[tuple[Ints, float]]:
        """Partners and bytes of every round of the reduce-scatter; the all-gather goes the same way back."""
        return list(reversed(_doubling(core, size)))


class RecursiveDoubling(FromProgram):
    """All-reduce of short messages: log₂ n exchanges of the whole buffer."""

    name = "recursive_doubling"
    pattern = "recursive_doubling"
    collectives: tuple[str, ...] = ("all_reduce",)

    def volume(self, collective: str, size: float, ranks: int) -> float:
        core, surplus = core_of(ranks)
        return size * (levels(core) + 2) / (levels(core) + 1) if surplus else size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        core, surplus = core_of(ranks)
        return log_steps(levels(core) + 2 * bool(surplus), ranks, domains)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        core, _ = core_of(len(layout))
        return _over_pairs(len(layout), size, [(to, size) for to, _ in _doubling(core, size)])


class RecursiveHalves(FromProgram):
    """Reduce-scatter by recursive halving and all-gather by recursive doubling: log₂(n)·alpha + (n-1)/n·M·beta.

    Where n is no power of two: Bruck's distances, forwards or backwards, which need no more rounds.
    """

    name = "recursive_halves"
    pattern = "recursive_halves"
    collectives: tuple[str, ...] = ("reduce_scatter", "all_gather")

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return log_steps(levels(ranks), ranks, domains)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        core, surplus = core_of(ranks)
        if surplus:
            rounds = gather_rounds(ranks, size)
        else:
            rounds = list(_over_pairs(ranks, size, _doubling(core, size)).rounds)
        return CollectiveProgram(
            ranks, tuple(reversed(rounds) if collective == "reduce_scatter" else rounds)
        )


def core_of(ranks: int) -> tuple[int, int]:
    """The largest power of two that is not above, and how many ranks are over."""
    core = 1 << (ranks.bit_length() - 1)
    return core, ranks - core


def _doubling(core: int, size: float) -> list[tuple[Ints, float]]:
    """Partners at distances 1, 2, 4 …, and as much as each has by then."""
    place = np.arange(core)
    return [(place ^ (1 << k), size * (1 << k) / core) for k in range(levels(core))]


def _over_pairs(ranks: int, size: float, exchanges: list[tuple[Ints, float]]) -> CollectiveProgram:
    """Rounds in which the place with number i exchanges with `partners[i]`."""
    _, surplus = core_of(ranks)
    # Of the first 2·surplus ranks the odd ones take part, for themselves and the even one before.
    active = np.concatenate([np.arange(1, 2 * surplus, 2), np.arange(2 * surplus, ranks)])
    rounds = [Round.of(active, active[partners], each) for partners, each in exchanges]
    if surplus:
        even = np.arange(0, 2 * surplus, 2)
        rounds = [Round.of(even, even + 1, size), *rounds, Round.of(even + 1, even, size)]
    return CollectiveProgram(ranks, tuple(rounds))
