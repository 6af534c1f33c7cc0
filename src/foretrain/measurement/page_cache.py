"""The kernel's page cache, file by file: dropped without root, filled by reading."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from foretrain.errors import FileError

CHUNK = 1 << 20
USED_OF_MEMORY = 0.7
"""Of the memory that is free: beyond it, reading one file would push another out."""


def data_files(places: Iterable[str | Path]) -> tuple[Path, ...]:
    """Every regular file that the places name or hold, sorted; a place that is not there is a `FileError`."""
    files: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            files += [path for path in place.rglob("*") if path.is_file()]
        elif place.is_file():
            files.append(place)
        else:
            raise FileError(f"{place}: no such training data file or directory.")
    return tuple(sorted(set(files)))


def can_drop() -> bool:
    """Whether this system takes advice per file."""
    return hasattr(os, "posix_fadvise")


def drop(files: Sequence[Path]) -> None:
    """Ask the kernel to forget these files. Dirty pages stay, so they are written out first."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def fill(files: Sequence[Path]) -> bool:
    """Read these files; False when there is not enough memory to hold all of them, so that some stay cold."""
    room = USED_OF_MEMORY * available_bytes()
    for path in files:
        room -= path.stat().st_size
        if room < 0:
            return False
        with path.open("rb", buffering=0) as stream:
            while stream.read(CHUNK):
                pass
    return True


def total_bytes(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)


def available_bytes() -> float:
    """Memory that can be had without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            rows = dict(line.split(":", 1) for line in stream)
        return float(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) / 2
