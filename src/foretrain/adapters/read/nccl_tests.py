"""Results of nccl-tests (and rccl-tests), as text or as the JSON of its -J option, plain or gzip.

Every row of a table is two measurements, out of place and in place. The columns are taken from the table's own
heading, which has changed over the years; which collective was run and on how many devices of how many hosts is read
from what surrounds the table.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretrain.adapters.read.stream import FileChunks
from foretrain.errors import FileError, InputError, refuse
from foretrain.loading import load_json

MAX_BYTES = 64_000_000
MAX_LINE = 10_000
MAX_RANKS = 10_000_000
# The programs' names (without _perf) in our words.
COLLECTIVES = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "broadcast": "broadcast", "reduce": "reduce", "sendrecv": "send",
    "gather": "gather", "scatter": "scatter", "hypercube": "hypercube",
}  # fmt: skip
_PROGRAM = re.compile(
    r"\b(" + "|".join(sorted(COLLECTIVES, key=len, reverse=True)) + r")_perf(?:_mpi)?\b"
)
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,7})\s.{0,400}?\bon\s+(\S{1,300})\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)"
)
_SHARED = ("size", "count", "type", "redop", "root")
_TIMES = ("time", "cputime")


@dataclass(frozen=True, slots=True)
class LinkRow:
    """One collective of one size, timed."""

    collective: str
    bytes: float  # as nccl-tests counts them: the whole buffer of a rank
    ranks: int
    nodes: int
    dtype: str
    in_place: bool
    seconds: float
    bus_bandwidth: float  # bytes per second
    is_right: bool | None  # None: the results were not checked

    def to_dict(self) -> dict[str, Any]:
        return {
            "collective": self.collective,
            "bytes": self.bytes,
            "ranks": self.ranks,
            "nodes": self.nodes,
            "dtype": self.dtype,
            "in_place": self.in_place,
            "seconds": self.seconds,
            "bus_bytes_per_second": self.bus_bandwidth,
            "is_right": self.is_right,
        }


@dataclass(frozen=True, slots=True)
class LinkTable:
    """What one file holds."""

    path: str
    device: str
    rows: tuple[LinkRow, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Setting:
    """What surrounds a table."""

    collective: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    device: str = ""


def read_nccl_tests(
    path: str | Path,
    *,
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
) -> LinkTable:
    """`collective`, `ranks` and `nodes` are for outputs that do not tell them, and go before what they tell."""
    given = _Setting(_known(collective), _positive("ranks", ranks), _positive("nodes", nodes))
    text = _text(path)
    read = _from_json if text.lstrip()[:1] == "{" else _from_text
    rows, setting, skipped = read(text, str(path), given)
    if not rows:
        raise FileError(
            f"{path} contains no nccl-tests results. Expected its text output, or the file "
            "written by its -J option."
        )
    warnings = [f"{skipped:,} result lines cannot be parsed and were skipped"] if skipped else []
    wrong = sum(row.is_right is False for row in rows)
    if wrong:
        warnings.append(f"{wrong:,} results were reported as wrong by nccl-tests")
    return LinkTable(str(path), setting.device, tuple(rows), tuple(warnings))


def _text(path: str | Path) -> str:
    held, size = [], 0
    for chunk in FileChunks(path, "nccl-tests results"):
        held.append(chunk)
        size += len(chunk)
        if size > MAX_BYTES:
            raise FileError(
                f"{path} is larger than {MAX_BYTES:,} bytes, too large for nccl-tests output."
            )
    return b"".join(held).decode("utf-8", "replace").removeprefix("\ufeff")


def _known(collective: str | None) -> str | None:
    if collective is None:
        return None
    name = collective.strip().removesuffix("_perf")
    if name in COLLECTIVES:
        return COLLECTIVES[name]
    if name in COLLECTIVES.values():
        return name
    raise InputError(f"collective {collective!r} is unknown. Known: {', '.join(COLLECTIVES)}.")


def _positive(name: str, value: int | None) -> int | None:
    if value is not None and not 1 <= value <= MAX_RANKS:
        raise InputError(f"{name}: {value} must be 1 or more.")
    return value


# --- text -------------------------------------------------------------------------------------------


def _from_text(text: str, path: str, given: _Setting) -> tuple[list[LinkRow], _Setting, int]:
    """Tables in order; each takes the collective and devices named last before it."""
    rows: list[LinkRow] = []
    setting, devices, columns = _Setting(_program(Path(path).name)), {}, None
    skipped = 0
    for line in text.splitlines():
        line = line[:MAX_LINE]
        name = _program(line)
        if name is not None:
            setting = replace(setting, collective=name)
        rank = _RANK.search(line)
        if rank is not None:
            if columns is not None:  # another run in the same file
                devices, columns = {}, None
            devices[int(rank[1])] = rank[2]
            setting = replace(
                setting,
                ranks=len(devices),
                nodes=len(set(devices.values())),
                device=rank[3].strip()[:100],
            )
        words = line.lstrip("# \t").split()
        if words[:3] == ["size", "count", "type"]:
            columns = words
            continue
        if columns is None or line.lstrip().startswith("#") or not words or not words[0].isdigit():
            continue
        parsed = _line(words, columns, _complete(setting, given, path))
        rows += parsed
        skipped += not parsed
    return rows, setting, skipped


def _program(text: str) -> str | None:
    match = _PROGRAM.search(text)
    return None if match is None else COLLECTIVES[match[1]]


def _complete(setting: _Setting, given: _Setting, path: str) -> _Setting:
    """What is told goes before what was found; the rest must be there."""
    collective = given.collective or setting.collective
    ranks = given.ranks or setting.ranks
    faults = []
    if collective is None:
        faults.append("the collective: specify --collective, such as all_reduce.")
    if ranks is None:
        faults.append("the number of ranks: specify --ranks.")
    refuse(f"{path} does not state", faults, FileError)
    return _Setting(collective, ranks, given.nodes or setting.nodes or 1, setting.device)


def _line(words: Sequence[str], columns: Sequence[str], setting: _Setting) -> list[LinkRow]:
    """Size, count and type stand at the left; the timed columns are counted from the right, since redop and root
    may be blank."""
    timed = [name for name in columns if name not in _SHARED and name != "timestamp"]
    has_stamp = "timestamp" in columns
    values = words[:-2] if has_stamp and len(words) > 2 else words
    if len(values) < 3 + len(timed):
        return []
    figures = values[len(values) - len(timed) :]
    begins = [i for i, name in enumerate(timed) if name in _TIMES]
    rows = []
    for number, begin in enumerate(begins[:2]):
        end = begins[number + 1] if number + 1 < len(begins) else len(timed)
        named = dict(zip(timed[begin:end], figures[begin:end], strict=True))
        time = named.get("time", named.get("cputime"))
        wrong = named.get("#wrong", named.get("error"))
        row = _row(
            setting, words[0], words[2], number == 1, time, named.get("busbw"), _right(wrong)
        )
        rows += [row] if row is not None else []
    return rows


def _right(text: Any) -> bool | None:
    """Counted wrong elements, or in old versions the greatest relative error."""
    value = _number(text)
    return None if value is None else value < 1e-2


def _row(
    setting: _Setting,
    size: Any,
    dtype: Any,
    in_place: bool,
    microseconds: Any,
    bus: Any,
    is_right: bool | None,
) -> LinkRow | None:
    seconds, moved, rate = _number(microseconds), _number(size), _number(bus)
    if seconds is None or moved is None or seconds <= 0 or moved < 0:
        return None
    assert setting.collective is not None
    assert setting.ranks is not None
    return LinkRow(
        collective=setting.collective,
        bytes=moved,
        ranks=setting.ranks,
        nodes=setting.nodes or 1,
        dtype=str(dtype)[:40],
        in_place=in_place,
        seconds=seconds * 1e-6,
        bus_bandwidth=max(0.0, rate or 0.0) * 1e9,
        is_right=is_right,
    )


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


# --- JSON -------------------------------------------------------------------------------------------


def _from_json(text: str, path: str, given: _Setting) -> tuple[list[LinkRow], _Setting, int]:
    document = load_json(text if "\n" in text else text + "\n", "nccl-tests results")
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or not results:
        return [], given, 0
    surroundings = _surroundings(document, path)
    setting = _complete(surroundings, given, path)
    rows, skipped = [], 0
    for result in results:
        parsed = _result(result, setting) if isinstance(result, dict) else []
        rows += parsed
        skipped += not parsed
    return rows, surroundings, skipped


def _result(result: dict[str, Any], setting: _Setting) -> list[LinkRow]:
    rows = []
    for key, in_place in (("out_of_place", False), ("in_place", True)):
        part = result.get(key)
        if not isinstance(part, dict):
            continue
        wrong = _number(part.get("nwrong"))
        row = _row(
            setting,
            result.get("size"),
            result.get("type"),
            in_place,
            part.get("time", part.get("cpu_time")),
            part.get("bus_bw"),
            None if wrong is None else wrong == 0,
        )
        rows += [row] if row is not None else []
    return rows


def _surroundings(document: dict[str, Any], path: str) -> _Setting:
    arguments = document.get("args")
    first = str(arguments[0]) if isinstance(arguments, list) and arguments else ""
    config = document.get("config")
    config = config if isinstance(config, dict) else {}
    listed = config.get("devices")
    devices = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    # a process is listed once, however many devices it drives
    each = max(
        1, int(_number(config.get("nthreads")) or 1) * int(_number(config.get("ngpus")) or 1)
    )
    ranks = len(devices) * each
    return _Setting(
        collective=_program(first) or _program(Path(path).name),
        ranks=ranks if 1 <= ranks <= MAX_RANKS else None,
        nodes=len({str(row.get("hostname")) for row in devices}) or None,
        device=str(devices[0].get("device_info", ""))[:100] if devices else "",
    )
