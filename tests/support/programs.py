"""Programs of the engine from plain lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from foretrain.arrays import Floats, Ints32
from foretrain.engine import Program


def program_of(
    duration: Sequence[float],
    *,
    streams: Sequence[Sequence[int]] | None = None,
    edges: Iterable[tuple[int, int]] = (),
    volume: Sequence[float] | None = None,
    route: Sequence[int] | None = None,
    routes: Sequence[Sequence[tuple[int, float]]] = (),
    route_cap: Sequence[float] | None = None,
    capacity: Sequence[float] = (),
    stream_place: Sequence[int] | None = None,
    activity: Sequence[int] | None = None,
    sensitivity: Sequence[float] | None = None,
    slowdown: Sequence[Sequence[float]] | None = None,
) -> Program:
    """Build a small program from plain lists.

    `streams[i]` are the streams of task i, `edges` are (task, task that waits for it),
    `routes[r]` are (link, weight) pairs. There are as many streams as `stream_place` names, or
    as tasks occupy.
    """
    n = len(duration)
    held = streams if streams is not None else [()] * n
    after: list[list[int]] = [[] for _ in range(n)]
    for task, waiting in edges:
        after[task].append(waiting)
    stream_ptr, stream_ids = _csr(held)
    succ_ptr, succ = _csr(after)
    route_ptr, route_link = _csr([[link for link, _ in hops] for hops in routes])
    used = int(stream_ids.max()) + 1 if len(stream_ids) else 0
    return Program(
        duration=_floats(duration),
        volume=_floats(volume if volume is not None else [0.0] * n),
        route=_ints(route if route is not None else [-1] * n),
        stream_ptr=stream_ptr,
        stream_ids=stream_ids,
        succ_ptr=succ_ptr,
        succ=succ,
        route_ptr=route_ptr,
        route_link=route_link,
        route_weight=_floats([weight for hops in routes for _, weight in hops]),
        route_cap=_floats(route_cap if route_cap is not None else [math.inf] * len(routes)),
        capacity=_floats(capacity),
        streams=used if stream_place is None else len(stream_place),
        stream_place=None if stream_place is None else _ints(stream_place),
        activity=None if activity is None else np.array(activity, dtype=np.int8),
        sensitivity=None if sensitivity is None else _floats(sensitivity),
        slowdown=None if slowdown is None else np.array(slowdown, dtype=np.float64),
    )


def _floats(values: Sequence[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _ints(values: Sequence[int]) -> Ints32:
    return np.array(values, dtype=np.int32)


def _csr(rows: Sequence[Sequence[int]]) -> tuple[Ints32, Ints32]:
    ptr = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=ptr[1:])
    return ptr, _ints([item for row in rows for item in row])
