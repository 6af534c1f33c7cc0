"""A timeline small enough to draw: whole where it can be, merged and saying so where it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.analysis.prediction import Prediction, Timeline
from foretrain.compile.execution import KIND_NAMES, PHASE_NAMES
from foretrain.report.trace import process_name
from foretrain.report.words import clean

MAX_BARS = 20_000
TICKS = 10_000_000
"""Times are whole ticks of the step in a page: short to write, finer than any pixel at any useful zoom."""


@dataclass(frozen=True)
class TimelineBars:
    """What to draw. A bar of `count` > 1 stands for that many short tasks, running for `busy` seconds of its
    length; its label, phase and kind are those of its longest task."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    busy: NDArray[np.float64]
    count: NDArray[np.int64]
    task: NDArray[np.int64]  # the task that lends its label
    shortest_drawn_alone: float  # seconds; 0 when nothing was merged


def bars(timeline: Timeline, limit: int = MAX_BARS) -> TimelineBars:
    """At most about `limit` bars.

    Time is cut into equal cells; tasks shorter than a cell that start in the same cell of the same lane become
    one bar, longer tasks stay as they are. Cells grow until the count is small enough.
    """
    length = timeline.end - timeline.start
    order = np.lexsort((timeline.start, timeline.lane))
    order = order[timeline.lane[order] >= 0]  # what holds no stream has no row to be drawn in
    if len(order) <= limit:
        return TimelineBars(
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


def _heads(
    timeline: Timeline, order: NDArray[np.int64], length: NDArray[np.float64], cell: float
) -> NDArray[np.int64]:
    """Positions in `order` where a new bar begins."""
    lane = timeline.lane[order]
    is_long = length[order] >= cell
    slot = np.floor((timeline.start[order] - timeline.start.min()) / cell)
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = (np.diff(lane) != 0) | (np.diff(slot) != 0) | is_long[1:] | is_long[:-1]
    return np.flatnonzero(begins)


def _merged(
    timeline: Timeline,
    order: NDArray[np.int64],
    length: NDArray[np.float64],
    heads: NDArray[np.int64],
    cell: float,
) -> TimelineBars:
    count = np.diff(np.append(heads, len(order)))
    group = np.repeat(np.arange(len(heads)), count)
    by_length = np.lexsort((-length[order], group))  # the longest of each group comes first
    return TimelineBars(
        np.minimum.reduceat(timeline.start[order], heads),
        np.maximum.reduceat(timeline.end[order], heads),
        np.add.reduceat(length[order], heads),
        count,
        order[by_length[heads]],
        cell,
    )


def page_data(prediction: Prediction) -> dict[str, Any]:
    """What the script of a page draws."""
    timeline = prediction.timeline
    shown = bars(timeline)
    whole = max(float(timeline.end.max(initial=0.0)), prediction.step_seconds, 1e-12)
    task = shown.task

    def ticks(seconds: NDArray[np.float64]) -> list[int]:
        rounded: list[int] = np.round(seconds * (TICKS / whole)).astype(np.int64).tolist()
        return rounded

    is_merged = shown.shortest_drawn_alone > 0
    columns = ("lane", "label", "phase", "kind", "micro", "chunk")
    return {
        "whole": whole,
        "ticks": TICKS,
        "tasks": int(np.count_nonzero(timeline.lane >= 0)),
        "merged": shown.shortest_drawn_alone,
        "lanes": [
            [process_name(lane), clean(lane.stream, 40), lane.rank_class] for lane in timeline.lanes
        ],
        "labels": [clean(label, 200) for label in timeline.labels],
        "phases": PHASE_NAMES,
        "kinds": KIND_NAMES,
        "start": ticks(shown.start),
        "end": ticks(shown.end),
        "busy": ticks(shown.busy) if is_merged else [],
        "count": shown.count.tolist() if is_merged else [],
        **{name: getattr(timeline, name)[task].tolist() for name in columns},
    }
