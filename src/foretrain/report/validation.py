"""Predicted against measured, as a table per group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from foretrain.report import words
from foretrain.report.page import Page, Section

_SHARES = (
    "mape",
    "median",
    "p90",
    "bias",
    "order",
    "top1_regret",
    "memory_mape",
    "coverage",
    "fits_accuracy",
)
_HEAD = (
    "group",
    "n",
    "fail",
    "MAPE",
    "med",
    "p90",
    "bias",
    "ord",
    "regr",
    "mem",
    "cov",
    "fits",
)


def validation_page(document: Mapping[str, Any], tolerance: float | None = None) -> Page:
    """`document` is what `ValidationReport.to_dict()` gives: groups and total."""
    groups: Mapping[str, Any] = document.get("groups", {})
    total: Mapping[str, Any] = document.get("total", {})
    rows = [_row(name, group) for name, group in groups.items()]
    if total:
        rows.append(_row("total", total))
    worst = tuple(
        (name, *_worst(case))
        for name, group in groups.items()
        for case in (group.get("worst") or ())[:3]
    )
    sections = (
        Section(
            "Predicted against measured (errors of step time; ord: pairs in order, regr: top-1 regret, "
            "mem: memory, cov: intervals that cover)",
            _HEAD,
            tuple(rows),
        ),
        Section(
            "Farthest off",
            ("group", "case", "predicted", "measured", "error"),
            worst,
            left=2,
            detail=1,
        ),
    )
    beyond = tolerance is not None and not _within(total.get("mape"), tolerance)
    return Page(_headline(groups, total, tolerance, beyond), document, sections, beyond)


def _within(error: float | None, tolerance: float) -> bool:
    """Nothing measured confirms nothing."""
    return error is not None and math.isfinite(error) and error <= tolerance


def _headline(
    groups: Mapping[str, Any], total: Mapping[str, Any], tolerance: float | None, beyond: bool
) -> str:
    n = int(total.get("n") or 0)
    text = f"{n:,} cases in {len(groups)} groups: MAPE {_share(total.get('mape'))}"
    failed = int(total.get("failed") or 0)
    if failed:
        text += f", {failed:,} could not be predicted"
    if tolerance is None:
        return text
    off = [name for name, group in groups.items() if not _within(group.get("mape"), tolerance)]
    text += f"; {'BEYOND' if beyond else 'within'} the tolerance of {words.percent(tolerance)}"
    return text + (
        f" (beyond it: {', '.join(off[:6])}{' …' if len(off) > 6 else ''})" if off else ""
    )


def _row(name: str, group: Mapping[str, Any]) -> tuple[str, ...]:
    counts = tuple(f"{int(group.get(key) or 0):,}" for key in ("n", "failed"))
    return (name, *counts, *(_share(group.get(key), signed=key == "bias") for key in _SHARES))


def _share(value: float | None, signed: bool = False) -> str:
    """A percentage in few columns: one decimal below ten, none above."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 10:
        return f"{value:{'+' if signed else ''}.0f}x"
    digits = 1 if abs(value) < 0.0995 else 0
    return f"{value * 100:{'+' if signed else ''}.{digits}f}%"


def _worst(case: Any) -> tuple[str, str, str, str]:
    if not isinstance(case, Mapping):
        return (str(case), "", "", "")

    def time(key: str) -> str:
        value = case.get(key)
        return words.seconds(value) if isinstance(value, int | float) else ""

    error = case.get("error")
    shown = _share(error, signed=True) if isinstance(error, int | float) else str(error or "")
    return (str(case.get("id", "")), time("predicted"), time("measured"), shown)
