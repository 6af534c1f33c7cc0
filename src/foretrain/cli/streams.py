"""Standard output for the answer alone: what libraries and child processes print goes to stderr."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator

_WRITERS: list[Callable[[bytes], object]] = []
"""Where the answer goes while all else is kept from it; empty: to stdout like anything."""
_FILES: list[int] = []
"""The same as a file that a process can be given."""


@contextlib.contextmanager
def answer_alone() -> Iterator[None]:
    """Within, `write_answer` alone reaches stdout; its file descriptor too, for libraries that are not Python."""
    shown = sys.stdout
    shown.flush()
    try:
        number = shown.fileno()
    except (OSError, ValueError):  # not a file: a test's or a notebook's
        number = -1
    kept = -1
    if number == 1:
        kept = os.dup(1)
        os.dup2(2, 1)
        _FILES.append(kept)
    _WRITERS.append(_to_file(kept) if kept >= 0 else lambda raw: shown.write(raw.decode("utf-8")))
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = shown
        _WRITERS.pop()
        if kept >= 0:
            _FILES.pop()
            os.dup2(kept, 1)
            os.close(kept)


def answer_file() -> int | None:
    """For a process that gives the answer in our place; None: what it has anyway."""
    return _FILES[-1] if _FILES else None


def _to_file(number: int) -> Callable[[bytes], object]:
    def write(raw: bytes) -> None:
        left = memoryview(raw)
        while left:
            left = left[os.write(number, left) :]

    return write


def write_answer(text: str) -> None:
    """Text on stdout, now."""
    if _WRITERS:
        _WRITERS[-1](text.encode("utf-8", "replace"))
    else:
        sys.stdout.write(text)
        sys.stdout.flush()
