"""Repeating a call until its median is known well enough, or the time for it is up.

The interval of a median needs no assumption about the noise: of n sorted samples, those at the ranks
n/2 ± 0.98·√n enclose it with 95 % (binomial distribution, normal approximation; Conover 1999, section 3.2). A machine
that does something else now and then shifts the upper samples, not the median.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, sqrt

LEAST = 5  # samples; fewer have no interval
MOST = 2_000
HALF_WIDTH = 0.98  # 1.96 standard deviations of a binomial distribution with p = 1/2

Elapsed = Callable[[int], float]
"""Seconds that so many calls in a row take."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to spend on one thing: until the 95 % interval of the median is within `tolerance` on either side,
    but no longer than `seconds`. A sample is as many calls as take `sample_seconds`, with what runs before each."""

    tolerance: float = 0.02
    seconds: float = 2.0
    sample_seconds: float = 2e-3
    warm_up_seconds: float = 0.05


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the median; the whole range where there are few samples."""
    ordered = sorted(samples)
    count = len(ordered)
    reach = HALF_WIDTH * sqrt(count)
    low = max(0, floor(count / 2 - reach))
    high = min(count - 1, ceil(count / 2 + reach) - 1)
    return ordered[low], ordered[max(low, high)]


def is_tight(samples: Sequence[float], tolerance: float) -> bool:
    if len(samples) < LEAST:
        return False
    low, high = median_interval(samples)
    middle = sorted(samples)[len(samples) // 2]
    return high - low <= 2 * tolerance * middle


def repeated(
    elapsed: Elapsed, effort: Effort, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, ...]:
    """Seconds of one call, sample by sample."""
    began = clock()
    calls = _warmed_up(elapsed, effort, clock)
    samples: list[float] = []
    while len(samples) < MOST:
        samples.append(elapsed(calls) / calls)
        if is_tight(samples, effort.tolerance):
            break
        if clock() - began >= effort.seconds and len(samples) >= LEAST:
            break
        if clock() - began >= 3 * effort.seconds:  # slow calls: few samples, but an end
            break
    return tuple(samples)


def _warmed_up(elapsed: Elapsed, effort: Effort, clock: Callable[[], float]) -> int:
    """Run until it has run for a while; how many calls make a sample."""
    began, calls = clock(), 1
    elapsed(1)
    while True:
        before = clock()
        elapsed(calls)
        spent, each = clock() - began, (clock() - before) / calls
        if spent >= effort.warm_up_seconds or each * calls >= effort.seconds / LEAST:
            return max(1, min(10_000, round(effort.sample_seconds / max(each, 1e-9))))
        calls = min(2 * calls, 10_000)


@dataclass(slots=True)
class Budget:
    """Seconds for everything together; None has no end."""

    seconds: float | None
    clock: Callable[[], float] = time.monotonic
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def is_spent(self) -> bool:
        return self.seconds is not None and self.clock() - self.began >= self.seconds

    def share(self, left: int, effort: Effort) -> Effort:
        """The effort for one of the `left` things still to do."""
        if self.seconds is None:
            return effort
        rest = max(0.0, self.seconds - (self.clock() - self.began))
        # those that are soon known well enough leave their share to the others
        own = min(effort.seconds, 2.0 * rest / max(1, left))
        return Effort(
            effort.tolerance, own, effort.sample_seconds, min(effort.warm_up_seconds, own / 4)
        )
