"""Layers shared out to stages, and a state for each: so that the slowest stage is fastest, exactly.

A stage takes layers that follow one another, in its fastest path that fits (`fastest_path`). What a stretch of layers takes
at least, were memory no matter, is known at once for all of them; stretches are worked out only as they come up in the best
way to share out, until that has none left that is not. Nothing here knows what layers, states or stages stand for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from foretrain.arrays import Floats
from foretrain.planning.fastest_path import MOST_LABELS, Chain, Path, fastest, least_of

_EPSILON = 1e-12


@dataclass(frozen=True, eq=False, slots=True)
class Stage:
    """What a stage has of its own: how fast it is, how much memory, and how many micro-batches it holds at most."""

    seconds: Floats  # [rows, states before, states]
    room: float
    in_flight: int
    fixed: float = 0.0  # seconds that it takes besides, whatever it has


@dataclass(frozen=True, eq=False, slots=True)
class LayerTable:
    """What layers take and hold in every state. Layers that are alike share a row."""

    rows: tuple[int, ...]  # of every layer, in order
    shared: range  # layers that are shared out: the first stage has those before, the last one those behind
    static: Floats  # [rows, states] bytes that are always there
    saved: Floats  # … for every micro-batch in flight, from when the layer runs
    work: Floats  # … while it runs
    stages: tuple[Stage, ...]

    def chain(self, number: int, low: int, high: int) -> Chain:
        """A stage with the shared layers from `low` to `high`."""
        stage, rows = self.stages[number], list(self.layers(number, low, high))
        through = stage.seconds[rows]
        return Chain(
            # what comes in lies as the first layer wants it
            first=np.diagonal(through[0]) + stage.fixed,
            through=through[1:],
            kept=self.static[rows] + (stage.in_flight - 1) * self.saved[rows],
            saved=self.saved[rows],
            work=self.work[rows],
            room=stage.room,
        )

    def layers(self, number: int, low: int, high: int) -> tuple[int, ...]:
        """Rows of the layers of a stage."""
        before, behind = self.ends(number)
        start = self.shared.start
        return (*before, *self.rows[start + low : start + high], *behind)

    def ends(self, number: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows of the layers that only this stage can have."""
        before = self.rows[: self.shared.start] if number == 0 else ()
        behind = self.rows[self.shared.stop :] if number == len(self.stages) - 1 else ()
        return before, behind


@dataclass(frozen=True, slots=True)
class Shares:
    """How many of the shared layers every stage has, its path, and seconds that no slowest stage is below."""

    counts: tuple[int, ...]
    paths: tuple[Path, ...]
    bound: float

    @property
    def slowest(self) -> float:
        return max(path.seconds for path in self.paths)

    @property
    def total(self) -> float:
        """Seconds of all stages together."""
        return sum(path.seconds for path in self.paths)

    @property
    def gap(self) -> float:
        """By what share the slowest stage may be slower than it could be."""
        return max(0.0, self.slowest / self.bound - 1.0)


def least_seconds(table: LayerTable, counts: Sequence[int] | None = None) -> tuple[float, float]:
    """What the slowest stage and all together take at least, as if memory were no matter to a stage that can hold its
    layers at all; infinite where none can."""
    least = _relaxed(table, counts)
    slowest = _bottleneck(least)
    if slowest == inf:
        return inf, inf
    ends = _shortest(least)
    total = sum(least[number, low, high] for number, low, high in _stretches(ends))
    return slowest, float(total)


def shared_out(
    table: LayerTable, counts: Sequence[int] | None = None, labels: int = MOST_LABELS
) -> Shares | None:
    """The slowest stage as fast as can be, then all stages together; None where nothing fits. `counts`: layers that the
    stages have, if that is no choice."""
    least = _relaxed(table, counts)
    bounds = least.copy()
    known: dict[tuple[int, int, int], Path] = {}
    bounded: set[tuple[int, int, int]] = set()
    while True:
        slowest = _bottleneck(least)
        if slowest == inf:
            return None
        best = _stretches(_shortest(np.where(least <= slowest * (1.0 + _EPSILON), least, inf)))
        open_ = [stretch for stretch in best if stretch not in known]
        if not open_:
            paths = tuple(known[stretch] for stretch in best)
            bound = min(_bottleneck(bounds), max(path.seconds for path in paths))
            return Shares(tuple(high - low for _, low, high in best), paths, bound)
        for stretch in open_:
            chain = table.chain(*stretch)
            if stretch not in bounded:  # cheap, and often enough to look elsewhere
                bounded.add(stretch)
                seconds = bound = least_of(chain)
            else:
                found = fastest(chain, labels)
                seconds, bound = (inf, inf) if found is None else (found.seconds, found.bound)
                if found is not None:
                    known[stretch] = found
            number, low, high = stretch
            for column, value in ((least, seconds), (bounds, bound)):
                column[number, low, high] = max(column[number, low, high], value)
                # the same path without its last layers is a path as well
                behind = column[number, low, high + 1 :]
                np.maximum(behind, value, out=behind)


