"""Tables of what a trace timed: operators by name and input shapes, collectives by name and bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.adapters.read.collective_calls import Call
from foretrain.adapters.read.kineto import KERNEL, OP, Trace
from foretrain.arrays import Floats, Ints
from foretrain.measurement.records import TO_DEVIATION
from foretrain.measurement.trace_parts import TraceParts

MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class TraceOpRow:
    """An operator with one set of input shapes. On a device its seconds are those of the kernels it issued itself."""

    name: str
    shapes: str  # of its inputs, as JSON; empty: not recorded
    types: str
    count: int
    seconds: float  # median
    spread: float  # relative, robust
    total_seconds: float  # without those of operators inside it
    on_device: bool

    @property
    def dims(self) -> Any:
        return _json(self.shapes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "shapes": self.dims,
            "types": _json(self.types),
            "count": self.count,
            "seconds": self.seconds,
            "spread": self.spread,
            "total_seconds": self.total_seconds,
        }


@dataclass(frozen=True, slots=True)
class CollectiveRow:
    """A collective of one size. Seconds are of moving data, where waiting for other ranks could be told apart."""

    collective: str
    bytes: float
    ranks: int  # of its group; 0: not told
    is_network: bool
    count: int
    seconds: float  # median
    spread: float
    wait_seconds: float  # mean
    total_seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "collective": self.collective,
            "bytes": self.bytes,
            "ranks": self.ranks,
            "over": "network" if self.is_network else "interconnect",
            "count": self.count,
            "seconds": self.seconds,
            "spread": self.spread,
            "wait_seconds": self.wait_seconds,
            "total_seconds": self.total_seconds,
        }


def op_rows(ranks: Sequence[TraceParts]) -> tuple[TraceOpRow, ...]:
    """Of all ranks together, those that took longest first."""
    gathered = [(one.trace, *_timed(one)) for one in ranks]
    labels: dict[tuple[str, str, str], int] = {}
    groups, seconds, own = [], [], []
    for trace, events, spent, alone in gathered:
        pair = np.stack([trace.name[events], trace.shape[events]])
        distinct, which = np.unique(pair, axis=1, return_inverse=True)
        numbers = [
            labels.setdefault(_label(trace, int(name), int(shape)), len(labels))
            for name, shape in distinct.T.tolist()
        ]
        groups.append(np.array(numbers, dtype=np.int64)[np.ravel(which)])
        seconds.append(spent)
        own.append(alone)
    if not labels:
        return ()
    group, spent = np.concatenate(groups), np.concatenate(seconds)
    count, middle, spread = grouped(group, spent, len(labels))
    total = np.bincount(group, np.concatenate(own), len(labels))
    on_device = any(one.on_device for one in ranks)
    order = np.argsort(-total, kind="stable")[:MOST_ROWS]
    names = list(labels)
    rows = []
    for i in order.tolist():
        name, shapes, types = names[i]
        figures = float(middle[i]), float(spread[i]), float(total[i])
        rows.append(TraceOpRow(name, shapes, types, int(count[i]), *figures, on_device))
    return tuple(rows)


def _label(trace: Trace, name: int, shape: int) -> tuple[str, str, str]:
    dims, types = trace.shapes[shape] if shape >= 0 else ("", "")
    return trace.names[name], dims, types


def _timed(one: TraceParts) -> tuple[Ints, Floats, Floats]:
    """Operators, the seconds each took, and the seconds that are its own."""
    trace = one.trace
    if one.on_device:
        events, seconds = _issuing(one)
        return events, seconds, seconds
    events = one.work
    own = trace.seconds[events].copy()
    position = np.full(len(trace.start), -1, dtype=np.int64)
    position[events] = np.arange(len(events))
    parent = parents(trace, events)
    inner = parent >= 0
    np.subtract.at(own, position[parent[inner]], trace.seconds[events[inner]])
    return events, trace.seconds[events], np.maximum(own, 0.0)


def _issuing(one: TraceParts) -> tuple[Ints, Floats]:
    """Operators that issued kernels, and the seconds of these; communication is not among them."""
    trace = one.trace
    kernels = one.work[(trace.kind[one.work] == KERNEL) & (trace.external[one.work] >= 0)]
    ops = np.flatnonzero((trace.kind == OP) & (trace.external >= 0))
    if not len(kernels) or not len(ops):
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    ops = ops[np.argsort(trace.external[ops], kind="stable")]
    at = np.minimum(np.searchsorted(trace.external[ops], trace.external[kernels]), len(ops) - 1)
    hit = trace.external[ops[at]] == trace.external[kernels]
    seconds = np.bincount(at[hit], trace.seconds[kernels[hit]], len(ops))
    issuing = np.unique(at[hit])
    return ops[issuing], seconds[issuing].astype(np.float64)


def parents(trace: Trace, events: Ints) -> Ints:
    """The innermost of `events` around each of them on its own thread; -1: none. `events` in order of the trace."""
    parent = np.full(len(events), -1, dtype=np.int64)
    start, end = trace.start[events].tolist(), trace.end[events].tolist()
    stacks: dict[int, list[int]] = {}
    for number, lane in enumerate(trace.lane[events].tolist()):
        stack = stacks.setdefault(lane, [])
        while stack and end[stack[-1]] <= start[number]:
            stack.pop()
        if stack:
            parent[number] = events[stack[-1]]
        stack.append(number)
    return parent


def grouped(group: Ints, values: Floats, groups: int) -> tuple[Ints, Floats, Floats]:
    """(count, median, robust relative deviation) of the values of each group."""
    count = np.bincount(group, minlength=groups)
    middle = _medians(group, values, count)
    deviation = _medians(group, np.abs(values - middle[group]), count) * TO_DEVIATION
    relative = np.divide(deviation, middle, out=np.zeros(groups), where=middle > 0)
    return count, middle, relative


def _medians(group: Ints, values: Floats, count: Ints) -> Floats:
    ordered = np.append(values[np.lexsort((values, group))], 0.0)
    first = np.cumsum(count) - count
    low = first + np.maximum(count - 1, 0) // 2
    high = first + count // 2
    middle: Floats = np.where(count > 0, (ordered[low] + ordered[high]) / 2, 0.0)
    return middle


def collective_rows(
    ranks: Sequence[TraceParts], waits: Sequence[Floats], networks: Sequence[np.ndarray[Any, Any]]
) -> tuple[CollectiveRow, ...]:
    """Of all ranks together, those that took longest first."""
    labels: dict[tuple[str, float, int, bool], int] = {}
    group, seconds, waited = [], [], []
    for one, wait, network in zip(ranks, waits, networks, strict=True):
        for call, is_network in zip(one.calls, network.tolist(), strict=True):
            group.append(labels.setdefault(_key(call, is_network), len(labels)))
        seconds.append(one.trace.seconds[one.exchange])
        waited.append(wait)
    if not labels:
        return ()
    which = np.array(group, dtype=np.int64)
    whole, idle = np.concatenate(seconds), np.concatenate(waited)
    count, middle, spread = grouped(which, whole - idle, len(labels))
    total = np.bincount(which, whole, len(labels))
    lost = np.bincount(which, idle, len(labels)) / np.maximum(count, 1)
    rows = [
        CollectiveRow(
            *key, int(count[i]), float(middle[i]), float(spread[i]), float(lost[i]), float(total[i])
        )
        for key, i in labels.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.total_seconds)[:MOST_ROWS])


def _key(call: Call, is_network: bool) -> tuple[str, float, int, bool]:
    return call.collective, call.bytes, call.size, is_network


def _json(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
