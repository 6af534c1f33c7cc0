"""All-to-all of unlike parts ("v"): tokens for experts, rows of embedding tables.

The busiest port decides: the rank that most is sent to, or that sends most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cost.collectives.base import (
    Edges,
    Flows,
    FromProgram,
    Steps,
    everywhere,
    one_exchange,
)
from foretrain.cost.collectives.program import CollectiveProgram, Round
from foretrain.errors import InputError

Shares = Floats


@dataclass(frozen=True)
class Variable(FromProgram):
    """The group's first rank is sent `1 + skew` times the mean, the others share the rest evenly.

    The size is the mean buffer of a rank; a skew of 0 is the balanced all-to-all.
    """

    skew: float = 0.0
    name = "variable"
    collectives: tuple[str, ...] = ("all_to_all_v",)

    def __post_init__(self) -> None:
        if not 0.0 <= self.skew < np.inf:
            raise InputError(f"all_to_all_v: skew {self.skew} must be 0 or more.")

    @property
    def pattern(self) -> str:
        return f"all_to_all_v({self.skew:g})"

    def flows(self, groups: Ints, domain_of: Ints) -> Flows:
        return everywhere(groups, _edges(self.shares(groups.shape[1])))

    def shares(self, ranks: int) -> Shares:
        """Row i: which parts of a mean buffer rank i sends to the others, itself included."""
        hot = min(1.0 + self.skew, float(ranks)) / ranks
        row = np.full(ranks, (1.0 - hot) / (ranks - 1))
        row[0] = hot
        return np.tile(row, (ranks, 1))

    def steps(self, collective: str, ranks: int, domains: int) -> Steps:
        return one_exchange(domains)

    def program(
        self, collective: str, size: float, layout: Ints, chunks: int = 1
    ) -> CollectiveProgram:
        src, dst, share = _edges(self.shares(len(layout)))
        return CollectiveProgram(len(layout), (Round.of(src, dst, share * size),))

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

    def shares(self, ranks: int) -> Shares:
        if ranks != len(self.sizes):
            raise InputError(f"all_to_all_v: sizes of {len(self.sizes)} ranks, group of {ranks}.")
        return np.asarray(self.sizes) / self.mean_bytes


def _edges(shares: Shares) -> Edges:
    off = shares * (1.0 - np.eye(len(shares)))
    src, dst = np.nonzero(off)
    return src.astype(np.int64), dst.astype(np.int64), off[src, dst]
