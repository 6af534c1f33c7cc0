"""A timeline small enough to draw: whole where it can be, merged and saying so where it cannot."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.analysis.prediction import Timeline
from foretrain.arrays import Floats, Ints

MAX_BARS = 20_000


@dataclass(frozen=True)
class Bars:
    """What to draw. A bar of `count` > 1 stands for that many short tasks, running for `busy` seconds of its
    length; its label, phase and kind are those of its longest task."""

    start: Floats
    end: Floats
    busy: Floats
    count: Ints
    task: Ints  # the task that lends its label
    shortest_drawn_alone: float  # seconds; 0 when nothing was merged


def bars(timeline: Timeline, limit: int = MAX_BARS) -> Bars:
    """At most about `limit` bars.

    Time is cut into equal cells; tasks shorter than a cell that start in the same cell of the same lane become
    one bar, longer tasks stay as they are. Cells grow until the count is small enough.
    """
    length = timeline.end - timeline.start
    order = np.lexsort((timeline.start, timeline.lane))
    order = order[timeline.lane[order] >= 0]  # what holds no stream has no row to be drawn in
    if len(order) <= limit:
        return Bars(
            timeline.start[order], timeline.end[order], length[order],
            np.ones(len(order), dtype=np.int64), order, 0.0,
        )  # fmt: skip
    whole = float(timeline.end.max() - timeline.start.min()) or 1.0
    cell = whole / limit
    heads = _heads(timeline, order, length, cell)
    while len(heads) > limit and cell < whole:
        cell *= 1.25
        heads = _heads(timeline, order, length, cell)
    return _merged(timeline, order, length, heads, cell)


def _heads(timeline: Timeline, order: Ints, length: Floats, cell: float) -> Ints:
    """Positions in `order` where a new bar begins."""
    lane = timeline.lane[order]
    is_long = length[order] >= cell
    slot = np.floor((timeline.start[order] - timeline.start.min()) / cell)
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (np.diff(lane) != 0) | (np.diff(slot) != 0) | is_long[1:] | is_long[:-1]
    return np.flatnonzero(begins)


def _merged(
    timeline: Timeline,
    order: Ints,
    length: Floats,
    heads: Ints,
    cell: float,
) -> Bars:
    count = np.diff(np.append(heads, len(order)))
    group = np.repeat(np.arange(len(heads)), count)
    by_length = np.lexsort((-length[order], group))  # the longest of each group comes first
    return Bars(
        np.minimum.reduceat(timeline.start[order], heads),
        np.maximum.reduceat(timeline.end[order], heads),
        np.add.reduceat(length[order], heads),
        count,
        order[by_length[heads]],
        cell,
    )
