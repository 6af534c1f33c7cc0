"""The nearest grid that never falls."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Floats

__all__ = ["rising"]


ROUNDS = 12


def rising(grid: Floats, support: Floats) -> Floats:
    """The nearest values that never fall along any axis, those with many readings moved least.

    Axis by axis (Dykstra's algorithm); what is left of falls after some rounds is levelled.
    """
    moved = [np.zeros_like(grid) for _ in grid.shape]
    for _ in range(ROUNDS):
        for axis in range(grid.ndim):
            before = grid + moved[axis]
            grid = _rising_lines(before, support, axis)
            moved[axis] = before - grid
    for axis in range(grid.ndim):
        up = np.maximum.accumulate(grid, axis=axis)
        down = np.flip(np.minimum.accumulate(np.flip(grid, axis), axis=axis), axis)
        grid = (up + down) / 2
    return grid


def _rising_lines(grid: Floats, support: Floats, axis: int) -> Floats:
    """Weighted isotonic regression of every line along an axis: the highest of the lowest means about a place."""
    values, weights = (np.moveaxis(x, axis, -1) for x in (grid, support))
    shape = values.shape
    lines = values.reshape(-1, shape[-1]).copy()
    falling = (np.diff(lines, axis=1) < 0).any(axis=1)
    values, weights = lines[falling], weights.reshape(lines.shape)[falling]
    none = np.zeros((len(values), 1))
    total = np.concatenate([none, np.cumsum(weights * values, axis=1)], axis=1)
    heavy = np.concatenate([none, np.cumsum(weights, axis=1)], axis=1)
    best = np.full(values.shape, -np.inf)
    for first in range(shape[-1]):
        mean = (total[:, first + 1 :] - total[:, first, None]) / (
            heavy[:, first + 1 :] - heavy[:, first, None]
        )
        lowest = np.minimum.accumulate(mean[:, ::-1], axis=1)[:, ::-1]
        best[:, first:] = np.maximum(best[:, first:], lowest)
    lines[falling] = best
    return np.moveaxis(lines.reshape(shape), -1, axis)
