"""Answers other than a prediction: a headline, titled tables and lines, and the document behind them.

Commands make a `Page`; here is how it looks as text, Markdown and JSON.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from foretrain.errors import InputError, did_you_mean
from foretrain.report import md, terminal
from foretrain.report.json import dumps
from foretrain.report.words import clean

PAGE_FORMATS = ("json", "md", "txt")


@dataclass(frozen=True, slots=True)
class Section:
    """A table, lines of text, or both. The first `left` columns are words, the others numbers."""

    title: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    left: int = 1
    detail: int = 0  # shown from this level of detail on: 1 is with -v


@dataclass(frozen=True, slots=True)
class Page:
    headline: str
    document: Mapping[str, Any]
    sections: tuple[Section, ...] = field(default=())
    is_no: bool = False  # a well-formed question whose answer is no
    more: Mapping[str, Callable[[], str]] = field(default_factory=dict)  # further formats


def page_format(path: str | Path, more: Sequence[str] = ()) -> str:
    """The format a file name asks for, of those all pages have and those that this one has besides."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix in (*PAGE_FORMATS, *more):
        return suffix
    known = ", ".join(f".{fmt}" for fmt in (*PAGE_FORMATS, *more))
    raise InputError(
        f"{str(path)!r}: this answer cannot be written as such a file. Known: {known}."
        + did_you_mean(suffix, (*PAGE_FORMATS, *more))
    )


def save_page(page: Page, path: str | Path) -> None:
    from foretrain.report.files import write_whole

    write_whole(path, render_page(page, page_format(path, tuple(page.more))))


def render_page(page: Page, fmt: str) -> str:
    if fmt in page.more:
        return page.more[fmt]()
    if fmt == "json":
        return dumps(page.document) + "\n"
    if fmt == "md":
        return _markdown(page)
    out = terminal.plain_console()
    show_page(page, out, detail=1)
    assert isinstance(out.file, io.StringIO)
    return "\n".join(line.rstrip() for line in out.file.getvalue().splitlines()) + "\n"


def show_page(page: Page, out: Console, detail: int = 0) -> None:
    """Print it: `detail` -1 is the headline alone."""
    out.print(Text(clean(page.headline, 1000), style="bold red" if page.is_no else "bold"))
    if detail < 0:
        return
    for section in page.sections:
        if section.detail <= detail and (section.rows or section.lines):
            terminal.section(out, clean(section.title), _body(section))


def _body(section: Section) -> RenderableType:
    parts: list[RenderableType] = [Text(clean(line, 4000)) for line in section.lines]
    if section.rows:
        table = Table(
            box=None,
            padding=(0, 1),
            pad_edge=False,
            header_style="dim",
            show_header=any(section.head),
        )
        for index, title in enumerate(section.head or [""] * len(section.rows[0])):
            right = index >= section.left
            table.add_column(clean(title), justify="right" if right else "left", overflow="fold")
        for row in section.rows:
            table.add_row(*(Text(clean(cell, 20_000)) for cell in row))
        parts.append(table)
    return Group(*parts)


def _markdown(page: Page) -> str:
    parts = [f"# {md.text(page.headline)}"]
    for section in page.sections:
        if not (section.rows or section.lines):
            continue
        parts.append(f"## {md.text(section.title)}")
        if section.lines:
            parts.append("\n".join(f"- {md.text(line)}" for line in section.lines))
        if section.rows:
            parts.append(md.table(section.head or [""] * len(section.rows[0]), section.rows))
    return "\n\n".join(parts) + "\n"
