"""What moves are worth: looked at by the search's estimator, then simulated, best first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from foretrain.advice.moves import Move, Place
from foretrain.analysis.prediction import Remedy
from foretrain.arrays import Ints32
from foretrain.errors import InputError
from foretrain.plan.short_form import Words
from foretrain.planning.choices import COLUMNS, Choices, Palette, lone
from foretrain.planning.estimator import Estimator
from foretrain.simulate import Simulation, peak_memory, simulate_scenario

MARGIN = 0.1
"""Of a step: as far as an estimate may lie above the best simulated one and still be looked at. The largest error of an
estimate is 9 %, nineteen of twenty are below 2.1 % (docs/search-quality.md)."""
NEARLY = 1.05
"""Times the usable memory: what is estimated to need no more is simulated to see whether it fits."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A move and what the estimator says of it."""

    move: Move
    seconds: float
    fill: float  # of the usable memory
    is_exact: bool  # … or of its kin


def estimated(at: Place, moves: Sequence[Move], step: float) -> list[Judged]:
    """Moves that the model allows, the fastest by estimate first. Those that are estimated not to fit are not timed; where
    the estimator knows a plan by its kin alone, such a one is taken to be as fast as the plan itself, `step`."""
    if not moves:
        return []
    kin = [_kin(move) for move in moves]
    found = Estimator(at.task).estimate(together([words for words, _ in kin]))
    known = np.isfinite(found.memory)
    fill = np.where(known, found.memory, 0.0) / np.where(known, np.maximum(found.usable, 1.0), 1.0)
    seconds = np.where(np.isfinite(found.seconds), found.seconds, step)
    judged = [
        Judged(move, float(seconds[row]), float(fill[row]), is_exact)
        for row, (move, (_, is_exact)) in enumerate(zip(moves, kin, strict=True))
        if found.refused[row] < 0
    ]
    return sorted(judged, key=lambda one: one.seconds)


def _kin(move: Move) -> tuple[Words, bool]:
    """The plan as the estimator knows it: layers shared out evenly, experts split as other layers are; and whether it is
    the same."""
    words = replace(move.words or Words(), layers=None, etp=None)
    return words, words == move.words


def together(plans: Sequence[Words]) -> Choices:
    """Plans as columns, with one palette for all."""
    alone = [lone(words) for words in plans]
    listed: dict[str, Any] = {
        field.name: tuple(
            dict.fromkeys(v for one in alone for v in getattr(one.palette, field.name))
        )
        for field in fields(Palette)
        if field.name != "defaults"
    }
    columns: list[Ints32] = []
    for name in COLUMNS:
        column = np.concatenate([getattr(one, name) for one in alone])
        if name in listed:
            known = {value: number for number, value in enumerate(listed[name])}
            column = np.array([known[getattr(one.palette, name)[0]] for one in alone], np.int32)
        columns.append(column)
    return Choices(Palette(**listed), *columns)


def simulated(moves: Iterable[Move]) -> Iterator[tuple[Move, Simulation]]:
    """Those that only the whole of a plan refuses are left out."""
    for move in moves:
        try:
            yield move, simulate_scenario(move.scenario)
        except InputError:
            continue


def fitting(moves: Iterable[Move]) -> Iterator[Move]:
    """Those that fit, which a compiled plan says without a simulation."""
    for move in moves:
        try:
            if peak_memory(move.scenario).fits:
                yield move
        except InputError:
            continue


def remedy(move: Move, found: Simulation, before: float) -> Remedy:
    step, held = found.step_seconds, found.memory
    return Remedy(
        change=move.change,
        step_seconds=step,
        speedup=before / step,
        kind=move.kind,
        paste=move.paste,
        peak_bytes=held.peak_bytes,
        fits=held.fits,
        usd_per_hour=found.scenario.cluster.usd_per_hour if move.kind == "machine" else None,
        remark=move.remark,
    )
