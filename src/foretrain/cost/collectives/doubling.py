"""Exchanges over distances 1, 2, 4 …: logarithmic latency.

Thakur, Rabenseifner & Gropp 2005. Rabenseifner's all-reduce is a recursive halving and a recursive doubling:
2·log₂(n)·alpha + 2(n-1)/n·M·beta. Of a number that is no power of two the surplus ranks first hand their
buffer to a partner and get the result back: two more hops of M.

Bruck et al. 1997, around a circle, for any number of ranks: all-gather ⌈log₂ n⌉·alpha + (n-1)/n·M·beta; all-to-all
⌈log₂ n⌉·alpha + (M/2)·log₂(n)·beta.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cost.collectives.base import FromProgram, PerCollective, Steps, levels, log_steps
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.cost.collectives.ring import Ring


class HalvingDoubling(FromProgram):
    """Rabenseifner's all-reduce."""

    name = "halving_doubling"
    collectives = ("all_reduce",)

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
    collectives = ("all_reduce",)

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


class Swing(HalvingDoubling):
    """Pairs that alternate direction, so that partners stay near on a ring or torus: on a switch no better than
    Rabenseifner's, on a torus with less on every cable.

    De Sensi, Bonato, Saam & Hoefler, NSDI 2024 (arXiv 2401.09356), bandwidth-optimal form: in round s even ranks exchange
    with the rank rho(s) further, odd ones with the rank rho(s) before, where rho(s) = (1 - (-2)^(s+1)) / 3: distances 1,
    1, 3, 5, 11 … in place of 1, 2, 4, 8, 16, with most bytes in the first rounds, between neighbours. Surplus ranks of a
    number that is no power of two hand over their buffer first, as there; the paper's own forms for such numbers, which
    save those two hops, are not modelled.
    """

    name = "swing"

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


class _Logarithmic(FromProgram):
    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return log_steps(levels(ranks), ranks, domains)


class Bruck(_Logarithmic):
    """All-to-all that forwards blocks through others: few messages for more bytes."""

    name = "bruck"
    collectives = ("all_to_all",)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        rank, rounds = np.arange(ranks), []
        for k in range(levels(ranks)):
            blocks = int(((rank >> k) & 1).sum())  # those whose way to go has this distance in it
            rounds.append(Round.of(rank, (rank + (1 << k)) % ranks, blocks * size / ranks))
        return CollectiveProgram(ranks, tuple(rounds))


class Pat(_Logarithmic):
    """All-gather by doubling distances, reduce-scatter by the same backwards: NCCL's PAT."""

    name = "pat"
    collectives = ("reduce_scatter", "all_gather")

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        rounds = self._gather(len(layout), size)
        if collective == "reduce_scatter":
            rounds.reverse()
        return CollectiveProgram(len(layout), tuple(rounds))

    def _gather(self, ranks: int, size: float) -> list[Round]:
        rank = np.arange(ranks)
        return [
            Round.of(
                rank, (rank - (1 << k)) % ranks, min(1 << k, ranks - (1 << k)) * (size / ranks)
            )
            for k in range(levels(ranks))
        ]


class RecursiveHalves(Pat):
    """Reduce-scatter by recursive halving and all-gather by recursive doubling: log₂(n)·alpha + (n-1)/n·M·beta.

    Where n is no power of two: Bruck's distances, forwards or backwards, which need no more rounds.
    """

    name = "recursive_halves"

    def _gather(self, ranks: int, size: float) -> list[Round]:
        core, surplus = core_of(ranks)
        if surplus:
            return super()._gather(ranks, size)
        return list(_over_pairs(ranks, size, _doubling(core, size)).rounds)


class Binomial(PerCollective):
    """Whoever has the buffer passes it on, so that holders double every round; rank 0 is the root. An all-reduce is a
    reduce, then a broadcast.

    ⌈log₂ n⌉(alpha + M·beta) for either.
    """

    name = "binomial"

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
        down = [_from_holders(ranks, 1 << k, size) for k in range(levels(ranks))]
        up = [Round(r.dst, r.src, r.bytes) for r in reversed(down)]
        parts = {"broadcast": down, "reduce": up, "all_reduce": [*up, *down]}
        return CollectiveProgram(ranks, tuple(parts[collective]))


def _from_holders(ranks: int, holders: int, size: float) -> Round:
    dst = np.arange(holders, min(2 * holders, ranks))
    return Round.of(dst - holders, dst, size)


class ScatterGather(FromProgram):
    """Broadcast of long messages: scatter down a binomial tree, then a ring all-gather (van de Geijn).

    Thakur et al. 2005: (log₂ n + n - 1)·alpha + 2(n-1)/n·M·beta.
    """

    name = "scatter_gather"
    collectives = ("broadcast",)

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
