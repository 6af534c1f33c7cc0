"""PyTorch profiler (Kineto) traces: Chrome trace JSON, plain or gzip, of one rank each.

Read as a stream: events are decoded block by block and kept as columns, some 50 bytes each, so that memory follows
the number of events that matter and not the size of the file. What was whole before a file ends or breaks is used.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrain.adapters.read.collective_calls import Call, CallArgs, call_of
from foretrain.adapters.read.elements import Elements, cut
from foretrain.adapters.read.stream import FileChunks
from foretrain.arrays import Bools, Floats, Ints, Ints32
from foretrain.errors import FileError

OP, RUNTIME, KERNEL, COPY, MARK = range(5)
"""A PyTorch operator; a call of the device's driver; device work; a copy by the device; a mark of the user or torch."""
# Categories of events as written since torch 1.13, and before.
KINDS = {
    "cpu_op": OP, "Operator": OP, "cuda_runtime": RUNTIME, "cuda_driver": RUNTIME, "Runtime": RUNTIME,
    "hip_runtime": RUNTIME, "hip_driver": RUNTIME, "xpu_runtime": RUNTIME, "privateuse1_runtime": RUNTIME,
    "kernel": KERNEL, "Kernel": KERNEL, "gpu_memset": KERNEL, "Memset": KERNEL, "gpu_memcpy": COPY,
    "Memcpy": COPY, "user_annotation": MARK,
}  # fmt: skip
MAX_EVENTS = 12_000_000
MAX_NAMES = 200_000
MAX_ROOM = 1 << 26
"""Characters of all names, and of all shapes: what comes after them is not told apart any more."""
OTHER = "(others)"
MAX_NAME = 300
MAX_SHAPES = 4_000
LONGEST = 1e12
"""Microseconds of one event (eleven days); what is longer was written by a broken clock."""
LATEST = 4e15
"""Microseconds since 1970 (the year 2096)."""


class _Args(CallArgs, rename={"external": "External id", "dims": "Input Dims", "types": "Input type"}):  # fmt: skip
    external: Any = None
    correlation: Any = None
    dims: msgspec.Raw = msgspec.Raw(b"")
    types: msgspec.Raw = msgspec.Raw(b"")


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = -1.0
    dur: float = -1.0
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    args: _Args | None = None


class _Frame(msgspec.Struct):
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    host: Any = msgspec.field(default=None, name="host_name")
    base: Any = msgspec.field(default=None, name="baseTimeNanoseconds")


@dataclass(frozen=True, eq=False, slots=True)
class Trace:
    """Events of one rank in columns, by start; seconds from the first of them."""

    path: str
    start: Floats
    seconds: Floats
    kind: NDArray[np.uint8]
    name: Ints32  # into names
    lane: Ints32  # into lanes
    correlation: Ints  # of a driver call and the device work it issued; -1: none
    external: Ints  # of an operator and what it issued; -1: none
    shape: Ints32  # into shapes; -1: not recorded
    call: Ints32  # into calls: what a collective was called with; -1: not told
    names: tuple[str, ...]
    lanes: tuple[tuple[str, str], ...]  # process and thread, or device and stream
    shapes: tuple[tuple[str, str], ...]  # dims and types, as JSON
    calls: tuple[Call, ...]
    rank: int | None
    world: int | None
    devices: tuple[str, ...]  # on this host, by name
    host: str
    began: float | None  # seconds since 1970
    warnings: tuple[str, ...]

    @property
    def end(self) -> Floats:
        return self.start + self.seconds

    def named(self, wanted: Callable[[str], bool]) -> Bools:
        """Which events have a name that is wanted."""
        hits = np.fromiter((wanted(name) for name in self.names), dtype=np.bool_)
        return hits[self.name] if len(hits) else np.zeros(len(self.name), dtype=np.bool_)


