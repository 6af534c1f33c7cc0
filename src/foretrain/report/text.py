"""Documents as lines of text: plain for pipes and files, without rich, whose loading takes a sixth of a cold call; a
terminal colors the same lines, a notebook takes the same sheet.

Names that people copy (models, plans, instances, files) are never broken: where a table has no room, optional columns go
first, then bars, sentences take more lines, then a row's name gets a line of its own, and at last the figures follow it
as text.
"""

from __future__ import annotations

import functools
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, TypeAlias

from foretrain.report.document import Bar, Document, Lines, Section, Table, Text
from foretrain.report.words import clean

WIDTH = 100
"""Of a text file."""
_BARS = {
    "compute": "green", "interconnect": "cyan", "network": "magenta", "bubble": "yellow", "host": "red",
    "prep": "red", "fetch": "red", "imbalance": "yellow", "free": "dim", "bad": "bold red",
}  # fmt: skip


INDENT = 2
MARKS = ".,;:!?()[]'\""
GLUE = "\0"
LONG_WORD = 24
"""Longer ones, such as hashes, are folded before a column goes to the next line."""
LONGEST_BAR, SHORTEST_BAR = 40, 6
_OPTION = re.compile(r'--\S+ (?:"[^"]*"|[^-\s]\S*)')
"""With its value."""
_UNIT = re.compile(r"(?<=\d) (?=[%×]|(?:[mµn]?s|min|[hdkM]|[KMGTP]?i?B(?:/s)?|T)\b)")
"""Between a figure and its unit."""

Cell: TypeAlias = tuple[str, str]
"""A text and its style."""
Line: TypeAlias = tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class TextTable:
    """Rows of cells; `columns` has the letters of a `Table`, `n` for a plan. The cells of column `b` have the styles of
    bars that are drawn when the width is known, as long as `shares` says."""

    columns: str
    rows: tuple[tuple[Cell, ...], ...]
    gap: int = 1
    head: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()


Part: TypeAlias = TextTable | Cell


@dataclass(frozen=True, slots=True)
class Sheet:
    """What is shown of an answer: a headline, lines under it, and titled parts. `whole`: phrases to keep in one line."""

    headline: tuple[Cell, ...]
    opening: tuple[Cell, ...] = ()
    blocks: Iterable[tuple[str, tuple[Part, ...]]] = field(default=())
    whole: tuple[str, ...] = ()


def render(document: Document, width: int = WIDTH) -> str:
    """A text file, with all details."""
    return laid_out(sheet(document, 1), width)


def laid_out(shown: Sheet, width: int) -> str:
    """In lines of at most `width` cells, but for names that are longer."""
    texts = ("".join(text for text, _ in line).rstrip() for line in lines(shown, width))
    return "\n".join(texts) + "\n"


def sheet(document: Document, detail: int = 0) -> Sheet:
    """What is printed: `detail` -1 is the headline alone."""
    said, no, rest = clean(document.headline, 4000).partition("DOES NOT FIT")
    spans = ((said, "bold red" if document.is_no and not no else "bold"), (no + rest, "bold red"))
    headline = tuple(span for span in spans if span[0])
    if detail < 0:
        return Sheet(headline, whole=document.whole)
    under = ((clean(document.asked, 1000), "dim"), (clean(document.lead(), 1000), ""))
    blocks = tuple(
        (clean((section.table or section).title), parts)
        for section in document.sections
        if section.detail <= detail and (parts := _parts(section))
    )
    return Sheet(headline, tuple(line for line in under if line[0]), blocks, document.whole)


def _parts(section: Section) -> tuple[Part, ...]:
    if isinstance(section, Lines):
        style = "yellow" if section.kind == "warning" else ""
        texts = [(clean(line, 4000), style) for line in section.lines]
        if section.has_bullets:
            return (TextTable("ww", tuple((("-", ""), text) for text in texts)),)
        return tuple(texts)
    table = section.table
    if table is None:
        return ()
    notes = (_cell(note) for note in table.notes)
    return (*notes, *((_grid(table),) if table.rows else ()))


def _grid(whole: Table) -> TextTable:
    table = whole.without("B")
    letters = table.letters.replace("p", "n")
    has_head = table.has_head_in_text and any(table.head)
    bars = [cell.share for row in table.rows for cell in row if isinstance(cell, Bar)]
    longest = max(bars, default=1.0) if table.is_waterfall else 1.0  # in text all begin at the left
    return TextTable(
        letters,
        tuple(tuple(map(_cell, row, letters)) for row in table.rows),
        2 if has_head or not bars else 1,
        tuple(map(clean, table.head)) if has_head else (),
        tuple(share / longest for share in bars),
    )


def _cell(cell: str | Text | Bar, letter: str = "") -> Cell:
    if isinstance(cell, Bar):
        return "", _BARS.get(cell.color, "blue")
    style = "bold red" if isinstance(cell, Text) else "dim" if letter == "L" else ""
    return clean(cell, 20_000), style


def plain_width(stream: IO[str]) -> int | None:
    """Cells in a line of a stream that takes plain text; None for a terminal, or where colour is wanted."""
    wishes = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    if os.name != "posix" or stream.isatty() or any(os.environ.get(wish) for wish in wishes):
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit():
        return int(columns) or 80
    for descriptor in (0, 1, 2):  # the terminal that the text may be shown on after all
        try:
            return os.get_terminal_size(descriptor).columns or 80
        except OSError:
            continue
    return 80


