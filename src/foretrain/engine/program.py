"""What the engine runs and what it answers: tasks, streams, links, and nothing else.

A *task* spends `duration` seconds, and if it has a `volume` it then becomes a *flow*: it moves that
volume over its *route* at a rate shared max-min fairly with the other flows of the moment. A *stream*
runs its tasks one at a time, strictly in index order. A task that occupies several streams starts when
it is at the head of all of them. Everything is in columns; lists of lists are in CSR form (`ptr`, items).

Tasks may also *interfere*: streams belong to *places* (a device, say), tasks have an *activity* (computing,
communicating), and what runs on a place slows the other activities of that place (see `places`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Bools, Floats, Ints32
from foretrain.errors import Bug

Bytes = NDArray[np.int8]

# Weights are added to and taken off a link's load; beyond this ratio a small weight would drown in
# the rounding of a large one.
WIDEST_WEIGHT_RATIO = 1e9

# Activities are kept as bits of a 32-bit mask; their slowdowns multiply, and must not overflow.
MOST_ACTIVITIES = 32
GREATEST_SLOWDOWN = 1e6

_FLOATS = (
    "duration",
    "volume",
    "route_weight",
    "route_cap",
    "capacity",
    "sensitivity",
    "slowdown",
)
_OPTIONAL = ("stream_place", "activity", "sensitivity", "slowdown")


@dataclass(frozen=True, slots=True)
class Program:
    """A graph of tasks on streams and links, ready to be simulated."""

    duration: Floats
    """[n] seconds of fixed work; for a flow, the latency paid before data moves"""
    volume: Floats
    """[n] amount to move after the fixed part; 0 = the task is not a flow"""
    route: Ints32
    """[n] route of a flow, -1 if none"""
    stream_ptr: Ints32
    """[n + 1] CSR: the streams a task occupies (none, one or several)"""
    stream_ids: Ints32
    succ_ptr: Ints32
    """[n + 1] CSR: the tasks that wait for a task"""
    succ: Ints32
    route_ptr: Ints32
    """[routes + 1] CSR: the links a route crosses, each once"""
    route_link: Ints32
    route_weight: Floats
    """load a flow puts on that link per unit of its rate"""
    route_cap: Floats
    """[routes] a flow's own ceiling on its rate (inf when none)"""
    capacity: Floats
    """[links] the load a link bears"""
    streams: int
    """number of streams"""
    stream_place: Ints32 | None = None
    """[streams] the place a stream belongs to, -1 if none; a task is on the places of its streams"""
    activity: Bytes | None = None
    """[n] what a task does to its places while it runs, a flow while its data moves; 0 = nothing"""
    sensitivity: Floats | None = None
    """[n] share of a task's work that others can slow, 0 to 1; all of it when not given"""
    slowdown: Floats | None = None
    """[activities, activities] at (a, b): factor, at least 1, on the time of a task of activity a
    while another of activity b runs on the same place; row and column 0 mean nothing"""

    def __len__(self) -> int:
        return len(self.duration)

    def check(self, *, is_graph_known: bool = False) -> None:
        """Raise `Bug` unless every array has the right type, shape and range; of a graph that was run before only
        what it costs is looked at."""
        self._check_types()
        n, routes = len(self.duration), len(self.route_cap)
        _same_length("volume", self.volume, n)
        _same_length("route", self.route, n)
        _same_length("route_weight", self.route_weight, len(self.route_link))
        if not is_graph_known:
            _check_csr("stream_ptr", self.stream_ptr, n, self.stream_ids)
            _check_csr("succ_ptr", self.succ_ptr, n, self.succ)
            _within("stream_ids", self.stream_ids, 0, self.streams)
            _within("succ", self.succ, 0, n)
        _check_csr("route_ptr", self.route_ptr, routes, self.route_link)
        _within("route", self.route, -1, routes)
        _within("route_link", self.route_link, 0, len(self.capacity))
        _finite_from_zero("duration", self.duration)
        _finite_from_zero("volume", self.volume)
        _finite_above_zero("capacity", self.capacity)
        self._check_routes()
        if self.activity is not None:
            self._check_interference(self.activity)

    def _check_types(self) -> None:
        for field in fields(self):
            array = getattr(self, field.name)
            if field.name == "streams" or (array is None and field.name in _OPTIONAL):
                continue
            _check_type(field.name, array)
        if self.streams < 0:
            raise Bug(f"program.streams must not be negative, got {self.streams}")

    def _check_interference(self, activity: Bytes) -> None:
        if self.stream_place is None or self.slowdown is None:
            raise Bug("program.activity needs program.stream_place and program.slowdown beside it")
        count = len(self.slowdown)
        if self.slowdown.shape != (count, count) or count > MOST_ACTIVITIES:
            raise Bug(
                f"program.slowdown has shape {self.slowdown.shape}, expected a square of at most "
                f"{MOST_ACTIVITIES}"
            )
        _same_length("activity", activity, len(self))
        _within("activity", activity, 0, max(1, count))
        _same_length("stream_place", self.stream_place, self.streams)
        _within("stream_place", self.stream_place, -1, 2**31 - 1)
        _from_to("slowdown", self.slowdown[1:, 1:].reshape(-1), 1.0, GREATEST_SLOWDOWN)
        if self.sensitivity is not None:
            _same_length("sensitivity", self.sensitivity, len(self))
            _from_to("sensitivity", self.sensitivity, 0.0, 1.0)

    def _check_routes(self) -> None:
        _finite_above_zero("route_weight", self.route_weight)
        bad = _first(~(self.route_cap > 0.0))
        if bad is not None:
            raise Bug(f"program.route_cap[{bad}] = {self.route_cap[bad]} must be above zero")
        weight = self.route_weight
        if len(weight) and weight.max() > WIDEST_WEIGHT_RATIO * weight.min():
            raise Bug(
                f"program.route_weight spans {weight.min()} to {weight.max()}: more than a factor "
                f"of {WIDEST_WEIGHT_RATIO:g} cannot be summed without loss"
            )
        hops = np.diff(self.route_ptr)
        key = np.repeat(np.arange(len(hops)), hops) * len(self.capacity) + self.route_link
        key.sort()
        if (key[1:] == key[:-1]).any():
            raise Bug("program.route_link names a link twice on one route; add the weights instead")
        bad = _first((self.volume > 0.0) & (self.route < 0))
        if bad is not None:
            raise Bug(f"program.volume[{bad}] = {self.volume[bad]} but task {bad} has no route")
        unbounded = (hops == 0) & np.isinf(self.route_cap)
        if unbounded.any():
            bad = _first((self.volume > 0.0) & unbounded[self.route])
            if bad is not None:
                raise Bug(
                    f"task {bad} flows over route {self.route[bad]}, which crosses no link and has "
                    "no cap: its rate would be unbounded"
                )


