"""Bytes of a file from strangers, plain or gzip, in chunks of bounded size.

Nothing is trusted: only regular files are opened, what a gzip file unpacks to is bounded in size and in ratio while it
is unpacked, and a file that ends or breaks in the middle gives what was whole before that.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from foretrain.errors import FileError
from foretrain.loading import near_files
from foretrain.units import show_bytes

CHUNK = 1 << 22
SLICE = 1 << 16
MAX_BYTES = 8 << 30
MAX_RATIO = 150
"""Real traces pack 10 to 30 to 1, a bomb up to 1,000 to 1."""
FREE_BYTES = 1 << 26
"""So much may be unpacked at any ratio."""
_GZIP = b"\x1f\x8b"


class FileChunks:
    """The chunks of a file; afterwards `trouble` says why reading ended early, if it did."""

    def __init__(
        self, path: str | Path, what: str, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.path = Path(path)
        self.what = what
        self.trouble: str | None = None
        self._progress = progress
        self._size = 0
        self._read = 0

    def __iter__(self) -> Iterator[bytes]:
        with self._opened() as stream:
            first = self._next(stream)
            chunks = self._unpacked if first.startswith(_GZIP) else self._plain
            given = 0
            for chunk in chunks(first, stream):
                given += len(chunk)
                if given > MAX_BYTES:
                    raise FileError(
                        f"{self.path} is larger than {show_bytes(MAX_BYTES)}, too large for "
                        f"{self.what}. Record fewer steps."
                    )
                yield chunk

    def _opened(self) -> IO[bytes]:
        path = self.path
        try:
            if path.is_dir():
                raise FileError(f"{path} is a directory; expected a file with {self.what}.")
            if path.exists() and not path.is_file():
                raise FileError(f"{path} is not a regular file; expected {self.what}.")
            stream = path.open("rb")
            self._size = path.stat().st_size
            return stream
        except FileNotFoundError:
            raise FileError(
                f"{path} does not exist; expected {self.what}.{near_files(path)}"
            ) from None
        except (OSError, ValueError) as error:
            raise self._unreadable(error) from None

    def _next(self, stream: IO[bytes]) -> bytes:
        try:
            chunk = stream.read(CHUNK)
        except OSError as error:
            raise self._unreadable(error) from None
        self._read += len(chunk)
        if self._progress is not None:
            self._progress(self._read, self._size)
        return chunk

    def _unreadable(self, error: OSError | ValueError) -> FileError:
        reason = getattr(error, "strerror", None) or str(error)
        return FileError(f"{str(self.path)[:200]} cannot be read ({reason}); expected {self.what}.")

    def _plain(self, first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
        chunk = first
        while chunk:
            yield chunk
            chunk = self._next(stream)

    def _unpacked(self, first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
        given = 0
        unpack = zlib.decompressobj(31)
        for packed in _slices(self._plain(first, stream)):
            while packed:
                if unpack.eof:  # one more member, or padding
                    if not packed.startswith(_GZIP[: len(packed)]):
                        return
                    unpack = zlib.decompressobj(31)
                before = unpack.copy()
                try:
                    chunk = unpack.decompress(packed, CHUNK)
                except zlib.error as error:
                    self.trouble = f"the gzip file is damaged ({error})"
                    yield _until_error(before, packed)
                    return
                packed = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
                given += len(chunk)
                self._expect_no_bomb(given)
                if chunk:
                    yield chunk
        if not unpack.eof:
            self.trouble = "the gzip file is truncated"

    def _expect_no_bomb(self, given: int) -> None:
        if given > FREE_BYTES and given > MAX_RATIO * self._read:
            raise FileError(
                f"{self.path} decompresses to more than {MAX_RATIO} times its size and was "
                "rejected. If this is intended, decompress it first."
            )


def _slices(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Small enough that what one of them unpacks to may be unpacked again, byte by byte."""
    for chunk in chunks:
        for at in range(0, len(chunk), SLICE):
            yield chunk[at : at + SLICE]


def _until_error(unpack: Any, packed: bytes) -> bytes:
    """What comes out before the damage."""
    chunks = []
    with contextlib.suppress(zlib.error):
        for at in range(len(packed)):
            chunks.append(unpack.decompress(packed[at : at + 1]))
    return b"".join(chunks)