# --- lines ------------------------------------------------------------------------------------------


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
    lines, line = [], ""
    for piece in _pieces(text, width, whole):
        if line and cells(line) + 1 + cells(piece) > width:
            lines.append(line)
            line = piece
        else:
            line = f"{line} {piece}" if line else piece
    return [*lines, line] if line or not lines else lines


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
    if not isinstance(part, TextTable):
        text, style = part
        yield from _styled(wrapped(text, width, whole), style)
        return
    required = _without(part, "LR")
    bare = _without(required, "b")
    for grid in (_with_bars(part, LONGEST_BAR), _with_bars(required, _room(bare, width)), bare):
        sizes = _sizes(grid, width)
        if sizes is not None:
            yield from _grid_lines(grid, sizes, whole)
            return
    if set("no") & set(part.columns):
        yield from _stacked(bare, width, whole)
    else:
        yield from _as_text(bare, width, whole)


def _without(grid: TextTable, letters: str) -> TextTable:
    return _chosen(grid, [at for at, own in enumerate(grid.columns) if own not in letters])


def _room(bare: TextTable, width: int) -> int:
    """Cells that the other columns leave for bars."""
    columns = range(len(bare.columns))
    taken = sum(max(map(cells, _texts(bare, at)), default=0) + bare.gap for at in columns)
    return min(LONGEST_BAR, width - taken)


def _with_bars(grid: TextTable, room: int) -> TextTable:
    """Bars drawn in as many cells; none at all where there are only a few."""
    at = grid.columns.find("b")
    if at < 0 or room < SHORTEST_BAR:
        return _without(grid, "b")
    rows = (
        (*row[:at], (_bar(share, room), row[at][1]), *row[at + 1 :])
        for row, share in zip(grid.rows, grid.shares, strict=True)
    )
    return replace(grid, rows=tuple(rows))


def _bar(share: float, room: int) -> str:
    """Eighths of a cell; anything above nothing shows at least a sliver."""
    eighths = round(max(0.0, min(1.0, share)) * room * 8)
    full, rest = divmod(max(1, eighths) if share > 0 else eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def _texts(grid: TextTable, at: int) -> list[str]:
    return [*([grid.head[at]] if grid.head else []), *(row[at][0] for row in grid.rows)]


def _chosen(grid: TextTable, at: Sequence[int]) -> TextTable:
    return replace(
        grid,
        columns="".join(grid.columns[i] for i in at),
        rows=tuple(tuple(row[i] for i in at) for row in grid.rows),
        head=tuple(grid.head[i] for i in at) if grid.head else (),
    )


def _sizes(grid: TextTable, width: int) -> list[int] | None:
    """Widths of the columns, or None where words alone cannot make room."""
    sizes, least = [], []
    for at, letter in enumerate(grid.columns):
        texts = _texts(grid, at)
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


def _grid_lines(grid: TextTable, sizes: Sequence[int], whole: Sequence[str]) -> Iterator[Line]:
    rows = [tuple((title, "dim") for title in grid.head)] if any(grid.head) else []
    for row in (*rows, *grid.rows):
        columns = [
            wrapped(text, size, whole) if letter == "w" else [text]
            for (text, _), size, letter in zip(row, sizes, grid.columns, strict=True)
        ]
        for number in range(max(map(len, columns), default=0)):
            texts = [column[number] if number < len(column) else "" for column in columns]
            yield _line(texts, [style for _, style in row], sizes, grid)


def _line(
    texts: Sequence[str], styles: Sequence[str], sizes: Sequence[int], grid: TextTable
) -> Line:
    parts: list[Cell] = []
    last = max((at for at, text in enumerate(texts) if text), default=-1)
    for at, text in enumerate(texts[: last + 1]):
        room = " " * (sizes[at] - cells(text))
        before = room if grid.columns[at] in "rR" else ""
        after = room if at < last and not before else ""
        gap = " " * grid.gap if at else ""
        parts += [(gap + before, ""), (text, styles[at]), (after, "")]
    return tuple(cell for cell in parts if cell[0])


def _stacked(grid: TextTable, width: int, whole: Sequence[str]) -> Iterator[Line]:
    """Names, and what stands before them, on lines of their own; the other columns below."""
    first = min(i for i, letter in enumerate(grid.columns) if letter in "no")
    at = [i for i, letter in enumerate(grid.columns) if letter in "no" or i < first]
    rest = _chosen(grid, [i for i in range(len(grid.columns)) if i not in at])
    inner = max(1, width - INDENT)
    sizes = _sizes(rest, inner)
    if any(grid.head):
        yield from _name_lines([(grid.head[i], "dim") for i in at], width)
        if sizes is not None:  # no line at all where every column is a name
            for head in _grid_lines(TextTable(rest.columns, (), rest.gap, rest.head), sizes, whole):
                yield ((" " * INDENT, ""), *head)
    for own, others in zip(grid.rows, rest.rows, strict=True):
        if grid.columns[first] == "o":
            yield from _styled(_options(own[first][0], width), own[first][1])
        else:
            yield from _name_lines([own[i] for i in at], width)
        one = TextTable(rest.columns, (others,), rest.gap, () if sizes is not None else rest.head)
        below = _as_text(one, inner, whole) if sizes is None else _grid_lines(one, sizes, whole)
        for line in below:
            yield ((" " * INDENT, ""), *line)


def _options(text: str, width: int) -> Iterator[str]:
    """Broken between options, or between words that are none; a shell goes on in the next line after a backslash."""
    end = " \\" if text.startswith("--") and cells(text) > width else ""
    room = max(1, width - len(end))
    quoted = (f'"{part}"' for part in text.split('"')[1::2])
    kept = (option for option in _OPTION.findall(text) if cells(option) <= room)
    *most, last = wrapped(text, room, (*kept, *quoted)) or [""]
    yield from (line + end for line in most)
    yield last


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


def _as_text(grid: TextTable, width: int, whole: Sequence[str]) -> Iterator[Line]:
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
