"""Predicted vs. measured: tables per group, and what stands out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from foretrain.report import words
from foretrain.report.page import Page, Section
from foretrain.units import counted
from foretrain.validation import ValidationReport

# Column title, key of a group's figures; every table fits 80 columns with group names of 18 letters.
STEP_TIME = (
    ("MAPE", "mape"),
    ("median", "median"),
    ("p90", "p90"),
    ("bias", "bias"),
    ("cover", "coverage"),
    ("order", "order"),
    ("regret", "top1_regret"),
)
MEANING = (
    "Errors of the step time. bias: mean signed error; cover: share of 80 % intervals that "
    "contain the measurement; order: share of pairs measured more than 10 % apart that are "
    "predicted in the right order; regret: slowdown from choosing the predicted best of a set."
)
RANK_KEYS = ("ranks_allocated_mape", "ranks_reserved_mape")
MOST_WORST = 3


def validation_page(report: ValidationReport, tolerance: float | None = None) -> Page:
    document, groups, total = report.to_dict(), report.groups, report.total
    named = {**groups, **({"total": total} if total else {})}
    sections = (
        Section(
            "Predicted vs. measured",
            ("group", "n", *(title for title, _ in STEP_TIME)),
            tuple(step_time_row(name, group) for name, group in named.items()),
            lines=(MEANING,),
        ),
        Section(
            "Memory, fit verdicts and cases not compared",
            ("group", "memory rows", "error", "fit verdicts", "pairs", "failed"),
            tuple(_other_row(name, group) for name, group in named.items()),
        ),
        *_ranks(named),
        Section("Largest errors", lines=tuple(_farthest(groups)), detail=1),
    )
    beyond = tolerance is not None and not _within(total.get("mape"), tolerance)
    headline = _headline(groups, total, tolerance, beyond) + _of(report.chosen or {})
    page = Page(headline, document, sections, beyond)
    return replace(page, more={"html": partial(_html, page)}, rows=report.rows())


def _ranks(named: Mapping[str, Any]) -> tuple[Section, ...]:
    """Memory rank by rank, where any group has it."""
    rows = tuple(
        (name, f"{group['ranks_n']:,}", *(share(group.get(key)) for key in RANK_KEYS))
        for name, group in named.items()
        if group.get("ranks_n")
    )
    head = ("group", "figures", "allocated", "reserved")
    return (Section("Memory error by rank", head, rows),) if rows else ()


def _html(page: Page) -> str:
    from foretrain.report.scatter import render

    return render(page)


def _of(chosen: Mapping[str, Any]) -> str:
    split = chosen.get("split")
    return f" (half {split!r}, seed {chosen.get('seed')})" if split else ""


def _within(error: float | None, tolerance: float) -> bool:
    """Nothing measured confirms nothing."""
    return error is not None and math.isfinite(error) and error <= tolerance


def _headline(
    groups: Mapping[str, Any], total: Mapping[str, Any], tolerance: float | None, beyond: bool
) -> str:
    n = int(total.get("n") or 0)
    text = (
        f"{counted(n, 'case')} in {counted(len(groups), 'group')}: MAPE {share(total.get('mape'))}"
    )
    if total.get("mape_of_groups") is not None and len(groups) > 1:
        text += f", {share(total['mape_of_groups'])} as the mean of groups"
    failed = int(total.get("failed") or 0)
    if failed:
        text += f", {failed:,} could not be predicted"
    if tolerance is None:
        return text
    off = [name for name, group in groups.items() if not _within(group.get("mape"), tolerance)]
    text += f"; {'ABOVE' if beyond else 'within'} the tolerance of {words.percent(tolerance)}"
    return text + (
        f" (above it: {', '.join(off[:6])}{' …' if len(off) > 6 else ''})" if off else ""
    )


def step_time_row(name: str, group: Mapping[str, Any]) -> tuple[str, ...]:
    shares = (share(group.get(key), signed=key == "bias") for _, key in STEP_TIME)
    return (name, f"{int(group.get('n') or 0):,}", *shares)


def _other_row(name: str, group: Mapping[str, Any]) -> tuple[str, ...]:
    count = {key: f"{int(group.get(key) or 0):,}" for key in ("memory_n", "pairs", "failed")}
    memory, verdicts = share(group.get("memory_mape")), share(group.get("fits_accuracy"))
    return (name, count["memory_n"], memory, verdicts, count["pairs"], count["failed"])


def _farthest(groups: Mapping[str, Any]) -> list[str]:
    """One line per case, since reasons are sentences."""
    return [
        line
        for group in groups.values()
        for line in map(worst_line, (group.get("worst") or ())[:MOST_WORST])
    ]


def worst_line(case: Any) -> str:
    if not isinstance(case, Mapping):
        return str(case)
    times = " for ".join(_time(case.get(key)) for key in ("predicted", "measured"))
    error = case.get("error")
    shown = share(error, signed=True) if isinstance(error, int | float) else str(error or "")
    reason = str(case.get("reason") or "")
    return f"{case.get('id', '')}: {shown} ({times})" + (f": {reason}" if reason else "")


def _time(value: Any) -> str:
    return words.seconds(value) if isinstance(value, int | float) else "–"


def share(value: float | None, signed: bool = False) -> str:
    """A percentage in few columns: one decimal below ten, none above."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 10:
        return f"{value:{'+' if signed else ''}.0f}x"
    digits = 1 if abs(value) < 0.0995 else 0
    return f"{value * 100:{'+' if signed else ''}.{digits}f}%"
