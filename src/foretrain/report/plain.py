"""The answer as plain text, for pipes and files: without rich, whose loading takes a sixth of a cold call."""

from __future__ import annotations

import os
from typing import IO

from foretrain.analysis.prediction import Prediction
from foretrain.report.layout import Sheet, lines
from foretrain.report.outline import sheet

__all__ = ["drawn", "plain_width", "render"]

WIDTH = 100
"""Of a text file."""


def render(prediction: Prediction, width: int = WIDTH) -> str:
    """The report of a prediction as a text file."""
    return drawn(sheet(prediction, width, detail=1), width)


def drawn(shown: Sheet, width: int) -> str:
    """In lines of at most `width` cells, but for names that are longer."""
    texts = ("".join(text for text, _ in line).rstrip() for line in lines(shown, width))
    return "\n".join(texts) + "\n"


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
