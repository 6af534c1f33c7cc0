"""Writing reports: a file is there whole or it is not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from foretrain.errors import FileError


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[IO[bytes]]:
    """A stream whose content appears under `path` only when the block ends without an error."""
    target = Path(path)
    try:
        if target.is_dir():
            raise FileError(f"{target} is a directory; specify a file in it.")
        if target.exists() and not target.is_file():
            special, name = target.open("wb"), ""  # a pipe or a device cannot be renamed onto
        else:
            target = target.resolve()  # a link stays a link: what it points to is replaced
            handle, name = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
            special = os.fdopen(handle, "wb")
    except (OSError, ValueError) as error:
        raise _cannot_write(target, error) from None
    try:
        with special as stream:
            yield stream
        if name:
            os.chmod(name, _mode(target))
            os.replace(name, target)
    except BaseException as error:
        if name:
            with contextlib.suppress(OSError):
                os.unlink(name)
        if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
            raise _cannot_write(target, error) from None
        raise


def write_whole(path: str | Path, content: str | bytes) -> None:
    """`content` as the file `path`, in one step."""
    raw = content.encode("utf-8") if isinstance(content, str) else content
    with whole_file(path) as stream:
        stream.write(raw)


def _mode(target: Path) -> int:
    """As the file was; else what a plain `open` would have given (temporary files are private)."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _cannot_write(target: Path, error: OSError | ValueError) -> FileError:
    reason = getattr(error, "strerror", None) or str(error)
    return FileError(f"cannot write {target} ({reason}).")
