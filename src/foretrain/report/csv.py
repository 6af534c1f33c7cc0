"""Documents for spreadsheets: a line for each row, or two columns, `path,value`, for each figure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from foretrain.report.document import Document
from foretrain.report.json import strict
from foretrain.report.words import clean


def render(document: Document) -> str:
    if document.make_rows is not None:
        return _table(document.make_rows())
    return _written((("path", "value"), *_leaves(strict(document.data), "")))


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A line for each row; columns in the order in which they first appear."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    values = ([strict(row.get(name)) for name in names] for row in rows)
    return _written((names, *values)) if names else ""


def _written(rows: Iterable[Iterable[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list | tuple):
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
