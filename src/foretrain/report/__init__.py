"""Answers as documents (`DOCUMENTS`), and documents as files (`RENDERERS`), chosen by extension."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.errors import InputError, did_you_mean
from foretrain.named import named

if TYPE_CHECKING:
    from foretrain.analysis.answer import Answer
    from foretrain.report.document import Document

__all__ = ["RENDERERS", "brief", "document_of", "format_of", "notebook", "render", "save"]

# Extension -> "module:function" under foretrain.report; a function takes a Document and gives text.
# Names, not functions, so that writing JSON does not load what draws pages.
RENDERERS: dict[str, str] = {
    "html": "html:render",
    "json": "json:render",
    "md": "md:render",
    "csv": "csv:render",
    "txt": "text:render",
    "jsonl": "json:render_line",
}

# What only a prediction can be written as; a function gives bytes.
TRACES: dict[str, str] = {
    "trace.json": "trace:render",
    "trace.json.gz": "trace:render_gz",
}

# Class of an answer -> "module:function" that makes its document.
DOCUMENTS: dict[str, str] = {
    "Comparison": "answers:comparison_document",
    "Compiled": "graph:compiled_document",
    "DataReport": "measured:data_document",
    "Explanation": "answers:explanation_document",
    "FitAnswer": "answers:fit_document",
    "LinkReport": "measured:links_document",
    "OpsReport": "measured:ops_document",
    "Prediction": "prediction:prediction_document",
    "Recommendation": "recommendation:recommendation_document",
    "SearchResult": "search:search_document",
    "Sweep": "answers:sweep_document",
    "TraceReport": "imported:trace_document",
    "ValidationReport": "validation:validation_document",
    "WhatIf": "answers:whatif_document",
}


def format_of(path: str | Path, *, has_timeline: bool = False) -> str:
    """The format a file name asks for: the longest known extension it ends with."""
    known = (*RENDERERS, *TRACES) if has_timeline else tuple(RENDERERS)
    name = Path(path).name.lower()
    formats = [fmt for fmt in known if name.endswith(f".{fmt}")]
    if formats:
        return max(formats, key=len)
    raise InputError(
        f"{str(path)!r}: unsupported file format for this result. Supported: "
        f"{', '.join(f'.{fmt}' for fmt in known)}.{did_you_mean(Path(path).suffix.lstrip('.'), known)}"
    )


def document_of(answer: Answer | Document) -> Document:
    """How an answer is shown."""
    from foretrain.report.document import Document

    if isinstance(answer, Document):
        return answer
    document: Document = _called(DOCUMENTS[type(answer).__name__])(answer)
    return document


def render(answer: Answer | Document, fmt: str) -> str | bytes:
    """A report in format `fmt`: a key of `RENDERERS`, of a prediction also of `TRACES`."""
    document = document_of(answer)
    known = RENDERERS if document.prediction is None else {**RENDERERS, **TRACES}
    if fmt not in known:
        raise InputError(
            f"unknown report format {fmt!r}. Known: {', '.join(known)}.{did_you_mean(fmt, known)}"
        )
    content: str | bytes = _called(known[fmt])(document)
    return content


def save(answer: Answer | Document, path: str | Path) -> None:
    """Write the report in the format the extension names; the file appears whole or not at all."""
    from foretrain.report.files import write_whole

    document = document_of(answer)
    fmt = format_of(path, has_timeline=document.prediction is not None)
    write_whole(path, render(document, fmt))


def brief(answer: Answer) -> str:
    """The decision, and for a prediction what it is about, in a line or two."""
    from foretrain.report.words import clean

    document = document_of(answer)
    about = f"\n  {document.asked}" if document.prediction is not None else ""
    return clean(document.headline, 300) + about


def notebook(answer: Answer) -> str:
    """What a terminal shows, as HTML that stands alone in a notebook's cell."""
    from foretrain.report.fragments import fragment
    from foretrain.report.text import sheet

    return fragment(sheet(document_of(answer)))


def _called(home: str) -> Any:
    return named(f"foretrain.report.{home}")
