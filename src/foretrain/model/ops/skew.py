"""How many rows of a table a batch meets, when some are drawn more often than others."""

from __future__ import annotations

import math
from functools import cache

_EXACT = 100  # rows from the most popular on that are summed one by one
_PIECES = 200


@cache
def seen(rows: int, draws: int, skew: float) -> tuple[float, float]:
    """Rows met by so many draws, and rows met more than once, where row k is drawn in proportion to k^-skew.

    Draws of a row are Poisson with the mean `draws · p_k`; beyond the first rows the sum is an integral, by midpoints
    in log k.
    """
    if skew == 0.0:
        mean = draws / rows
        return rows * _once(mean), rows * _twice(mean)
    scale = draws / _total(rows, skew)
    head = min(rows, _EXACT)
    means = [scale * k**-skew for k in range(1, head + 1)]
    met, again = math.fsum(map(_once, means)), math.fsum(map(_twice, means))
    if rows > head:
        low, high = math.log(head + 0.5), math.log(rows + 0.5)
        step = (high - low) / _PIECES
        for piece in range(_PIECES):
            k = math.exp(low + (piece + 0.5) * step)
            mean = scale * k**-skew
            met += _once(mean) * k * step
            again += _twice(mean) * k * step
    return met, again


def often(rows: int, draws: int, skew: float, least: float) -> tuple[float, float]:
    """Rows drawn `least` times or more on average, and their share of all draws."""
    if skew == 0.0:
        return (float(rows), 1.0) if draws >= least * rows else (0.0, 0.0)
    total = _total(rows, skew)
    count = min(float(rows), (draws / (total * least)) ** (1.0 / skew))
    return (count, _total(int(count), skew) / total) if count >= 1.0 else (0.0, 0.0)


def _once(mean: float) -> float:
    return -math.expm1(-mean)


def _twice(mean: float) -> float:
    return max(0.0, -math.expm1(-mean) - mean * math.exp(-mean))


def _total(rows: int, skew: float) -> float:
    head = min(rows, _EXACT)
    total = math.fsum(k**-skew for k in range(1, head + 1))
    if rows > head:
        low, high = head + 0.5, rows + 0.5
        if skew == 1.0:
            total += math.log(high / low)
        else:
            total += (high ** (1.0 - skew) - low ** (1.0 - skew)) / (1.0 - skew)
    return total
