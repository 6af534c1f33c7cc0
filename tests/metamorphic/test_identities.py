"""What holds of every single answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .cases import Case, figures, hold

SUM = 1e-9  # of the step: sums of thousands of times


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(inner, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from numbers(inner, f"{path}[{place}]")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def sums(case: Case) -> Iterator[str]:
    found = case.prediction
    for where, stalls in (("", found.stalls), *((f" of stage {n}", s) for n, s in enumerate(found.stalls_by_stage))):  # fmt: skip
        off = sum(stalls.values()) / found.step_seconds - 1
        if abs(off) > SUM:
            yield f"stalls{where} are {off:+.3g} off the step"
    for stage in found.memory.by_stage:
        if not math.isclose(sum(stage.by_kind.values()), stage.peak_bytes, rel_tol=1e-9):
            yield f"memory of stage {stage.stage} does not add up"


def ranges(case: Case) -> Iterator[str]:
    found = case.prediction
    speeds = (found.samples_per_second, found.tokens_per_second, found.hfu, found.cost.usd_per_step)
    for path, number in numbers({**figures(found), "operators": found.operators, "speeds": speeds}):
        if not math.isfinite(number) or number < 0:
            yield f"{path} is {number}"
    low, high = found.interval
    if not low <= found.step_seconds <= high:
        yield f"the step {found.step_seconds} is not in {found.interval}"
    low, high = found.memory.interval
    if not low <= found.memory.peak_bytes <= high:
        yield f"the peak {found.memory.peak_bytes} is not in {low, high}"
    for name in ("mfu", "hfu", "measured_share"):
        share = getattr(found, name)
        if share is not None and share > 1:
            yield f"{name} is {share}"
    if found.mfu is not None and found.hfu < found.mfu * (1 - SUM):
        yield f"hfu {found.hfu} is less than mfu {found.mfu}"
    if not 0 <= found.memory.fits_probability <= 1:
        yield f"fits_probability is {found.memory.fits_probability}"


def test_stalls_and_memory_add_up(cases):
    hold(cases, sums)


def test_numbers_are_where_they_can_be(cases):
    hold(cases, ranges)
