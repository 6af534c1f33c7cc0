"""Printing and writing answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.cli.options import Output
from foretrain.cli.process import tell
from foretrain.errors import FileError

if TYPE_CHECKING:
    from foretrain.analysis.answer import Answer
    from foretrain.report.document import Document


def expect_files(output: Output, *, has_timeline: bool = False) -> None:
    """Refuse formats and places that cannot be written before any work is done."""
    from foretrain.report import format_of

    for path in output.files or ():
        format_of(path, has_timeline=has_timeline)
        _expect_folder(path)


def _expect_folder(path: Path) -> None:
    if not path.parent.is_dir():
        raise FileError(f"cannot write {path}: directory {path.parent} does not exist.")


def give(answer: Answer | Document, output: Output) -> int:
    """Write the files, print the answer; 1 when the answer is no."""
    from foretrain.report import document_of, save

    document = document_of(answer)
    for path in output.files or ():
        save(document, path)
    if output.json:
        from foretrain.report.json import dumps

        print_text(dumps(document.data))
    else:
        _show(document, output.detail)
        _note_files(output)
    return 1 if document.is_no else 0


def _show(document: Document, detail: int) -> None:
    """In colour on a terminal, plain into a file or a pipe."""
    from foretrain.report.text import laid_out, plain_width, sheet

    shown, width = sheet(document, detail), plain_width(sys.stdout)
    if width is not None:
        print_text(laid_out(shown, width).removesuffix("\n"))
        return
    from foretrain.report import terminal

    terminal.show(shown, terminal.console())


def print_text(text: str) -> None:
    """One text on stdout."""
    from foretrain.cli.streams import write_answer

    write_answer(text + "\n")


def note(text: str) -> None:
    """A line for the person, beside the answer."""
    tell(text)


def _note_files(output: Output) -> None:
    if not output.quiet:
        for path in output.files or ():
            note(f"wrote {path}")
