"""Interruptions of any kind: what must hold whatever the figures."""

from __future__ import annotations

from math import log1p

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretrain.analysis.goodput import Interruptions, best_interval

mtbfs = st.floats(60.0, 1e9)
shares = st.floats(1e-6, 3.0)  # of the mean time between interruptions
times = st.floats(0.0, 1e4)


@given(mtbfs, shares)
def test_the_interval_solves_its_equation(mtbf: float, share: float) -> None:
    x = best_interval(mtbf, share * mtbf) / mtbf
    assert 0.0 < x < 1.0
    slope = x / (1.0 - x)
    assert abs(x + share + log1p(-x)) <= 1e-9 * (1.0 + slope)


@given(mtbfs, times, times, st.floats(1.0, 1e6))
def test_interruptions_only_cost(
    mtbf: float, checkpoint: float, restart: float, work: float
) -> None:
    room = Interruptions(mtbf, checkpoint, restart)
    assert room.expected(work) >= work * (1 - 1e-12)
    assert 0.0 <= room.goodput(work) <= 1.0 + 1e-12


@given(mtbfs, times, times, st.floats(1.0, 1e6))
def test_rarer_is_no_worse(mtbf: float, checkpoint: float, restart: float, work: float) -> None:
    often, seldom = (Interruptions(m, checkpoint, restart) for m in (mtbf, 2 * mtbf))
    assert seldom.expected(work) <= often.expected(work) * (1 + 1e-9)


@given(mtbfs, st.floats(0.1, 1e3), st.floats(0.2, 5.0))
def test_no_other_interval_is_better(mtbf: float, checkpoint: float, factor: float) -> None:
    room = Interruptions(mtbf, checkpoint, 0.0)
    work = 1e4 * mtbf
    best = room.interval()
    other = max(best * factor, 60.0)
    assert room.expected(work, best) <= room.expected(work, other) * (1 + 1e-9) or best == 60.0
    assert best == pytest.approx(max(60.0, best_interval(mtbf, checkpoint)))
