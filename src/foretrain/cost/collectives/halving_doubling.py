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
        core, _ = core_of(len(layout))
        doubling = [(1 << k, size * (1 << k) / core) for k in range(levels(core))]
        return _over_pairs(len(layout), size, [*reversed(doubling), *doubling])


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
        return _over_pairs(len(layout), size, [(1 << k, size) for k in range(levels(core))])


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
            pairs = [(1 << k, size * (1 << k) / ranks) for k in range(levels(core))]
            rounds = list(_over_pairs(ranks, size, pairs).rounds)
        return CollectiveProgram(
            ranks, tuple(reversed(rounds) if collective == "reduce_scatter" else rounds)
        )


def core_of(ranks: int) -> tuple[int, int]:
    """The largest power of two that is not above, and how many ranks are over."""
    core = 1 << (ranks.bit_length() - 1)
    return core, ranks - core


def _over_pairs(ranks: int, size: float, exchanges: list[tuple[int, float]]) -> CollectiveProgram:
    core, surplus = core_of(ranks)
    # Of the first 2·surplus ranks the odd ones take part, for themselves and the even one before.
    active = np.concatenate([np.arange(1, 2 * surplus, 2), np.arange(2 * surplus, ranks)])
    place = np.arange(core)
    rounds = [Round.of(active, active[place ^ far], each) for far, each in exchanges]
    if surplus:
        even = np.arange(0, 2 * surplus, 2)
        rounds = [Round.of(even, even + 1, size), *rounds, Round.of(even + 1, even, size)]
    return CollectiveProgram(ranks, tuple(rounds))
