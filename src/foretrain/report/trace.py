"""The timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

One process per rank class, one thread per stream, a complete event (`X`) per task in microseconds.
Arrows join a task to the one it waited for on another stream of the same rank class or another stage.
"""

from __future__ import annotations

import gzip
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from foretrain.analysis.prediction import Lane, Prediction, Timeline
from foretrain.compile.execution import KIND_NAMES, PHASE_NAMES
from foretrain.report.words import clean, plain

MAX_ARROWS = 100_000
"""Viewers slow down on arrows long before they do on bars."""


class _Args(msgspec.Struct, omit_defaults=True):
    phase: str
    stage: int
    chunk: int
    micro: int = -1


class _Task(msgspec.Struct):
    name: str
    cat: str
    ts: float
    dur: float
    pid: int
    tid: int
    args: _Args
    ph: str = "X"


class _Arrow(msgspec.Struct, omit_defaults=True):
    id: int
    ph: str
    ts: float
    pid: int
    tid: int
    name: str
    cat: str
    bp: str = ""


def render(prediction: Prediction) -> bytes:
    timeline = prediction.timeline
    before, after = _waits(timeline)
    document = {
        "displayTimeUnit": "ms",
        "otherData": plain(
            {
                "id": prediction.id,
                "step_seconds": prediction.step_seconds,
                "question": dict(prediction.question),
                "provenance": dict(prediction.provenance),
                "arrows_left_out": max(0, len(after) - MAX_ARROWS),
            }
        ),
        "traceEvents": [
            *_names(timeline.lanes),
            *_tasks(timeline),
            *_arrows(timeline, before[:MAX_ARROWS], after[:MAX_ARROWS]),
        ],
    }
    return msgspec.json.encode(document)


def render_gz(prediction: Prediction) -> bytes:
    # no time stamp in the header: the same prediction gives the same bytes
    return gzip.compress(render(prediction), compresslevel=6, mtime=0)


def process_name(lane: Lane) -> str:
    """`stage 0 (x64 ranks)`."""
    return f"stage {lane.stage} (x{lane.ranks} rank{'' if lane.ranks == 1 else 's'})"


def _names(lanes: tuple[Lane, ...]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    named: set[int] = set()
    for tid, lane in enumerate(lanes, 1):
        pid = _pid(lane)
        if pid not in named:
            named.add(pid)
            events.append(_named("process_name", pid, 0, {"name": process_name(lane)}))
            events.append(_named("process_sort_index", pid, 0, {"sort_index": lane.stage}))
        events.append(_named("thread_name", pid, tid, {"name": clean(lane.stream)}))
        events.append(_named("thread_sort_index", pid, tid, {"sort_index": tid}))
    return events


def _pid(lane: Lane) -> int:
    """Counted from one, as threads are: viewers take process and thread 0 for the idle task."""
    return lane.rank_class + 1


def _named(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _microseconds(timeline: Timeline) -> tuple[list[float], list[float]]:
    """Starts and lengths on a nanosecond grid, so that neighbours touch and never overlap."""
    start = np.round(timeline.start * 1e6, 3)
    end = np.round(timeline.end * 1e6, 3)
    return start.tolist(), np.round(np.maximum(end - start, 0.0), 3).tolist()


def _tasks(timeline: Timeline) -> list[_Task]:
    labels = [clean(label) for label in timeline.labels]
    pids = [_pid(lane) for lane in timeline.lanes]
    starts, lengths = _microseconds(timeline)
    rows = zip(
        timeline.label.tolist(),
        timeline.kind.tolist(),
        starts,
        lengths,
        timeline.lane.tolist(),
        timeline.phase.tolist(),
        timeline.stage.tolist(),
        timeline.chunk.tolist(),
        timeline.micro.tolist(),
        strict=True,
    )
    return [
        _Task(
            labels[label], KIND_NAMES[kind], start, length, pids[lane], lane + 1,
            _Args(PHASE_NAMES[phase], stage, chunk, micro),
        )
        for label, kind, start, length, lane, phase, stage, chunk, micro in rows
        if lane >= 0  # what holds no stream has no row to be drawn in
    ]  # fmt: skip


def _waits(timeline: Timeline) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(before, after): tasks that waited for one on another stream."""
    after = np.flatnonzero(timeline.waited_for >= 0)
    before = timeline.waited_for[after].astype(np.int64)
    lanes = timeline.lane[before], timeline.lane[after]
    crossing = (lanes[0] != lanes[1]) & (lanes[0] >= 0) & (lanes[1] >= 0)
    return before[crossing], after[crossing]


def _arrows(
    timeline: Timeline, before: NDArray[np.int64], after: NDArray[np.int64]
) -> list[_Arrow]:
    starts = np.round(timeline.start * 1e6, 3)
    pids = [_pid(lane) for lane in timeline.lanes]
    events = []
    pairs = zip(before.tolist(), after.tolist(), strict=True)
    for number, (source, target) in enumerate(pairs):
        for ph, task, bp in (("s", source, ""), ("f", target, "e")):
            lane = int(timeline.lane[task])
            events.append(
                _Arrow(
                    number, ph, float(starts[task]), pids[lane], lane + 1, "waits for", "wait", bp
                )
            )
    return events
