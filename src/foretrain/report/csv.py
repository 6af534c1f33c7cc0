"""The prediction document as two columns, `path,value`, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from foretrain.analysis.prediction import Prediction
from foretrain.report.words import clean, plain


def render(prediction: Prediction) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("path", "value"))
    for path, value in _leaves(plain(prediction.to_dict()), ""):
        writer.writerow((_cell(path), _cell(value)))
    return out.getvalue()


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets the quote that keeps it text."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = clean(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
