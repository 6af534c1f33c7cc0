"""The document of a validation: every case as a point, tables per group, and what stands out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from foretrain.report import words
from foretrain.report.document import (
    Axis,
    Chart,
    ChartPoint,
    Document,
    Guide,
    Lines,
    Section,
    Series,
    Table,
)
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


def validation_document(report: ValidationReport, tolerance: float | None = None) -> Document:
    groups, total = report.groups, report.total
    beyond = tolerance is not None and not _within(total.get("mape"), tolerance)
    return Document(
        _headline(groups, total, tolerance, beyond) + _of(report.chosen or {}),
        report.to_dict,
        partial(_sections, report),
        beyond,
        title="Predicted vs. measured",
        make_rows=report.rows,
    )


def _sections(report: ValidationReport) -> Iterator[Section]:
    named = {**report.groups, **({"total": report.total} if report.total else {})}
    yield chart(report)
    yield Table(
        "Predicted vs. measured",
        ("group", "n", *(title for title, _ in STEP_TIME)),
        tuple(step_time_row(name, group) for name, group in named.items()),
        notes=(MEANING,),
    )
    yield Table(
        "Memory, fit verdicts and cases not compared",
        ("group", "memory rows", "error", "fit verdicts", "pairs", "failed"),
        tuple(_other_row(name, group) for name, group in named.items()),
    )
    ranks = tuple(
        (name, f"{group['ranks_n']:,}", *(share(group.get(key)) for key in RANK_KEYS))
        for name, group in named.items()
        if group.get("ranks_n")
    )
    yield Table("Memory error by rank", ("group", "figures", "allocated", "reserved"), ranks)
    yield Lines("Largest errors", tuple(_farthest(report.groups)), detail=1)


def chart(report: ValidationReport) -> Chart:
    """Predicted over measured step time of every case that has both."""
    points: dict[str, list[ChartPoint]] = {}
    for case in report.cases:
        if _is_drawn(case.get("measured")) and _is_drawn(case.get("predicted")):
            points.setdefault(str(case.get("group", "")), []).append(_point(case))
    return Chart(
        "Every case",
        Axis("measured", "s"),
        Axis("predicted", "s"),
        [Series(group, points[group]) for group in sorted(points)],
        guides=(Guide(factor=1.0, is_dashed=False), Guide(factor=1.2), Guide(factor=1 / 1.2)),
        hint="Predicted vs. measured step time, both axes logarithmic. On the solid line they agree; the dashed "
        "lines are 20 % off. Click a group in the legend to hide it, hover over a case for details, scroll with "
        "Ctrl to zoom.",
    )


def _point(case: Mapping[str, Any]) -> ChartPoint:
    low, high = case.get("interval") or (None, None)
    error = case.get("error")
    off = "" if error is None else f" ({share(error, signed=True)})"
    tip = [
        str(case.get("id", "")),
        f"measured {_time(case['measured'])}, predicted {_time(case['predicted'])}{off}",
        f"80 % interval {_time(low)} – {_time(high)}" if _is_drawn(low) and _is_drawn(high) else "",
        str(case.get("what", "")),
        str(case.get("reason", "")),
    ]
    text = "\n".join(line for line in tip if line)
    return ChartPoint(case["measured"], case["predicted"], text, size=4)


def _is_drawn(value: Any) -> bool:
    """Axes are logarithmic."""
    return isinstance(value, int | float) and math.isfinite(value) and value > 0


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
