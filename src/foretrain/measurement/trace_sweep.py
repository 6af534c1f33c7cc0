"""Time on a line: which of several causes covers each moment, the first in order counting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Bools, Floats


@dataclass(frozen=True, eq=False, slots=True)
class Layer:
    """Intervals, in any order and overlapping at will, that count as one cause."""

    cause: int
    start: Floats
    end: Floats


def shares(edges: Floats, layers: Sequence[Layer], rest: int, causes: int) -> Floats:
    """[windows, causes]: seconds of each window between `edges` by the first layer that covers them, else `rest`."""
    low, high = float(edges[0]), float(edges[-1])
    clipped = [(np.clip(one.start, low, high), np.clip(one.end, low, high)) for one in layers]
    points = np.unique(np.concatenate([edges, *(side for pair in clipped for side in pair)]))
    label = np.full(len(points) - 1, rest, dtype=np.int64)
    is_open = np.ones(len(points) - 1, dtype=np.bool_)
    for layer, (start, end) in zip(layers, clipped, strict=True):
        covered = _covered(points, start, end) & is_open
        label[covered] = layer.cause
        is_open &= ~covered
    window = np.searchsorted(edges, points[:-1], side="right") - 1
    flat = np.bincount(
        window * causes + label, np.diff(points), minlength=(len(edges) - 1) * causes
    )
    return flat.reshape(len(edges) - 1, causes).astype(np.float64)


def _covered(points: Floats, start: Floats, end: Floats) -> Bools:
    """Whether any interval covers each stretch between two points; all ends are points."""
    count = len(points)
    opened = np.bincount(np.searchsorted(points, start), minlength=count)
    closed = np.bincount(np.searchsorted(points, end), minlength=count)
    covered: Bools = np.cumsum(opened - closed)[:-1] > 0
    return covered


def inside(moments: Floats, start: Floats, end: Floats) -> Bools:
    """Whether each moment lies in one of the intervals, ends counting as outside."""
    if not len(start):
        return np.zeros(len(moments), dtype=np.bool_)
    opened = np.searchsorted(np.sort(start), moments, side="right")
    closed = np.searchsorted(np.sort(end), moments, side="right")
    within: Bools = opened > closed
    return within