@dataclass(frozen=True, slots=True)
class Run:
    """When every task started and ended, and what decided its start."""

    start: Floats
    end: Floats
    waited_for: Ints32
    """[n] the task whose end let this one start (latest end, then smallest index); -1 if none"""

    @property
    def makespan(self) -> float:
        """The end of the last task."""
        return float(self.end.max()) if len(self.end) else 0.0


def _check_type(name: str, array: object) -> None:
    wanted = np.float64 if name in _FLOATS else np.int8 if name == "activity" else np.int32
    ndim, shape = (2, "square") if name == "slowdown" else (1, "flat")
    if not isinstance(array, np.ndarray) or array.dtype != wanted or array.ndim != ndim:
        raise Bug(f"program.{name} must be a {shape} array of {wanted.__name__}")
    if not array.flags.c_contiguous:
        raise Bug(f"program.{name} must be contiguous")


def _first(mask: Bools) -> int | None:
    """Position of the first True, if there is one."""
    if not len(mask):
        return None
    at = int(mask.argmax())
    return at if mask[at] else None


def _same_length(name: str, array: Floats | Ints32 | Bytes, wanted: int) -> None:
    if len(array) != wanted:
        raise Bug(f"program.{name} has {len(array)} entries, expected {wanted}")


def _check_csr(name: str, ptr: Ints32, rows: int, items: Ints32) -> None:
    _same_length(name, ptr, rows + 1)
    if ptr[0] != 0 or ptr[-1] != len(items):
        raise Bug(f"program.{name} runs from {ptr[0]} to {ptr[-1]}, expected 0 to {len(items)}")
    bad = _first(ptr[1:] < ptr[:-1])
    if bad is not None:
        raise Bug(f"program.{name} falls after row {bad}")


def _within(name: str, array: Ints32 | Bytes, low: int, high: int) -> None:
    if len(array) and (int(array.min()) < low or int(array.max()) >= high):
        bad = _first((array < low) | (array >= high))
        assert bad is not None
        raise Bug(f"program.{name}[{bad}] = {array[bad]} is outside {low} to {high - 1}")


def _finite_from_zero(name: str, array: Floats) -> None:
    # min and max carry NaN along, so two passes suffice for the usual, sound array
    if len(array) and not (array.min() >= 0.0 and array.max() < math.inf):
        bad = _first(~((array >= 0.0) & (array < math.inf)))
        assert bad is not None
        raise Bug(f"program.{name}[{bad}] = {array[bad]} must be finite and not negative")


def _finite_above_zero(name: str, array: Floats) -> None:
    if len(array) and not (array.min() > 0.0 and array.max() < math.inf):
        bad = _first(~((array > 0.0) & (array < math.inf)))
        assert bad is not None
        raise Bug(f"program.{name}[{bad}] = {array[bad]} must be finite and above zero")


def _from_to(name: str, array: Floats, low: float, high: float) -> None:
    bad = _first(~((array >= low) & (array <= high)))
    if bad is not None:
        raise Bug(f"program.{name} holds {array[bad]}, which is outside {low:g} to {high:g}")
