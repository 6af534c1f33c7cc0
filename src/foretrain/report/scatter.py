"""Predicted vs. measured as one HTML file: every case a point, groups in colours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from foretrain.report.html import script_json
from foretrain.report.page import Page
from foretrain.report.templates import template
from foretrain.report.words import clean


def render(page: Page) -> str:
    document = page.document
    return template("scatter.html").render(
        title="Predicted vs. measured · Foretrain",
        headline=page.headline,
        beyond=page.is_no,
        sections=[section for section in page.sections if section.rows or section.lines],
        data=script_json({"points": _points(document)}),
    )


def _points(document: Mapping[str, Any]) -> list[list[Any]]:
    """group, measured, predicted, low, high, error, id, what, reason of every case that has both times."""
    return [
        [
            clean(str(row.get("group", "")), 60),
            row["measured"],
            row["predicted"],
            *_interval(row.get("interval")),
            row.get("error"),
            clean(str(row.get("id", "")), 120),
            clean(str(row.get("what", "")), 300),
            clean(str(row.get("reason", "")), 300),
        ]
        for row in document.get("rows") or ()
        if _is_drawn(row.get("measured")) and _is_drawn(row.get("predicted"))
    ]


def _interval(value: Any) -> list[float | None]:
    if not value:
        return [None, None]
    return [end if _is_drawn(end) else None for end in value]


def _is_drawn(value: Any) -> bool:
    """Axes are logarithmic."""
    return isinstance(value, int | float) and math.isfinite(value) and value > 0
