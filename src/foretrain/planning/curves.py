"""Functions of a size that are dear to ask: known at powers of four, linear between."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STEP = 4.0


class Curve:
    """`ask` answers for several sizes at once; no size below `smallest` is asked about."""

    def __init__(self, ask: Callable[[Sequence[float]], Sequence[float]], smallest: float) -> None:
        self._ask, self._smallest = ask, smallest
        self._known: dict[int, float] = {}

    def __call__(self, sizes: Floats) -> Floats:
        """Nothing takes no time."""
        if not sizes.size:
            return np.zeros_like(sizes)
        size = np.maximum(sizes, self._smallest)
        place = np.log2(size / self._smallest) / np.log2(STEP)
        exponent = place.astype(np.int64)
        low = int(exponent.min())
        table = self._table(low, int(exponent.max()) + 1)
        start = self._smallest * STEP**exponent
        here = table[exponent - low]
        between = here + (table[exponent - low + 1] - here) * (size / start - 1.0) / (STEP - 1.0)
        return np.asarray(np.where(sizes > 0.0, between, 0.0))

    def _table(self, low: int, high: int) -> Floats:
        missing = [e for e in range(low, high + 1) if e not in self._known]
        if missing:
            answers = self._ask([self._smallest * STEP**e for e in missing])
            self._known.update(zip(missing, answers, strict=True))
        return np.array([self._known[e] for e in range(low, high + 1)])
