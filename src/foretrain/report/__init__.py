"""Renderers: one file each, chosen by the extension of the file to write."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.errors import InputError, did_you_mean
from foretrain.named import named

if TYPE_CHECKING:
    from foretrain.analysis.answer import Answer
    from foretrain.analysis.prediction import Prediction
    from foretrain.report.layout import Sheet
    from foretrain.report.page import Page

__all__ = ["RENDERERS", "brief", "format_of", "notebook", "page_of", "render", "save"]

# Extension -> "module:function" under foretrain.report; a function takes a Prediction and gives text or bytes.
# Names, not functions, so that writing JSON does not load the HTML template engine.
RENDERERS: dict[str, str] = {
    "html": "html:render",
    "json": "json:render",
    "jsonl": "json:render_line",
    "md": "md:render",
    "txt": "plain:render",
    "csv": "csv:render",
    "trace.json": "trace:render",
    "trace.json.gz": "trace:render_gz",
}

# Class of another answer -> "module:function" that makes its page.
PAGES: dict[str, str] = {
    "Comparison": "comparison:compare_page",
    "Compiled": "graph:compiled_page",
    "DataReport": "measured:data_page",
    "Explanation": "answers:explain_page",
    "FitAnswer": "answers:fit_page",
    "Found": "search:search_page",
    "LinkReport": "measured:links_page",
    "OpsReport": "measured:ops_page",
    "Recommendation": "recommendation:recommendation_page",
    "Sweep": "sweep:sweep_page",
    "TraceReport": "imported:trace_page",
    "ValidationReport": "validation:validation_page",
    "WhatIf": "answers:whatif_page",
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
        f"{str(path)!r}: unsupported file format. Supported: {known}."
        + did_you_mean(suffix, RENDERERS)
    )


def render(prediction: Prediction, fmt: str) -> str | bytes:
    """The report in format `fmt` (a key of `RENDERERS`)."""
    if fmt not in RENDERERS:
        known = ", ".join(RENDERERS)
        raise InputError(
            f"unknown report format {fmt!r}. Known: {known}.{did_you_mean(fmt, RENDERERS)}"
        )
    content: str | bytes = _called(RENDERERS[fmt])(prediction)
    return content


def page_of(answer: Answer) -> Page:
    """The page of an answer that is no prediction."""
    page: Page = _called(PAGES[type(answer).__name__])(answer)
    return page


def save(answer: Answer, path: str | Path) -> None:
    """Write the report in the format the extension names; the file appears whole or not at all."""
    from foretrain.analysis.prediction import Prediction
    from foretrain.report.files import write_whole

    if isinstance(answer, Prediction):
        write_whole(path, render(answer, format_of(path)))
        return
    from foretrain.report.page import page_format, render_page

    fmt = page_format(path)
    write_whole(path, render_page(page_of(answer), fmt))


def brief(answer: Answer) -> str:
    """The decision, and for a prediction what it is about, in a line or two."""
    from foretrain.analysis.prediction import Prediction
    from foretrain.report import words

    if isinstance(answer, Prediction):
        return f"{words.headline(answer)}\n  {words.asked(answer)}"
    return words.clean(page_of(answer).headline, 300)


def notebook(answer: Answer) -> str:
    """What a terminal shows, as HTML that stands alone in a notebook's cell."""
    from foretrain.report.fragments import fragment

    return fragment(_sheet(answer))


def _sheet(answer: Answer) -> Sheet:
    from foretrain.analysis.prediction import Prediction
    from foretrain.report import outline, page, plain

    if isinstance(answer, Prediction):
        return outline.sheet(answer, plain.WIDTH)
    return page.sheet(page_of(answer))


def _called(home: str) -> Any:
    return named(f"foretrain.report.{home}")
