"""The report as plain text, where no colour and no folding of cells is wanted: as `terminal`, without loading rich.

Loading and using rich takes a sixth of a cold call. What this cannot draw as rich would (cells that do not fit,
characters that are not one cell wide) it leaves to rich: `drawn` is None then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import IO

from foretrain.analysis.prediction import Prediction
from foretrain.report import words
from foretrain.report.outline import Grid, Part, opening, sections

__all__ = ["drawn", "plain_width"]

INDENT = 2
ONE_CELL = frozenset("–—‘’“”…·×→↔↑↓█▏▎▍▌▋▊▉")
_WORD = re.compile(r"\s*\S+\s*")


class _NeedsRich(Exception):
    """Something that only rich can lay out."""


def plain_width(stream: IO[str]) -> int | None:
    """Cells in a line of a stream that takes plain text; None for a terminal, or where colour is wanted."""
    wishes = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    if os.name != "posix" or stream.isatty() or any(os.environ.get(wish) for wish in wishes):
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdigit():
        return int(told) or 80
    for descriptor in (0, 1, 2):  # the terminal that the text may be shown on after all
        try:
            return os.get_terminal_size(descriptor).columns or 80
        except OSError:
            continue
    return 80


def drawn(prediction: Prediction, width: int, detail: int = 0) -> str | None:
    """The report in lines of at most `width` cells, or None where that takes rich."""
    try:
        return "\n".join(_lines(prediction, width, detail)) + "\n"
    except _NeedsRich:
        return None


def _lines(prediction: Prediction, width: int, detail: int) -> Iterator[str]:
    yield from _wrapped(words.headline(prediction), width)
    if detail < 0:
        return
    for text, _ in opening(prediction):
        yield from _wrapped(text, width)
    for title, body in sections(prediction, width, detail):
        yield ""
        yield from _wrapped(title, width)
        for line in _block([_drawn_part(part, width - INDENT) for part in body], width):
            yield " " * INDENT + line


def _drawn_part(part: Part, width: int) -> list[str]:
    return _table(part, width) if isinstance(part, Grid) else [_narrow(part[0])]


def _block(parts: list[list[str]], width: int) -> list[str]:
    """Parts under each other, every line as long as the longest."""
    lines = [line for part in parts for line in part]
    longest = max(map(len, lines), default=0)
    if longest + INDENT > width:
        raise _NeedsRich
    return [line.ljust(longest) for line in lines]


def _table(grid: Grid, width: int) -> list[str]:
    rows = [grid.head] if grid.head else []
    rows += [tuple(text for text, _ in row) for row in grid.rows]
    widths = [max(len(_narrow(text)) for text in column) for column in zip(*rows, strict=True)]
    room = width - sum(widths[:-1]) - grid.gap * (len(widths) - 1)
    if widths and widths[-1] > room > 0 and grid.columns[-1] == "w":
        widths[-1] = room
        rows = [folded for row in rows for folded in _folded(row, room)]
    gap = " " * grid.gap
    return [
        gap.join(
            text.rjust(size) if letter == "r" else text.ljust(size)
            for text, size, letter in zip(row, widths, grid.columns, strict=True)
        )
        for row in rows
    ]


def _folded(row: tuple[str, ...], room: int) -> Iterator[tuple[str, ...]]:
    """A row whose last cell takes as many lines as it needs."""
    blank = ("",) * (len(row) - 1)
    for number, line in enumerate(_wrapped(row[-1], room)):
        yield (*(blank if number else row[:-1]), line.rstrip())


def _narrow(text: str) -> str:
    """The text, if each of its characters is one cell wide."""
    if text.isascii() and text.isprintable():
        return text
    if all((c < "\u0300" and c.isprintable()) or c in ONE_CELL for c in text):
        return text
    raise _NeedsRich


def _wrapped(text: str, width: int) -> Iterator[str]:
    """Broken before the first word that does not fit; spaces at the end stay while there is room."""
    line = ""
    for word in _WORD.findall(_narrow(text)):
        if len(word.rstrip()) > width:
            raise _NeedsRich
        if line and len(line) + len(word.rstrip()) > width:
            yield _fitting(line, width)
            line = ""
        line += word
    yield _fitting(line, width)


def _fitting(line: str, width: int) -> str:
    over = max(0, len(line) - width)
    return line[: len(line) - min(over, len(line) - len(line.rstrip()))]
