"""Answers other than a prediction: a headline, titled tables and lines, and the document behind them.

Commands make a `Page`; here is how it looks as text, HTML, Markdown, CSV and JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from foretrain.errors import InputError, did_you_mean
from foretrain.report import csv, md, plain
from foretrain.report.json import dumps
from foretrain.report.layout import Grid, Part, Sheet
from foretrain.report.words import clean

PAGE_FORMATS = ("html", "json", "md", "csv", "txt")


@dataclass(frozen=True, slots=True)
class Section:
    """A table, lines of text, or both. The first `left` columns are words, the others numbers."""

    title: str
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    left: int = 1
    has_bullets: bool = (
        False  # lines that stand for themselves: marked in plain text, as lists are elsewhere
    )
    detail: int = 0  # shown from this level of detail on: 1 is with -v
    columns: str = (
        ""  # letters of `Grid`; left out, the first column is a name and other words wrap
    )

    @property
    def letters(self) -> str:
        count = len(self.head) or max(map(len, self.rows), default=0)
        words = ("n" + "w" * count)[: min(self.left, count)]
        return self.columns or words + "r" * (count - len(words))


@dataclass(frozen=True, slots=True)
class Page:
    headline: str
    document: Mapping[str, Any]
    sections: tuple[Section, ...] = field(default=())
    is_no: bool = False  # a well-formed question whose answer is no
    more: Mapping[str, Callable[[], str]] = field(
        default_factory=dict
    )  # formats with a look of their own
    rows: Sequence[Mapping[str, Any]] | None = (
        None  # lines of a CSV file; None: path and value of each figure
    )
    asked: str = ""  # what the answer is to, in one line
    whole: tuple[str, ...] = ()  # names in its sentences that no line may break


def listed(title: str, lines: Sequence[str]) -> Section:
    """Assumptions, warnings and the like."""
    return Section(title, lines=tuple(lines), has_bullets=True)


class Late(Mapping[str, Any]):
    """A document that is made when it is looked at: remedies in it take simulations that a table needs not."""

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[str, Any]:
        return self._make()

    def __getitem__(self, key: str) -> Any:
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def page_format(path: str | Path) -> str:
    """The format a file name asks for."""
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix in PAGE_FORMATS:
        return suffix
    known = ", ".join(f".{fmt}" for fmt in PAGE_FORMATS)
    raise InputError(
        f"{str(path)!r}: unsupported output format for this result. Supported: {known}."
        + did_you_mean(suffix, PAGE_FORMATS)
    )


def save_page(page: Page, path: str | Path) -> None:
    from foretrain.report.files import write_whole

    write_whole(path, render_page(page, page_format(path)))


def render_page(page: Page, fmt: str) -> str:
    if fmt in page.more:
        return page.more[fmt]()
    if fmt == "html":
        return _html(page)
    if fmt == "json":
        return dumps(page.document) + "\n"
    if fmt == "csv":
        return csv.leaves(page.document) if page.rows is None else csv.table(page.rows)
    return _markdown(page) if fmt == "md" else plain.drawn(sheet(page, 1), plain.WIDTH)


def sheet(page: Page, detail: int = 0) -> Sheet:
    """What is printed: `detail` -1 is the headline alone."""
    headline = ((clean(page.headline, 4000), "bold red" if page.is_no else "bold"),)
    if detail < 0:
        return Sheet(headline, whole=page.whole)
    opening = ((clean(page.asked, 1000), "dim"),) if page.asked else ()
    blocks = tuple(
        (clean(section.title), tuple(_parts(section)))
        for section in page.sections
        if section.detail <= detail and (section.rows or section.lines)
    )
    return Sheet(headline, opening, blocks, page.whole)


def _parts(section: Section) -> list[Part]:
    mark = "- " if section.has_bullets else ""
    parts: list[Part] = [(mark + clean(line, 4000), "") for line in section.lines]
    if section.rows:
        rows = tuple(tuple((clean(cell, 20_000), "") for cell in row) for row in section.rows)
        head = tuple(map(clean, section.head)) if any(section.head) else ()
        parts.append(Grid(section.letters, rows, gap=2, head=head))
    return parts


def _html(page: Page) -> str:
    from foretrain.report.templates import template

    return template("answer.html").render(
        title=f"{clean(page.asked or page.headline, 100)} · Foretrain",
        asked=page.asked,
        headline=clean(page.headline, 4000),
        is_no=page.is_no,
        sections=[section for section in page.sections if section.rows or section.lines],
    )


def _markdown(page: Page) -> str:
    parts = [f"# {md.text(page.headline)}"]
    if page.asked:
        parts.append(md.text(page.asked))
    for section in page.sections:
        if not (section.rows or section.lines):
            continue
        parts.append(f"## {md.text(section.title)}")
        if section.lines:
            parts.append("\n".join(f"- {md.text(line)}" for line in section.lines))
        if section.rows:
            parts.append(md.table(section.head or [""] * len(section.rows[0]), section.rows))
    return "\n\n".join(parts) + "\n"
