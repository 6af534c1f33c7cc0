"""Printing and writing answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.cli.options import Output
from foretrain.errors import FileError

if TYPE_CHECKING:
    from foretrain.analysis.prediction import Prediction
    from foretrain.report.page import Page


def expect_prediction(output: Output) -> None:
    """Refuse formats and places that cannot be written before any work is done."""
    from foretrain.report import format_of

    for path in output.files or ():
        format_of(path)
        _expect_folder(path)


def expect_page(output: Output, more: tuple[str, ...] = ()) -> None:
    """The same for a page; `more` are formats that this one has besides those of all."""
    from foretrain.report.page import page_format

    for path in output.files or ():
        page_format(path, more)
        _expect_folder(path)


def _expect_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise FileError(f"{path} cannot be written: the folder {path.parent} does not exist.")


def give_prediction(prediction: Prediction, output: Output) -> int:
    """Write the files, print the answer; 1 when it does not fit."""
    from foretrain.report import save

    for path in output.files or ():
        save(prediction, path)
    if output.json:
        from foretrain.report.json import dumps

        print_text(dumps(prediction.to_dict()))
    else:
        _show(prediction, output.detail)
        _told(output)
    return 0 if prediction.fits else 1


def _show(prediction: Prediction, detail: int) -> None:
    """In colour on a terminal, plain into a file or a pipe."""
    from foretrain.report.plain import drawn, plain_width

    width = plain_width(sys.stdout)
    text = None if width is None else drawn(prediction, width, detail)
    if text is not None:
        print_text(text.removesuffix("\n"))
        return
    from foretrain.report import terminal

    terminal.show(prediction, terminal.console(), detail)


def give_page(page: Page, output: Output) -> int:
    """Write the files, print the answer; 1 when the answer is no."""
    from foretrain.report import terminal
    from foretrain.report.json import dumps
    from foretrain.report.page import save_page, show_page

    for path in output.files or ():
        save_page(page, path)
    if output.json:
        print_text(dumps(page.document))
    else:
        show_page(page, terminal.console(), output.detail)
        _told(output)
    return 1 if page.is_no else 0


def print_text(text: str) -> None:
    """One text on stdout; a full disk behind it is the user's to mend."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FileError(f"standard output cannot be written ({error.strerror}).") from None


def note(text: str) -> None:
    """A line for the person, beside the answer."""
    print(text, file=sys.stderr)


def _told(output: Output) -> None:
    if not output.quiet:
        for path in output.files or ():
            note(f"wrote {path}")
