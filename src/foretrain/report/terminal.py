"""Documents in a terminal, in colour."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from foretrain.report.text import Sheet, lines


def console() -> Console:
    """Colour only on a terminal, and never under NO_COLOR; width of the terminal."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=False)


def show(sheet: Sheet, out: Console) -> None:
    """Print it. Names that are longer than a line are left to the terminal, which copies them unbroken."""
    for line in lines(sheet, out.width):
        out.print(Text.assemble(*line), soft_wrap=True)
