"""The elements of one long JSON array, block by block, however long the array is.

A block is whole elements with commas between them, cut where a scan at array speed found a comma of the array itself:
outside strings and at the array's own depth. Strings, depth and the length of an element are bounded before any
parser sees them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Bools, Ints
from foretrain.errors import FileError
from foretrain.units import show_bytes

MAX_DEPTH = 64
MAX_ELEMENT = 1 << 24
MAX_FRAME = 1 << 24
"""What may stand before the array, and what is kept of what stands after it."""

_OPEN, _CLOSE, _COMMA, _QUOTE, _BACKSLASH = 1, 2, 3, 4, 5
_CLASS = np.zeros(256, dtype=np.uint8)
for _letters, _number in (("{[", 1), ("}]", 2), (",", 3), ('"', 4), ("\\", 5)):
    for _letter in _letters:
        _CLASS[ord(_letter)] = _number
_STEP = np.array([0, 1, -1, 0, 0, 0], dtype=np.int32)


@dataclass(frozen=True, slots=True)
class ReaderState:
    """Where a scan stands between two chunks."""

    depth: int = 0
    is_string: bool = False
    is_escaped: bool = False  # an odd number of backslashes came last


@dataclass(frozen=True, slots=True)
class Marks:
    """Brackets and commas outside strings: where, what, and the depth behind each."""

    at: Ints
    kind: NDArray[np.uint8]
    depth: Ints
    strings: Ints  # where strings begin
    after: ReaderState


def scan(raw: bytes, state: ReaderState) -> Marks:
    """Everything that gives JSON its structure, in one pass over a chunk."""
    letters = np.frombuffer(raw, dtype=np.uint8)
    classes = _CLASS[letters]
    at = np.flatnonzero(classes)
    kind = classes[at]
    is_quote = kind == _QUOTE
    is_escaped = state.is_escaped and not len(raw)
    if state.is_escaped or bool((kind == _BACKSLASH).any()):
        odd, is_escaped = _odd_runs(letters, state.is_escaped)
        is_quote[is_quote] = ~odd[at[is_quote]]
    inside = (np.add.accumulate(is_quote, dtype=np.uint8) & 1).astype(np.bool_)
    if state.is_string:
        inside = ~inside
    is_string = bool(inside[-1]) if len(inside) else state.is_string
    strings = at[is_quote & inside]
    keep = ~inside & (kind <= _COMMA)
    at, kind = at[keep], kind[keep]
    depth = np.cumsum(_STEP[kind], dtype=np.int64) + state.depth
    last = int(depth[-1]) if len(depth) else state.depth
    return Marks(at, kind, depth, strings, ReaderState(last, is_string, is_escaped))


def _odd_runs(letters: NDArray[np.uint8], carry: bool) -> tuple[Bools, bool]:
    """Whether an odd number of backslashes stands right before each letter, and behind the last."""
    where = np.arange(len(letters), dtype=np.int64)
    other = np.maximum.accumulate(np.where(letters == ord("\\"), -1, where))
    before = np.concatenate([[-1], other])  # the last letter that is no backslash, before each
    run = np.arange(len(letters) + 1) - 1 - before
    odd = ((run + (carry & (before < 0))) & 1).astype(np.bool_)
    return odd[:-1], bool(odd[-1])


def cut(block: bytes) -> list[bytes]:
    """The elements of a block, one by one."""
    marks = scan(block, ReaderState())
    commas = marks.at[(marks.kind == _COMMA) & (marks.depth == 0)]
    edges = [-1, *commas.tolist(), len(block)]
    return [block[a + 1 : b] for a, b in pairwise(edges)]


class Elements:
    """Blocks of elements of the array under `key`, or of a document that is an array.

    Afterwards `frame` holds what stood around the array, as objects, and `is_cut` says that the array did not end.
    """

    def __init__(self, chunks: Iterable[bytes], key: str, where: str) -> None:
        self._chunks = iter(chunks)
        self._key = key
        self._where = where
        self.frame: tuple[bytes, ...] = ()
        self.is_cut = False
        self.is_bare = False
        self.warnings: list[str] = []

    def __iter__(self) -> Iterator[bytes]:
        chunk, level = self._opening()
        pending: list[bytes] = []
        state, kept = ReaderState(depth=level), 0
        while True:
            marks = scan(chunk, state)
            self._expect_shallow(marks)
            closes = np.flatnonzero(marks.depth < level)
            end = int(marks.at[closes[0]]) if len(closes) else len(chunk)
            commas = marks.at[(marks.kind == _COMMA) & (marks.depth == level) & (marks.at < end)]
            if len(closes):
                yield b"".join([*pending, chunk[:end]])
                self._closing(chunk[end + 1 :])
                return
            if len(commas):
                last = int(commas[-1])
                yield b"".join([*pending, chunk[:last]])
                pending, kept = [chunk[last + 1 :]], len(chunk) - last - 1
            else:
                pending.append(chunk)
                kept += len(chunk)
            if kept > MAX_ELEMENT:
                raise FileError(
                    f"{self._where}: one of its events is longer than "
                    f"{show_bytes(MAX_ELEMENT)}; this is not a trace."
                )
            state, chunk = marks.after, next(self._chunks, b"")
            if not chunk:
                self.is_cut = True
                yield b"".join(pending)
                return

    def _opening(self) -> tuple[bytes, int]:
        """What follows the bracket that opens the array, and the depth inside it."""
        text = next(self._chunks, b"").removeprefix(b"\xef\xbb\xbf").lstrip()
        if not text:
            raise FileError(f"{self._where} is empty; expected a profiler trace.")
        if text.startswith(b"["):
            self.is_bare = True
            return text[1:], 1
        if not text.startswith(b"{"):
            raise FileError(f"{self._where} is not JSON; expected a profiler trace.")
        pattern = re.compile(rb'"' + re.escape(self._key.encode()) + rb'"\s*:\s*\[')
        while True:
            span = self._span(pattern, text)
            if span is not None:
                self.frame = (text[: span[0]].rstrip().removesuffix(b",") + b"}",)
                return text[span[1] :], 2
            more = next(self._chunks, b"")
            if not more or len(text) > MAX_FRAME:
                raise FileError(
                    f"{self._where} has no list {self._key!r}; expected a trace as torch.profiler"
                    " exports it (export_chrome_trace)."
                )
            text += more

    def _span(self, pattern: re.Pattern[bytes], text: bytes) -> tuple[int, int] | None:
        """(start, end) of the key at the top of the document, not in a string or deeper."""
        marks = scan(text, ReaderState())
        self._expect_shallow(marks)
        for match in pattern.finditer(text):
            before = int(np.searchsorted(marks.at, match.start()))
            string = int(np.searchsorted(marks.strings, match.start()))
            is_key = string < len(marks.strings) and int(marks.strings[string]) == match.start()
            if is_key and before and int(marks.depth[before - 1]) == 1:
                return match.start(), match.end()
        return None

    def _expect_shallow(self, marks: Marks) -> None:
        if len(marks.depth) and int(marks.depth.max()) > MAX_DEPTH:
            raise FileError(
                f"{self._where} is nested deeper than {MAX_DEPTH} levels; this is not a trace."
            )

    def _closing(self, text: bytes) -> None:
        """Keep what follows the array, if it is no more than a frame."""
        while len(text) <= MAX_FRAME:
            more = next(self._chunks, b"")
            if not more:
                break
            text += more
        if self.is_bare:
            return
        if len(text) > MAX_FRAME:
            self.warnings.append(f"content after its {self._key} is too long and was not read")
            return
        if b'"' + self._key.encode() + b'"' in text:
            self.warnings.append(f"it has {self._key} more than once; the first was read")
        self._expect_shallow(scan(text, ReaderState(depth=1)))
        rest = text.strip().removeprefix(b",").strip()
        if rest not in (b"", b"}"):
            self.frame = (*self.frame, b"{" + rest)
