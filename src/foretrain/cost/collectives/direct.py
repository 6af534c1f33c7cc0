"""Direct exchange: ranks send their own parts to those who need them, all at once or pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cost.collectives.base import (
    Algorithm,
    Edges,
    Flows,
    GroupTopology,
    OneExchange,
    Steps,
    everywhere,
    one_exchange,
)
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.cost.collectives.ring import halves
from foretrain.errors import InputError


class Direct(Algorithm):
    """All-to-all as grouped sends and receives: (n-1)/n of the buffer leaves each rank in equal parts."""

    name = "direct"
    pattern = "direct"

    def streams(self, group: GroupTopology) -> int:
        return group.ranks - 1

    collectives: tuple[str, ...] = ("all_to_all",)

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        return everywhere(groups, _all_pairs(groups.shape[1]))

    def volume(self, collective: str, size: float, ranks: int) -> float:
        return halves(collective) * (ranks - 1) / ranks * size

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return one_exchange(domains)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        src, dst, _ = _all_pairs(ranks)
        return CollectiveProgram(ranks, (Round.of(src, dst, size / ranks),) * halves(collective))


class AllPairs(Direct):
    """Reduce-scatter, all-gather and all-reduce in one or two hops: 2·alpha + 2(n-1)/n·M·beta for the latter."""

    name = "all_pairs"
    collectives = ("all_reduce", "reduce_scatter", "all_gather")

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        one = one_exchange(domains)
        return Steps(halves(collective) * one.inside, halves(collective) * one.between)


class Pairwise(Direct):
    """Every round another partner: (n-1)·alpha, but one message at a time into every port.

    Thakur et al. 2005: all-to-all and reduce-scatter of long messages.
    """

    name = "pairwise"
    collectives = ("all_to_all", "reduce_scatter")

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        inside = -(-ranks // domains) - 1
        return Steps(inside, ranks - 1 - inside)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        ranks = len(layout)
        rank = np.arange(ranks)
        return CollectiveProgram(
            ranks,
            tuple(Round.of(rank, (rank + k) % ranks, size / ranks) for k in range(1, ranks)),
        )


def _all_pairs(ranks: int) -> Edges:
    rank, shifts = np.arange(ranks), np.arange(1, ranks)
    partner = (rank[:, None] + shifts[None, :]) % ranks
    weight = np.full(ranks * (ranks - 1), 1.0 / (ranks - 1))
    return np.repeat(rank, ranks - 1), partner.ravel(), weight


class Neighbours(OneExchange):
    """Halo rows of a spatial split: every rank sends to the one before and the one after it, the ends to one only. The
    size is what goes to one neighbour; both directions go at once."""

    name = "neighbours"
    collectives = ("exchange",)

    def edges(self, ranks: int) -> Edges:
        low, high = np.arange(ranks - 1), np.arange(1, ranks)
        return np.concatenate([low, high]), np.concatenate([high, low]), np.ones(2 * (ranks - 1))


class Send(OneExchange):
    """Point to point: a send of the first rank of a pair and the matching receive of the second."""

    name = "send"
    has_own_lane = True
    collectives = ("send",)

    def edges(self, ranks: int) -> Edges:
        return np.array([0]), np.array([1]), np.ones(1)

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return Steps(0, 1) if domains > 1 else Steps(1, 0)


@dataclass(frozen=True)
class Variable(OneExchange):
    """All-to-all of unlike parts ("v"): tokens for experts, rows of embedding tables. The busiest port decides: the rank
    that most is sent to, or that sends most.

    The group's first rank is sent `1 + skew` times the mean, the others share the rest evenly.

    The size is the mean buffer of a rank; a skew of 0 is the balanced all-to-all.
    """

    skew: float = 0.0
    name = "variable"
    collectives = ("all_to_all_v",)

    def __post_init__(self) -> None:
        if not 0.0 <= self.skew < np.inf:
            raise InputError(f"all_to_all_v: skew {self.skew} must be 0 or more.")

    @property
    def pattern(self) -> str:
        return f"all_to_all_v({self.skew:g})"

    def edges(self, ranks: int) -> Edges:
        off = self.shares(ranks) * (1.0 - np.eye(ranks))
        src, dst = np.nonzero(off)
        return src.astype(np.int64), dst.astype(np.int64), off[src, dst]

    def shares(self, ranks: int) -> Floats:
        """Row i: which parts of a mean buffer rank i sends to the others, itself included."""
        hot = min(1.0 + self.skew, float(ranks)) / ranks
        row = np.full(ranks, (1.0 - hot) / (ranks - 1))
        row[0] = hot
        return np.tile(row, (ranks, 1))

    def fan_in(self, ranks: int) -> float:
        shares = self.shares(ranks) * (1.0 - np.eye(ranks))
        sends = shares.sum(axis=1, keepdims=True)
        offered = np.divide(shares, sends, out=np.zeros_like(shares), where=sends > 0)
        return max(1.0, float(offered.sum(axis=0).max()))


@dataclass(frozen=True)
class Matrix(Variable):
    """Sizes as a matrix: row i lists the bytes that rank i sends to each rank."""

    sizes: tuple[tuple[float, ...], ...] = ()

    @staticmethod
    def of(sizes: Sequence[Sequence[float]]) -> Matrix:
        table = np.asarray(sizes, dtype=np.float64)
        if table.ndim != 2 or table.shape[0] != table.shape[1] or len(table) < 2:
            raise InputError(
                f"all_to_all_v: the matrix {table.shape} must be square, with 2 or more ranks."
            )
        if not (np.isfinite(table).all() and (table >= 0).all() and table.sum() > 0):
            raise InputError("all_to_all_v: sizes in bytes must be 0 or more, and not all 0.")
        return Matrix(sizes=tuple(map(tuple, table.tolist())))

    @property
    def mean_bytes(self) -> float:
        """The size to charge for it: what a rank sends on average, its own part included."""
        return float(np.sum(self.sizes)) / len(self.sizes)

    @property
    def pattern(self) -> str:
        return f"all_to_all_v[{sha256(repr(self.sizes).encode()).hexdigest()[:16]}]"

    def shares(self, ranks: int) -> Floats:
        if ranks != len(self.sizes):
            raise InputError(f"all_to_all_v: sizes of {len(self.sizes)} ranks, group of {ranks}.")
        return np.asarray(self.sizes) / self.mean_bytes
