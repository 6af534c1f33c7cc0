"""Host overheads T1 to T5 of a trace, after Lin et al. 2024, "Towards Universal Performance Modeling for Machine
Learning Training on Multi-GPU Platforms".

    T1  between two operators that follow each other
    T2  from the start of an operator to its first launch
    T3  from its last launch to its end
    T4  a launch itself
    T5  between two launches of one operator; of an operator without launches, all of it

Operators are those that stand in no other. Each recorded event inside a stretch cost the profiler some time, which is
taken off; what becomes negative is nothing, and what lies beyond 1.5 times the quartiles' distance is left out. The
authors set T4 to 4 µs; here the launches of the trace are timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.adapters.read.kineto import MARK, OP, RUNTIME, Trace
from foretrain.arrays import Floats

EVENT_SECONDS = 2e-6
"""What recording one host event costs (Lin et al.: 2 µs)."""
NEXT_OPERATOR = (2e-6, 200e-6)
"""Gaps of T1: shorter ones are the profiler's, longer ones are not between operators of one piece of work."""
LAUNCHES = (
    "cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaMemcpyAsync",
    "cudaMemsetAsync", "cudaLaunchCooperativeKernel", "hipLaunchKernel", "hipExtLaunchKernel",
    "hipExtModuleLaunchKernel", "hipModuleLaunchKernel", "hipMemcpyAsync", "hipMemcpyWithStream",
)  # fmt: skip
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "hipStreamSynchronize")
ALL = "(all)"
MOST_SAMPLES = 200_000
"""Of one operator and stretch: enough for a mean."""


@dataclass(frozen=True, slots=True)
class OverheadRow:
    stretch: str  # T1 … T5
    name: str  # of the operator, or of the launch for T4
    count: int
    seconds: float  # mean
    deviation: float  # standard deviation, seconds

    def to_dict(self) -> dict[str, Any]:
        return {
            "stretch": self.stretch,
            "name": self.name,
            "count": self.count,
            "seconds": self.seconds,
            "deviation_seconds": self.deviation,
        }


Samples = dict[tuple[str, str], list[float]]


def overhead_rows(traces: Sequence[Trace]) -> tuple[OverheadRow, ...]:
    """Of all traces together; T2 to T5 only where launches were recorded."""
    samples: Samples = {}
    for trace in traces:
        has_launches = bool((trace.kind == RUNTIME).any())
        for operator in _operators(trace):
            _add(samples, operator, has_launches)
    rows = [_row(*key, np.array(values)) for key, values in samples.items() if values]
    return tuple(sorted(rows, key=lambda row: (row.stretch, -row.seconds * row.count, row.name)))


@dataclass(slots=True)
class _Operator:
    """One that stands in no other: its launches and how many events were recorded before each and behind the last."""

    name: str
    start: float
    end: float
    gap: float | None  # since the operator before it under the same mark
    launches: list[tuple[float, float, str]]
    events: list[int]


def _operators(trace: Trace) -> Iterator[_Operator]:
    """Walk each thread's events in order, keeping which of them are open."""
    kinds = np.isin(trace.kind, (OP, RUNTIME, MARK))
    for lane in np.unique(trace.lane[trace.kind == OP]).tolist():
        yield from _of_thread(trace, np.flatnonzero(kinds & (trace.lane == lane)))


def _of_thread(trace: Trace, events: Any) -> Iterator[_Operator]:
    start, end = trace.start[events].tolist(), trace.end[events].tolist()
    kind, name = trace.kind[events].tolist(), trace.name[events].tolist()
    marks: list[int] = []
    last: dict[int, float] = {}  # end of the latest operator under each mark
    current: _Operator | None = None
    for i in range(len(start)):
        is_inside = current is not None and start[i] < current.end
        if kind[i] == MARK:
            if not is_inside:
                marks = [*(m for m in marks if end[m] > start[i]), i]
            continue
        if current is not None and is_inside:
            _note(current, start[i], end[i], trace.names[name[i]], kind[i] == RUNTIME)
        elif kind[i] == OP:
            if current is not None:
                yield current
            marks = [m for m in marks if end[m] > start[i]]
            under = marks[-1] if marks else -1
            gap = start[i] - last[under] if under in last else None
            last[under] = end[i]
            current = _Operator(trace.names[name[i]], start[i], end[i], gap, [], [0])
    if current is not None:
        yield current


def _note(operator: _Operator, start: float, end: float, name: str, is_driver: bool) -> None:
    if is_driver and (name in LAUNCHES or name in WAITS):
        operator.launches.append((start, end, name))
        operator.events.append(0)
    else:
        operator.events[-1] += 1


def _add(samples: Samples, one: _Operator, has_launches: bool) -> None:
    event = EVENT_SECONDS

    def add(stretch: str, name: str, seconds: float) -> None:
        values = samples.setdefault((stretch, name), [])
        if len(values) < MOST_SAMPLES:
            values.append(max(0.0, seconds))

    if one.gap is not None and NEXT_OPERATOR[0] < one.gap < NEXT_OPERATOR[1]:
        add("T1", ALL, one.gap - event)
    if not has_launches:
        return
    if not one.launches:
        add("T5", one.name, one.end - one.start - event * sum(one.events))
        return
    add("T2", one.name, one.launches[0][0] - one.start - event * one.events[0])
    add("T3", one.name, one.end - one.launches[-1][1] - event * one.events[-1])
    for before, after, events in zip(
        one.launches[:-1], one.launches[1:], one.events[1:-1], strict=True
    ):
        add("T5", one.name, after[0] - before[1] - event * events)
    for start, end, name in one.launches:
        if name not in WAITS:
            add("T4", name, end - start - event)


def _row(stretch: str, name: str, values: Floats) -> OverheadRow:
    low, high = np.quantile(values, (0.25, 0.75))
    reach = 1.5 * (high - low) + 1e-9 * high  # equal samples differ by rounding
    kept = values[(values >= low - reach) & (values <= high + reach)]
    return OverheadRow(stretch, name, len(kept), float(kept.mean()), float(kept.std()))
