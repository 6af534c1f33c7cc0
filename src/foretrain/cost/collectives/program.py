"""Collectives round by round: the oracle that steady flows are tested against.

A round is a set of messages that travel at the same time; the next one starts when all have arrived.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Bools, Floats, Ints


@dataclass(frozen=True, eq=False, slots=True)
class Round:
    """Message i carries `bytes[i]` from `src[i]` to `dst[i]`."""

    src: Ints
    dst: Ints
    bytes: Floats

    @staticmethod
    def of(src: Ints, dst: Ints, size: float | Floats) -> Round:
        src, dst = np.atleast_1d(src), np.atleast_1d(dst)
        return Round(src, dst, np.broadcast_to(np.asarray(size, dtype=np.float64), src.shape))

    @staticmethod
    def joined(rounds: Sequence[Round]) -> Round:
        return Round(
            np.concatenate([r.src for r in rounds]),
            np.concatenate([r.dst for r in rounds]),
            np.concatenate([r.bytes for r in rounds]),
        )

    def scaled(self, factor: float) -> Round:
        return Round(self.src, self.dst, self.bytes * factor)


@dataclass(frozen=True, eq=False, slots=True)
class CollectiveProgram:
    """Rounds of a group of `ranks`. Numbers from `ranks` on are switches that reduce and multicast."""

    ranks: int
    rounds: tuple[Round, ...]

    @property
    def uses_switch(self) -> bool:
        return any(int(max(r.src.max(), r.dst.max())) >= self.ranks for r in self.rounds)

    def sent(self) -> Floats:
        """Bytes that leave each rank."""
        return self._sum("src")

    def received(self) -> Floats:
        return self._sum("dst")

    def messages(self) -> Ints:
        """Messages that each rank sends."""
        total = np.zeros(self.ranks, dtype=np.int64)
        for step in self.rounds:
            total += np.bincount(step.src, minlength=self.ranks)[: self.ranks]
        return total

    def seconds(self, alpha: float, beta: float) -> float:
        """Time on uniform links, one full-duplex port per rank: a round lasts as long as its busiest port."""
        total = 0.0
        for step in self.rounds:
            out = np.bincount(step.src, step.bytes, minlength=self.ranks)[: self.ranks]
            into = np.bincount(step.dst, step.bytes, minlength=self.ranks)[: self.ranks]
            total += alpha + beta * float(max(out.max(), into.max()))
        return total

    def edges(self) -> tuple[Ints, Ints, Floats]:
        """Bytes per pair of ranks over the whole program, pairs in order."""
        repeats = Counter(map(id, self.rounds))  # a ring's rounds are one and the same
        distinct = {id(step): step for step in self.rounds}
        everything = Round.joined([step.scaled(repeats[key]) for key, step in distinct.items()])
        key = everything.src * self.ranks + everything.dst
        pairs, inverse = np.unique(key, return_inverse=True)
        total = np.bincount(inverse, everything.bytes).astype(np.float64)
        return pairs // self.ranks, pairs % self.ranks, total

    def heard(self) -> Bools:
        """Row i: whose data can have reached rank i, following messages in time."""
        nodes = 1 + max(self.ranks - 1, *(int(max(r.src.max(), r.dst.max())) for r in self.rounds))
        known = np.eye(nodes, dtype=np.bool_)
        for step in self.rounds:
            before = known.copy()
            np.logical_or.at(known, step.dst, before[step.src])
        return known[: self.ranks, : self.ranks]

    def _sum(self, end: str) -> Floats:
        total = np.zeros(self.ranks)
        for step in self.rounds:
            where = step.src if end == "src" else step.dst
            total += np.bincount(where, step.bytes, minlength=self.ranks)[: self.ranks]
        return total


def along(path: Ints, size: float) -> list[Round]:
    """A buffer passed from place to place."""
    return [Round.of(path[k : k + 1], path[k + 1 : k + 2], size) for k in range(len(path) - 1)]


def side_by_side(parts: Sequence[Sequence[Round]]) -> list[Round]:
    """Programs that start together, each for as many rounds as it has."""
    longest = max((len(part) for part in parts), default=0)
    return [Round.joined([part[k] for part in parts if k < len(part)]) for k in range(longest)]


def pipelined(stages: Sequence[Round], chunks: int) -> tuple[Round, ...]:
    """Every chunk goes through all stages in turn, one round behind the chunk before it."""
    parts = [stage.scaled(1.0 / chunks) for stage in stages]
    out = []
    for now in range(len(parts) + chunks - 1):
        busy = parts[max(0, now - chunks + 1) : now + 1]
        out.append(Round.joined(busy))
    return tuple(out)
