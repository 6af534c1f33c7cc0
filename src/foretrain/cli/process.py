"""The process and its surroundings: what is said on stderr, how it ends. Loaded first, so it loads next to nothing."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

COMPLETE = "_FORETRAIN_COMPLETE"
"""Set by the shell when it asks what could stand where the cursor is."""


def hang_up() -> int:
    """The reader of our output is gone: end quietly, as a signal would have ended us."""
    drop(sys.stdout)
    return 141


def drop(stream: IO[str]) -> None:
    """What is yet to be written leads nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def interrupted() -> int:
    say("interrupted.")
    return 130


def say(message: str) -> None:
    tell(f"foretrain: {message}")


def tell(text: str, end: str = "\n") -> None:
    """A line on stderr; that nobody can read it does not stop an answer."""
    try:
        sys.stderr.write(text + end)
        sys.stderr.flush()
    except (OSError, ValueError):
        drop(sys.stderr)