def _stretches(ends: Sequence[int]) -> list[tuple[int, int, int]]:
    """(stage, from, to)"""
    return [
        (number, low, high)
        for number, (low, high) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
    ]


def _relaxed(table: LayerTable, counts: Sequence[int] | None) -> Floats:
    """[stages, from, to] see `_least`. Stages alike that have none of the ends share what they take."""
    known: dict[tuple[int, bool, bool], Floats] = {}
    found = []
    last = len(table.stages) - 1
    for number, stage in enumerate(table.stages):
        key = (id(stage.seconds), number == 0, number == last)
        if key not in known:
            known[key] = _least(table, number)
        fits = _needed(table, number) <= stage.room * (1.0 + _EPSILON)
        found.append(np.where(fits, known[key] + stage.fixed, inf))
    least = np.stack(found)
    if counts is not None:
        least[~_allowed(least, counts)] = inf
    return least


def _allowed(
    least: Floats, counts: Sequence[int]
) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Stretches that stages with so many layers have."""
    allowed = np.zeros(least.shape, dtype=np.bool_)
    high = np.cumsum(counts)
    allowed[np.arange(len(counts)), high - np.asarray(counts), high] = True
    return allowed


def _least(table: LayerTable, number: int) -> Floats:
    """[from, to] seconds of a stage with the layers between if memory were no matter."""
    stage, count = table.stages[number], len(table.shared)
    is_first, is_last = number == 0, number == len(table.stages) - 1
    before, behind = table.ends(number)
    least = np.full((count + 1, count + 1), inf)
    value = np.full((count, stage.seconds.shape[1]), inf)
    for place, row in enumerate(table.rows[table.shared.start : table.shared.stop]):
        value = _further(value, stage.seconds[row])
        if place == 0 and before:
            value[0] = _further(_through(before, stage)[None], stage.seconds[row])[0]
        elif place == 0 or not is_first:
            value[place] = np.diagonal(stage.seconds[row])
        least[:count, place + 1] = value.min(axis=1)
    for row in behind:
        value = _further(value, stage.seconds[row])
    if is_last:
        least[:, :-1] = inf
        least[:count, -1] = value.min(axis=1)
    return least


def _through(rows: Sequence[int], stage: Stage) -> Floats:
    """Seconds of the layers so far by the last one's state."""
    value = np.diagonal(stage.seconds[rows[0]])
    for row in rows[1:]:
        value = _further(value[None], stage.seconds[row])[0]
    return np.asarray(value)


def _further(value: Floats, seconds: Floats) -> Floats:
    """[stretches, states] one layer on."""
    return np.asarray((value[:, :, None] + seconds).min(axis=1))


def _needed(table: LayerTable, number: int) -> Floats:
    """[from, to] bytes that the layers between need at least."""
    stage = table.stages[number]
    each = (table.static + stage.in_flight * table.saved).min(axis=1)
    ends = sum(each[row] for rows in table.ends(number) for row in rows)
    mine = [each[row] for row in table.rows[table.shared.start : table.shared.stop]]
    upto = np.concatenate([[0.0], np.cumsum(mine)])
    return np.asarray(upto[None, :] - upto[:, None] + ends)


def _bottleneck(least: Floats) -> float:
    """The slowest stage of the best way to share out."""
    reached = np.full(least.shape[1], inf)
    reached[0] = 0.0
    for stage in least:
        reached = np.maximum(reached[:, None], stage).min(axis=0)
    return float(reached[-1])


def _shortest(seconds: Floats) -> list[int]:
    """Where the stretches end whose seconds are fewest together."""
    reached = np.full(seconds.shape[1], inf)
    reached[0] = 0.0
    came = []
    for stage in seconds:
        through = reached[:, None] + stage
        back = through.argmin(axis=0)
        came.append(back)
        reached = through[back, np.arange(len(back))]
    ends = [len(reached) - 1]
    for back in reversed(came[1:]):
        ends.append(int(back[ends[-1]]))
    return ends[::-1]
