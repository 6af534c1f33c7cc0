"""The answer in a terminal: the decision first, the evidence after."""

from __future__ import annotations

import io
import sys
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from foretrain.analysis.prediction import Prediction
from foretrain.report import words
from foretrain.report.outline import Grid, Part, opening, sections

PLAIN_WIDTH = 100


def console(stream: IO[str] | None = None) -> Console:
    """Colour only on a terminal, and never under NO_COLOR; width of the terminal."""
    return Console(file=stream or sys.stdout, highlight=False, soft_wrap=False)


def plain_console(width: int = PLAIN_WIDTH) -> Console:
    """Text only, whatever the environment says."""
    return Console(
        file=io.StringIO(), width=width, color_system=None, force_terminal=False,
        legacy_windows=False, highlight=False, _environ={},
    )  # fmt: skip


def render(prediction: Prediction, width: int = PLAIN_WIDTH) -> str:
    """The report as plain text of a fixed width."""
    out = plain_console(width)
    show(prediction, out, detail=1)
    assert isinstance(out.file, io.StringIO)
    return "\n".join(line.rstrip() for line in out.file.getvalue().splitlines()) + "\n"


def show(prediction: Prediction, out: Console, detail: int = 0) -> None:
    """Print the report: `detail` -1 is the headline alone, 1 adds operators and the critical path."""
    out.print(_headline(prediction))
    if detail < 0:
        return
    for text, style in opening(prediction):
        out.print(Text(text, style=style))
    for title, body in sections(prediction, out.width, detail):
        section(out, title, Group(*map(_rich, body)))


def section(out: Console, title: str, body: RenderableType) -> None:
    out.print()
    out.print(Text(title, style="bold"))
    out.print(Padding(body, (0, 0, 0, 2), expand=False))


def _headline(prediction: Prediction) -> Text:
    text = Text(words.headline(prediction), style="bold")
    text.highlight_regex(r"DOES NOT FIT.*", "bold red")
    return text


def _rich(part: Part) -> RenderableType:
    if not isinstance(part, Grid):
        text, style = part
        return Text(text, style=style)
    if part.head:
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    else:
        table = Table.grid(padding=(0, part.gap))
    for letter, title in zip(part.columns, part.head or [""] * len(part.columns), strict=True):
        table.add_column(
            title,
            justify="right" if letter == "r" else "left",
            no_wrap=letter in "lr",
            overflow="fold" if letter == "f" else "ellipsis",
        )
    for row in part.rows:
        table.add_row(*(Text(text, style=style) for text, style in row))
    return table
