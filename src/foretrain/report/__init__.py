"""Renderers: one file each, chosen by the extension of the file to write."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from foretrain.analysis.prediction import Prediction

__all__ = ["RENDERERS", "format_of", "render", "save"]

# Extension -> "module:function" under foretrain.report; a function takes a Prediction and gives text or bytes.
# Names, not functions, so that writing JSON does not load the HTML template engine.
RENDERERS: dict[str, str] = {
    "html": "html:render",
    "json": "json:render",
    "jsonl": "json:render_line",
    "md": "md:render",
    "txt": "terminal:render",
    "csv": "csv:render",
    "trace.json": "trace:render",
    "trace.json.gz": "trace:render_gz",
}


def format_of(path: str | Path) -> str:
    """The renderer a file name asks for: the longest known extension it ends with."""
    name = Path(path).name.lower()
    found = [fmt for fmt in RENDERERS if name.endswith(f".{fmt}")]
    if found:
        return max(found, key=len)
    known = ", ".join(f".{fmt}" for fmt in RENDERERS)
    suffix = Path(path).suffix.lstrip(".")
    raise InputError(
        f"{str(path)!r}: no renderer for this kind of file. Known: {known}."
        + did_you_mean(suffix, RENDERERS)
    )


def render(prediction: Prediction, fmt: str) -> str | bytes:
    """The report in format `fmt` (a key of `RENDERERS`)."""
    if fmt not in RENDERERS:
        known = ", ".join(RENDERERS)
        raise InputError(
            f"unknown report format {fmt!r}. Known: {known}.{did_you_mean(fmt, RENDERERS)}"
        )
    module, _, function = RENDERERS[fmt].partition(":")
    call: Any = getattr(importlib.import_module(f"foretrain.report.{module}"), function)
    content: str | bytes = call(prediction)
    return content


def save(prediction: Prediction, path: str | Path) -> None:
    """Write the report in the format the extension names; the file appears whole or not at all."""
    from foretrain.report.files import write_whole

    write_whole(path, render(prediction, format_of(path)))
