"""Reading case files line by line: a bad line is answered, never fatal, and never too large to hold."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from foretrain.errors import FileError, ForetrainError, InputError

MAX_LINE = 1_000_000
WHAT = "a file of cases, one JSON object per line"

Answer = Callable[[Iterable[dict[str, Any]]], Iterator[dict[str, Any]]]


def open_cases(path: str) -> IO[bytes]:
    """The file, or standard input for `-`."""
    if path == "-":
        return sys.stdin.buffer
    file = Path(path)
    try:
        if file.is_dir():
            raise FileError(f"{file} is a directory; expected {WHAT}.")
        if file.exists() and not file.is_file():
            raise FileError(
                f"{file} is a pipe, a device or a socket; expected {WHAT}. '-' reads standard input."
            )
        return file.open("rb")
    except FileNotFoundError:
        raise FileError(f"{file} does not exist; expected {WHAT}.") from None
    except (OSError, ValueError) as error:
        raise FileError(
            f"{file} cannot be read ({getattr(error, 'strerror', None) or error})."
        ) from None


def count_lines(path: str) -> int | None:
    """How many cases there will be, for the time left; None where reading twice is not possible."""
    if path == "-" or not Path(path).is_file():
        return None
    with open_cases(path) as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(1 << 20), b"")) or None


def answered(stream: IO[bytes], answer: Answer) -> Iterator[dict[str, Any]]:
    """One document per line, in order; lines that are no case get an error document in their place."""
    waiting: deque[dict[str, Any] | None] = deque()  # None stands for a case that `answer` took

    def cases() -> Iterator[dict[str, Any]]:
        for number, line in enumerate(_lines(stream), 1):
            case, fault = _parsed(line, number)
            if fault is not None:
                waiting.append(fault)
            elif case is not None:
                waiting.append(None)
                yield case

    for document in answer(cases()):
        while waiting and (fault := waiting[0]) is not None:
            yield fault
            waiting.popleft()
        if waiting:
            waiting.popleft()
        yield document
    yield from (fault for fault in waiting if fault is not None)


def _lines(stream: IO[bytes]) -> Iterator[bytes | None]:
    """Lines; None for one longer than allowed, whose rest is skipped."""
    while line := stream.readline(MAX_LINE + 1):
        if len(line) <= MAX_LINE or line.endswith(b"\n"):
            yield line
            continue
        while (rest := stream.readline(MAX_LINE)) and not rest.endswith(b"\n"):
            pass
        yield None


def _parsed(line: bytes | None, number: int) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """(case, None), (None, error document) or, for an empty line, (None, None)."""
    if line is None:
        return None, _fault(number, f"line {number} is longer than {MAX_LINE:,} bytes.")
    if not line.strip():
        return None, None
    from foretrain.loading import load_json

    try:
        text = line.decode("utf-8-sig").strip()
        if not text.startswith("{"):
            raise InputError("not a JSON object.")
        return load_json(text, "a case, one JSON object per line"), None
    except (ForetrainError, UnicodeDecodeError) as error:
        message = str(error).removeprefix("the given text ")
        return None, _fault(number, f"line {number}: {message}")


def _fault(number: int, message: str) -> dict[str, Any]:
    return {"id": f"line-{number}", "error": {"kind": "CaseError", "message": message}}