def read_trace(path: str | Path, progress: Callable[[int, int], None] | None = None) -> Trace:
    """A trace as `torch.profiler` exports it; `FileError` when the file holds none."""
    chunks = FileChunks(path, "a profiler trace", progress)
    elements = Elements(chunks, "traceEvents", str(path))
    columns = _Columns(str(path))
    for block in elements:
        columns.add(block)
    columns.warnings += elements.warnings
    if elements.is_cut and not (elements.is_bare and not columns.last_was_broken):
        why = chunks.trouble or "the file is truncated within its events"
        columns.warnings.append(f"{why}; the events before that are used")
        columns.broken -= columns.last_was_broken
    elif chunks.trouble is not None:
        columns.warnings.append(f"{chunks.trouble}, behind its events")
    return columns.trace(_framed(elements.frame))


class _Columns:
    """Events on the way in."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.warnings: list[str] = []
        self.broken = 0
        self.absurd = 0
        self.last_was_broken = False
        self._decode = msgspec.json.Decoder(list[_Event]).decode
        self._decode_one = msgspec.json.Decoder(_Event).decode
        self._doubles = (array("d"), array("d"))
        self._small = tuple(array("i") for _ in range(5))  # kind, name, lane, shape, call
        self._ids = (array("q"), array("q"))
        self._names = _Interned(MAX_NAMES, OTHER)
        self._lanes = _Interned(MAX_NAMES, (OTHER, OTHER))
        self._shapes = _Interned(MAX_NAMES)
        self._calls = _Interned(MAX_NAMES)

    def add(self, block: bytes) -> None:
        """The events of a block; those that are none are counted and left out."""
        self.last_was_broken = False
        if not block.strip():
            return
        try:
            self._keep(self._decode(b"[" + block + b"]"))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self._keep(self._one_by_one(block))

    def _one_by_one(self, block: bytes) -> list[_Event]:
        events = []
        for element in cut(block):
            self.last_was_broken = False
            try:
                events.append(self._decode_one(element))
            except (msgspec.MsgspecError, ValueError, RecursionError):
                self.broken += 1
                self.last_was_broken = True
        return events

    def _keep(self, events: list[_Event]) -> None:
        starts, lengths = self._doubles
        kinds, names, lanes, shapes, calls = self._small
        correlations, externals = self._ids
        intern, lane_of = self._names.number, self._lanes.number
        nothing = _Args()
        for event in events:
            kind = KINDS.get(event.cat)
            if kind is None or event.ph != "X":
                continue
            if not (0.0 <= event.ts <= LATEST and 0.0 <= event.dur <= LONGEST):
                self.absurd += 1
                continue
            args = event.args or nothing
            starts.append(event.ts)
            lengths.append(event.dur)
            kinds.append(kind)
            names.append(intern(event.name[:MAX_NAME]))
            lanes.append(lane_of((event.pid, event.tid)))
            correlations.append(_whole(args.correlation))
            externals.append(_whole(args.external))
            shapes.append(self._shape(args) if kind in (OP, MARK) else -1)
            calls.append(-1 if args.collective is None else self._call(args))
        if len(starts) > MAX_EVENTS:
            raise FileError(
                f"{self.path} contains more than {MAX_EVENTS:,} events. Record fewer steps, or "
                "without with_stack."
            )

    def _shape(self, args: _Args) -> int:
        dims, types = bytes(args.dims), bytes(args.types)
        if not dims or len(dims) > MAX_SHAPES or len(types) > MAX_SHAPES:
            return -1
        return self._shapes.number((dims, types))

    def _call(self, args: _Args) -> int:
        call = call_of(args)
        return -1 if call is None else self._calls.number(call)

    def trace(self, frame: _Frame) -> Trace:
        starts, lengths = (np.frombuffer(column, dtype=np.float64) for column in self._doubles)
        if not len(starts):
            raise FileError(f"{self.path} contains no PyTorch profiler events.{self._left_out()}")
        kinds, names, lanes, shapes, calls = (
            np.frombuffer(column, dtype=np.int32) for column in self._small
        )
        correlations, externals = (np.frombuffer(column, dtype=np.int64) for column in self._ids)
        # outermost first where several start together
        order = np.lexsort((-lengths, starts))
        first = float(starts[order[0]])
        rank, world = _place(frame)
        return Trace(
            path=self.path,
            start=(starts[order] - first) * 1e-6,
            seconds=lengths[order] * 1e-6,
            kind=kinds[order].astype(np.uint8),
            name=names[order],
            lane=lanes[order],
            correlation=correlations[order],
            external=externals[order],
            shape=shapes[order],
            call=calls[order],
            names=tuple(self._names.values),
            lanes=tuple((_label(pid), _label(tid)) for pid, tid in self._lanes.values),
            shapes=tuple(
                (dims.decode("utf-8", "replace"), types.decode("utf-8", "replace"))
                for dims, types in self._shapes.values
            ),
            calls=tuple(self._calls.values),
            rank=rank,
            world=world,
            devices=_device_names(frame.devices),
            host=str(frame.host)[:200] if isinstance(frame.host, str) else "",
            began=_began(frame.base, first),
            warnings=(*self.warnings, *([self._left_out().strip()] if self._left_out() else [])),
        )

    def _left_out(self) -> str:
        said = []
        if self.broken:
            said.append(f"{self.broken:,} entries are not events and were skipped")
        if self.absurd:
            said.append(f"{self.absurd:,} events have invalid timestamps and were skipped")
        return " " + "; ".join(said) if said else ""


class _Interned:
    """A number for each value, as long as there is room; then the number of `other`, or -1 where that is None."""

    def __init__(self, most: int, other: Any = None) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Any, int] = {}
        self._most = most
        self._room = MAX_ROOM
        self._other = other

    def number(self, value: Any) -> int:
        number = self._numbers.get(value)
        return self._new(value) if number is None else number

    def _new(self, value: Any) -> int:
        if len(self.values) >= self._most or self._room <= 0:
            if self._other is None:
                return -1
            if self._other not in self._numbers:
                self._numbers[self._other] = len(self.values)
                self.values.append(self._other)
            return self._numbers[self._other]
        self._room -= len(value) if isinstance(value, str) else len(str(value))
        self._numbers[value] = len(self.values)
        self.values.append(value)
        return self._numbers[value]


def _whole(value: Any) -> int:
    """An id, or -1 where there is none."""
    is_id = type(value) is int and 0 <= value < 2**62
    return value if is_id else -1


def _label(value: Any) -> str:
    return "" if value is None else str(value)[:MAX_NAME]


def _framed(frames: tuple[bytes, ...]) -> _Frame:
    """What stands around the events; whatever of it cannot be read is not known."""
    merged = _Frame()
    for text in frames:
        try:
            frame = msgspec.json.decode(text, type=_Frame)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue
        for name in _Frame.__struct_fields__:
            if getattr(merged, name) is None:
                setattr(merged, name, getattr(frame, name))
    return merged


def _place(frame: _Frame) -> tuple[int | None, int | None]:
    """Rank and number of ranks."""
    distributed = frame.distributed if isinstance(frame.distributed, dict) else {}
    rank, world = _whole(distributed.get("rank")), _whole(distributed.get("world_size"))
    if world < 1 or rank >= world:
        return None, None
    return (rank if rank >= 0 else None), world


def _device_names(devices: Any) -> tuple[str, ...]:
    if not isinstance(devices, list):
        return ()
    rows = [row for row in devices[:1024] if isinstance(row, dict)]
    return tuple(str(row.get("name", ""))[:100] for row in rows)


def _began(base: Any, first: float) -> float | None:
    """When the first event began, where the file says so: times count from `base`, or from 1970 in old files."""
    nanoseconds = base if isinstance(base, int) and 0 <= base < 4 * 10**18 else 0
    seconds = nanoseconds * 1e-9 + first * 1e-6
    return seconds if math.isfinite(seconds) and 1e9 < seconds < 4e9 else None
