"""Printing and writing answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.cli.options import Output
from foretrain.cli.process import tell
from foretrain.errors import FileError

if TYPE_CHECKING:
    from foretrain.analysis.prediction import Prediction
    from foretrain.report.layout import Sheet
    from foretrain.report.page import Page


def expect_prediction(output: Output) -> None:
    """Refuse formats and places that cannot be written before any work is done."""
    from foretrain.report import format_of

    for path in output.files or ():
        format_of(path)
        _expect_folder(path)


def expect_page(output: Output) -> None:
    """The same for a page."""
    from foretrain.report.page import page_format

    for path in output.files or ():
        page_format(path)
        _expect_folder(path)


def _expect_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: directory {path.parent} does not exist.")


def give_prediction(prediction: Prediction, output: Output) -> int:
    """Write the files, print the answer; 1 when it does not fit."""
    from foretrain.report import save

    for path in output.files or ():
        save(prediction, path)
    if output.json:
        from foretrain.report.json import dumps

        print_text(dumps(prediction.to_dict()))
    else:
        from foretrain.report.outline import sheet

        _show(lambda width: sheet(prediction, width, output.detail))
        _told(output)
    return 0 if prediction.fits else 1


def _show(sheet: Callable[[int], Sheet]) -> None:
    """In colour on a terminal, plain into a file or a pipe; `sheet` is told the width."""
    from foretrain.report.plain import drawn, plain_width

    width = plain_width(sys.stdout)
    if width is not None:
        print_text(drawn(sheet(width), width).removesuffix("\n"))
        return
    from foretrain.report import terminal

    out = terminal.console()
    terminal.show(sheet(out.width), out)


def give_page(page: Page, output: Output) -> int:
    """Write the files, print the answer; 1 when the answer is no."""
    from foretrain.report.json import dumps
    from foretrain.report.page import save_page, sheet

    for path in output.files or ():
        save_page(page, path)
    if output.json:
        print_text(dumps(page.document))
    else:
        _show(lambda _: sheet(page, output.detail))
        _told(output)
    return 1 if page.is_no else 0


def print_text(text: str) -> None:
    """One text on stdout."""
    from foretrain.cli.streams import write_answer

    write_answer(text + "\n")


def note(text: str) -> None:
    """A line for the person, beside the answer."""
    tell(text)


def _told(output: Output) -> None:
    if not output.quiet:
        for path in output.files or ():
            note(f"wrote {path}")
