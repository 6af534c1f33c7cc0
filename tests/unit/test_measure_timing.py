"""Repeating until the median is known, or the time is up."""

from __future__ import annotations

import random
from collections.abc import Iterator
from statistics import median

import pytest

from foretrain.measurement.timing import LEAST, Budget, Effort, is_tight, median_interval, repeated


class Machine:
    """A clock that calls move on: each takes `seconds`, by the next factor of a list in turn."""

    def __init__(self, seconds: float, factors: Iterator[float]) -> None:
        self.now, self.seconds, self.factors, self.calls = 0.0, seconds, factors, 0

    def clock(self) -> float:
        return self.now

    def elapsed(self, calls: int) -> float:
        taken = calls * self.seconds * next(self.factors)
        self.now += taken
        self.calls += calls
        return taken


def noisy(seed: int, share: float, by: float) -> Iterator[float]:
    """One per cent of noise, and now and then something else that runs."""
    draw = random.Random(seed)
    while True:
        yield draw.gauss(1.0, 0.01) * (by if draw.random() < share else 1.0)


def steady() -> Iterator[float]:
    while True:
        yield 1.0


def test_steady_calls_need_the_fewest_samples() -> None:
    machine = Machine(1e-3, steady())
    samples = repeated(machine.elapsed, Effort(), machine.clock)
    assert len(samples) == LEAST
    assert median(samples) == pytest.approx(1e-3)


def test_short_calls_are_timed_many_at_once() -> None:
    machine = Machine(1e-6, steady())
    effort = Effort(sample_seconds=1e-3, warm_up_seconds=0.01)
    samples = repeated(machine.elapsed, effort, machine.clock)
    assert machine.calls > 1000 * len(samples)


def test_outliers_do_not_move_the_median() -> None:
    machine = Machine(1e-3, noisy(1, share=0.2, by=3.0))
    samples = repeated(machine.elapsed, Effort(seconds=30.0), machine.clock)
    assert median(samples) == pytest.approx(1e-3, rel=0.02)
    assert is_tight(samples, 0.02)


def test_what_stays_noisy_ends_with_its_time() -> None:
    draw = random.Random(2)
    machine = Machine(1e-3, iter(lambda: draw.choice([1.0, 2.0, 5.0]), None))
    repeated(machine.elapsed, Effort(tolerance=1e-4, seconds=0.5), machine.clock)
    assert machine.now < 1.0


def test_calls_longer_than_their_time_still_end() -> None:
    machine = Machine(10.0, steady())
    samples = repeated(machine.elapsed, Effort(seconds=1.0), machine.clock)
    assert samples == (10.0,)


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    draw, held = random.Random(3), 0
    for _ in range(1000):
        low, high = median_interval([draw.lognormvariate(0.0, 0.5) for _ in range(40)])
        held += low <= 1.0 <= high
    assert 920 <= held <= 990


def test_a_budget_is_shared_by_what_is_left() -> None:
    now = [0.0]
    budget = Budget(60.0, lambda: now[0])
    assert budget.share(1000, Effort(seconds=2.0)).seconds == pytest.approx(0.12)
    assert budget.share(3, Effort(seconds=2.0)).seconds == 2.0
    now[0] = 60.0
    assert budget.is_spent
    assert not Budget(None).is_spent
