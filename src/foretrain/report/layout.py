"""Answers as lines of a given width; `terminal` and `plain` print them, `fragments` takes the tables as they are.

Names that people copy (models, plans, instances, files) are never broken: where a table has no room, bars go first,
sentences take more lines, then a row's name gets a line of its own, and at last the figures follow it as text.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["Cell", "Grid", "Line", "Part", "Sheet", "cells", "lines", "wrapped"]

INDENT = 2
MARKS = ".,;:!?()[]'\""
GLUE = "\0"
LONG_WORD = 24
"""Longer ones, such as hashes, are folded before a column goes to the next line."""
_UNIT = re.compile(r"(?<=\d) (?=%|(?:[mµn]?s|min|[hd]|[KMGTP]?i?B(?:/s)?)\b)")
"""Between a figure and its unit."""

Cell: TypeAlias = tuple[str, str]
"""A text and its style."""
Line: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of cells. `columns` has a letter for each: `n`ames are never broken and may have a line of their own,
    `l`eft and `r`ight are figures and words that are never broken either, `w` goes on in the next line at a word, a
    `b`ar is left out where there is no room."""

    columns: str
    rows: tuple[tuple[Cell, ...], ...]
    gap: int = 1
    head: tuple[str, ...] = ()


Part: TypeAlias = Grid | Cell


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is shown of an answer: a headline, lines under it, and titled parts. `whole`: phrases to keep in one line."""

    headline: tuple[Cell, ...]
    opening: tuple[Cell, ...] = ()
    blocks: Iterable[tuple[str, tuple[Part, ...]]] = field(default=())
    whole: tuple[str, ...] = ()


def lines(sheet: Sheet, width: int) -> Iterator[Line]:
    """Everything, in lines of at most `width` cells, but for names that are longer."""
    yield from _wrapped_spans(sheet.headline, width, sheet.whole)
    for text, style in sheet.opening:
        yield from _styled(wrapped(text, width, sheet.whole), style)
    for title, parts in sheet.blocks:
        yield ()
        yield from _styled(wrapped(title, width, sheet.whole), "bold")
        for part in parts:
            for line in _part(part, max(1, width - INDENT), sheet.whole):
                yield ((" " * INDENT, ""), *line)


def wrapped(text: str, width: int, whole: Sequence[str] = ()) -> list[str]:
    """Broken between words; a word longer than a line is folded unless it is one of the phrases kept `whole`."""
    found, line = [], ""
    for piece in _pieces(text, width, whole):
        if line and cells(line) + 1 + cells(piece) > width:
            found.append(line)
            line = piece
        else:
            line = f"{line} {piece}" if line else piece
    return [*found, line] if line or not found else found


def cells(text: str) -> int:
    """How wide a terminal shows it."""
    return len(text) if text.isascii() else sum(map(_cell_width, text))


@functools.cache
def _cell_width(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _pieces(text: str, width: int, whole: Sequence[str]) -> Iterator[str]:
    for phrase in sorted((p for p in whole if " " in p), key=len, reverse=True):
        text = text.replace(phrase, phrase.replace(" ", GLUE))
    for piece in _UNIT.sub(GLUE, text).split():  # the glue is no white space
        shown = piece.replace(GLUE, " ")
        if GLUE in piece or cells(shown) <= width or shown.strip(MARKS) in whole:
            yield shown
        else:
            yield from _folded(shown, width)


def _folded(word: str, width: int) -> Iterator[str]:
    line, taken = "", 0
    for character in word:
        size = cells(character)
        if line and taken + size > width:
            yield line
            line, taken = "", 0
        line, taken = line + character, taken + size
    yield line


def _styled(texts: Iterable[str], style: str) -> Iterator[Line]:
    return (((text, style),) for text in texts)


def _wrapped_spans(spans: Sequence[Cell], width: int, whole: Sequence[str]) -> Iterator[Line]:
    """Spans wrapped as one text; each line has the styles that its characters had."""
    styles = [style for text, style in spans for _ in text]
    whole_text = "".join(text for text, _ in spans)
    place = 0
    for line in wrapped(whole_text, width, whole):
        place += whole_text[place : place + 1] == " "  # the one it was broken at
        yield tuple(_runs(line, styles[place : place + len(line)]))
        place += len(line)


def _runs(line: str, styles: Sequence[str]) -> Iterator[Cell]:
    begin = 0
    for end in range(1, len(line) + 1):
        if end == len(line) or styles[end] != styles[begin]:
            yield line[begin:end], styles[begin]
            begin = end


# --- tables -----------------------------------------------------------------------------------------


def _part(part: Part, width: int, whole: Sequence[str]) -> Iterator[Line]:
    if not isinstance(part, Grid):
        text, style = part
        yield from _styled(wrapped(text, width, whole), style)
        return
    for grid in (part, _without(part, "b")):
        sizes = _sizes(grid, width)
        if sizes is not None:
            yield from _drawn(grid, sizes, whole)
            return
    if "n" in part.columns:
        yield from _stacked(_without(part, "b"), width, whole)
    else:
        yield from _told(_without(part, "b"), width, whole)


def _without(grid: Grid, letter: str) -> Grid:
    return _chosen(grid, [at for at, own in enumerate(grid.columns) if own != letter])


def _chosen(grid: Grid, at: Sequence[int]) -> Grid:
    return Grid(
        "".join(grid.columns[i] for i in at),
        tuple(tuple(row[i] for i in at) for row in grid.rows),
        grid.gap,
        tuple(grid.head[i] for i in at) if grid.head else (),
    )


def _sizes(grid: Grid, width: int) -> list[int] | None:
    """Widths of the columns, or None where words alone cannot make room."""
    sizes, least = [], []
    for at, letter in enumerate(grid.columns):
        texts = [*([grid.head[at]] if grid.head else []), *(row[at][0] for row in grid.rows)]
        sizes.append(max(map(cells, texts), default=0))
        words = (min(cells(word), LONG_WORD) for text in texts for word in text.split())
        least.append(max(words, default=0) if letter == "w" else sizes[-1])
    over = sum(sizes) + grid.gap * (len(sizes) - 1) - width
    while over > 0:
        room = [size - low for size, low in zip(sizes, least, strict=True)]
        widest = max(range(len(sizes)), key=lambda i: sizes[i] if room[i] else 0, default=None)
        if widest is None or not room[widest]:
            return None
        sizes[widest] -= 1
        over -= 1
    return sizes


def _drawn(grid: Grid, sizes: Sequence[int], whole: Sequence[str]) -> Iterator[Line]:
    rows = [tuple((title, "dim") for title in grid.head)] if any(grid.head) else []
    for row in (*rows, *grid.rows):
        columns = [
            wrapped(text, size, whole) if letter == "w" else [text]
            for (text, _), size, letter in zip(row, sizes, grid.columns, strict=True)
        ]
        for number in range(max(map(len, columns), default=0)):
            texts = [column[number] if number < len(column) else "" for column in columns]
            yield _line(texts, [style for _, style in row], sizes, grid)


def _line(texts: Sequence[str], styles: Sequence[str], sizes: Sequence[int], grid: Grid) -> Line:
    found: list[Cell] = []
    last = max((at for at, text in enumerate(texts) if text), default=-1)
    for at, text in enumerate(texts[: last + 1]):
        room = " " * (sizes[at] - cells(text))
        before = room if grid.columns[at] == "r" else ""
        after = room if at < last and not before else ""
        gap = " " * grid.gap if at else ""
        found += [(gap + before, ""), (text, styles[at]), (after, "")]
    return tuple(cell for cell in found if cell[0])


def _stacked(grid: Grid, width: int, whole: Sequence[str]) -> Iterator[Line]:
    """Names, and what stands before them, on lines of their own; the other columns below."""
    first = grid.columns.index("n")
    at = [i for i, letter in enumerate(grid.columns) if letter == "n" or i < first]
    rest = _chosen(grid, [i for i in range(len(grid.columns)) if i not in at])
    inner = max(1, width - INDENT)
    sizes = _sizes(rest, inner)
    if any(grid.head):
        yield from _name_lines([(grid.head[i], "dim") for i in at], width)
        if sizes is not None:  # no line at all where every column is a name
            for head in _drawn(Grid(rest.columns, (), rest.gap, rest.head), sizes, whole):
                yield ((" " * INDENT, ""), *head)
    for own, others in zip(grid.rows, rest.rows, strict=True):
        yield from _name_lines([own[i] for i in at], width)
        one = Grid(rest.columns, (others,), rest.gap, () if sizes is not None else rest.head)
        below = _told(one, inner, whole) if sizes is None else _drawn(one, sizes, whole)
        for line in below:
            yield ((" " * INDENT, ""), *line)


def _name_lines(names: Sequence[Cell], width: int) -> Iterator[Line]:
    """Side by side where there is room, else one below the other."""
    line: list[Cell] = []
    for text, style in names:
        if line and sum(cells(t) for t, _ in line) + 2 + cells(text) > width:
            yield tuple(line)
            line = []
        line += [("  ", "")] if line else []
        line.append((text, style))
    yield tuple(line)


def _told(grid: Grid, width: int, whole: Sequence[str]) -> Iterator[Line]:
    """A row as text: each figure after its title."""
    for row in grid.rows:
        titles = grid.head or ("",) * len(row)
        figures = tuple(
            f"{title} {text}".strip()
            for title, (text, _) in zip(titles, row, strict=True)
            if text.strip()
        )
        joined = " · ".join(figures) if any(titles) else "  ".join(figures)
        kept = (figure for figure in figures if cells(figure) <= width)
        for text in wrapped(joined, width, (*whole, *kept)):
            yield ((text, ""),)
