"""Functions of a size that are dear to ask: known at powers of four, linear between."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from foretrain.arrays import Floats

STEP = 4.0
_DOUBLINGS = np.log2(STEP)


class SizeCurve:
    """`ask` answers for several sizes at once; no size below `smallest` is asked about."""

    def __init__(self, ask: Callable[[Sequence[float]], Sequence[float]], smallest: float) -> None:
        self._ask, self._smallest = ask, smallest
        self._low, self._high = 0, -1  # exponents known, with those at both ends
        self._starts = self._values = np.zeros(0)

    def __call__(self, sizes: Floats) -> Floats:
        """Nothing takes no time."""
        if not sizes.size:
            return np.zeros_like(sizes)
        size = np.maximum(sizes, self._smallest)
        place = np.log2(size / self._smallest) / _DOUBLINGS
        exponent = place.astype(np.int64)
        self._know(int(exponent.min()), int(exponent.max()) + 1)
        exponent -= self._low
        here = self._values[exponent]
        beyond = size / self._starts[exponent] - 1.0
        exponent += 1
        between = here + (self._values[exponent] - here) * beyond / (STEP - 1.0)
        return np.asarray(np.where(sizes > 0.0, between, 0.0))

    def _know(self, low: int, high: int) -> None:
        """Ask for what is missing up to these exponents."""
        if not len(self._values):
            self._low, self._high = low, low - 1
        below = [self._smallest * STEP**e for e in range(low, self._low)]
        above = [self._smallest * STEP**e for e in range(self._high + 1, high + 1)]
        if below or above:
            answers = list(self._ask([*below, *above]))
            middle = len(below)
            self._values = np.array([*answers[:middle], *self._values, *answers[middle:]])
            self._starts = np.array([*below, *self._starts, *above])
            self._low, self._high = min(low, self._low), max(high, self._high)
