"""Predicted against measured as one HTML file: every case a point, groups in colours."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jinja2

from foretrain.report.html import script_json
from foretrain.report.page import Page
from foretrain.report.words import clean


def render(page: Page) -> str:
    document = page.document
    return _template().render(
        title="Predicted against measured · Foretrain",
        headline=page.headline,
        beyond=page.is_no,
        sections=[section for section in page.sections if section.rows or section.lines],
        data=script_json({"points": _points(document)}),
        **_assets(),
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


@functools.cache
def _assets() -> dict[str, str]:
    folder = files("foretrain.report") / "assets"
    return {
        "style": (folder / "page.css").read_text("utf-8"),
        "script": (folder / "scatter.js").read_text("utf-8"),
        "echarts": (folder / "echarts.common.min.js").read_text("utf-8"),
    }


@functools.cache
def _template() -> jinja2.Template:
    text = (files("foretrain.report") / "assets" / "scatter.html").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(text)
