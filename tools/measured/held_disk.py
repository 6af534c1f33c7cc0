"""A disk held to a number of reads a second by a control group, as clouds hold theirs.

A disk that others share gives twice as many reads in one minute as in the next, so that nothing measured of it can be
compared with anything. The limit is the kernel's (blk-throttle): what a process reads is still a real file on a real disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
DEVICES = Path("/sys/dev/block")


@dataclass(frozen=True)
class Held:
    """Whether the disk is held, and how; or why it is not."""

    is_held: bool
    told: str


@contextlib.contextmanager
def held(folder: Path, reads_per_second: int) -> Iterator[Held]:
    """This process and all it starts read no faster; without the right to say so, the disk is as it is."""
    home = group = None
    try:
        home = _home()
        group = home / f"foretrain-{os.getpid()}"
        group.mkdir()
        _limit(group, disk_of(folder), reads_per_second)
        _join(group)
    except OSError as error:
        _leave(home, group)
        yield Held(False, f"not held: {error.filename or 'control group'}: {error.strerror}")
        return
    try:
        yield Held(True, f"held to {reads_per_second:,} reads a second by a control group")
    finally:
        _leave(home, group)


def disk_of(folder: Path) -> str:
    """`major:minor` of the whole disk that holds a folder; limits are not for partitions."""
    number = folder.stat().st_dev
    place = (DEVICES / f"{os.major(number)}:{os.minor(number)}").resolve()
    if not place.is_dir():
        raise OSError(0, "its file system is not on one disk", str(folder))
    whole = place.parent if (place / "partition").exists() else place
    return (whole / "dev").read_text("ascii").strip()


def _home() -> Path:
    """Where groups that limit reading are made: the first version of control groups, else the second."""
    first = GROUPS / "blkio"
    if first.is_dir():
        return first
    tree = GROUPS / "cgroup.subtree_control"
    if tree.is_file():
        tree.write_text("+io", "ascii")
        return GROUPS
    raise OSError(0, "no control groups that limit reading", str(GROUPS))


def _limit(group: Path, disk: str, reads_per_second: int) -> None:
    if (group / "io.max").exists():
        (group / "io.max").write_text(f"{disk} riops={reads_per_second}", "ascii")
    else:
        (group / "blkio.throttle.read_iops_device").write_text(
            f"{disk} {reads_per_second}", "ascii"
        )


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()), "ascii")


def _leave(home: Path | None, group: Path | None) -> None:
    if home is None or group is None:
        return
    with contextlib.suppress(OSError):
        _join(home)
    with contextlib.suppress(OSError):
        group.rmdir()
