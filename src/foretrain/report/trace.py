"""The timeline as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

One process per rank class, one thread per stream, a complete event (`X`) per task in microseconds.
Arrows join a task to the one it waited for on another stream of the same rank class or another stage.

A last process, "links", has a thread for each of the busiest kinds of links with an event per flow that
crosses it: what it is for, its bytes on that link and its mean rate. Flows that overlap take further threads of
the same name. A flow inside a chain of kernels has the length of the chain: the rate is the mean over it.
The trace holds at most `MAX_LINKS` links, `MAX_FLOWS` flows and `MAX_THREADS` threads a link; what that leaves
out is counted in `otherData`.
"""

from __future__ import annotations

import gzip
from typing import Any

import msgspec
import numpy as np

from foretrain.analysis.prediction import Lane, LinkFlows, Prediction, Timeline
from foretrain.arrays import Ints
from foretrain.compile.execution import KIND_NAMES, PHASE_NAMES
from foretrain.report.document import Document
from foretrain.report.json import dumps
from foretrain.report.words import clean, percent

MAX_ARROWS = 100_000
"""Viewers slow down on arrows long before they do on bars."""
MAX_LINKS = 24
MAX_FLOWS = 100_000
MAX_THREADS = 8


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


class _FlowArgs(msgspec.Struct, omit_defaults=True):
    bytes: float
    bytes_per_second: float | None
    stage: int
    micro: int = -1


class _Flow(msgspec.Struct):
    name: str
    ts: float
    dur: float
    pid: int
    tid: int
    args: _FlowArgs
    cat: str = "flow"
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


def render(document: Document) -> bytes:
    """Of a document that has a prediction."""
    assert document.prediction is not None
    prediction = document.prediction
    timeline = prediction.timeline
    before, after = _waits(timeline)
    names, flows, flows_left_out = _links(prediction)
    trace = {
        "displayTimeUnit": "ms",
        "otherData": _strict(
            {
                "id": prediction.id,
                "step_seconds": prediction.step_seconds,
                "question": dict(prediction.question),
                "provenance": dict(prediction.provenance),
                "arrows_left_out": max(0, len(after) - MAX_ARROWS),
                "links_left_out": max(0, len(prediction.links) - MAX_LINKS),
                "flows_left_out": flows_left_out,
            }
        ),
        "traceEvents": [
            *_names(timeline.lanes),
            *_tasks(timeline),
            *_arrows(timeline, before[:MAX_ARROWS], after[:MAX_ARROWS]),
            *names,
            *flows,
        ],
    }
    return msgspec.json.encode(trace)


def _strict(value: dict[str, Any]) -> msgspec.Raw:
    """What users wrote, as JSON can hold it."""
    return msgspec.Raw(dumps(value, indent=None).encode("utf-8"))


def render_gz(document: Document) -> bytes:
    # no time stamp in the header: the same prediction gives the same bytes
    return gzip.compress(render(document), compresslevel=6, mtime=0)


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


def _waits(timeline: Timeline) -> tuple[Ints, Ints]:
    """(before, after): tasks that waited for one on another stream."""
    after = np.flatnonzero(timeline.waited_for >= 0)
    before = timeline.waited_for[after].astype(np.int64)
    lanes = timeline.lane[before], timeline.lane[after]
    crossing = (lanes[0] != lanes[1]) & (lanes[0] >= 0) & (lanes[1] >= 0)
    return before[crossing], after[crossing]


def _arrows(timeline: Timeline, before: Ints, after: Ints) -> list[_Arrow]:
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


# --- links --------------------------------------------------------------------------------------


def _links(prediction: Prediction) -> tuple[list[dict[str, Any]], list[_Flow], int]:
    """Names of the threads of links, what crosses them, and how many flows found no room."""
    timeline = prediction.timeline
    pid = 1 + max((_pid(lane) for lane in timeline.lanes), default=0)
    tid = 1 + len(timeline.lanes)
    names: list[dict[str, Any]] = []
    events: list[_Flow] = []
    left_out = 0
    for link in prediction.links[:MAX_LINKS]:
        if link.flows is None or not len(link.flows.task):
            continue
        thread = _threads(timeline, link.flows)
        kept = np.flatnonzero(thread >= 0)[: max(0, MAX_FLOWS - len(events))]
        left_out += len(thread) - len(kept)
        if not len(kept):
            continue
        title = f"{clean(link.name, 120)} ({percent(link.share)} busy)"
        used = int(thread[kept].max()) + 1
        for number in range(tid, tid + used):
            names.append(_named("thread_name", pid, number, {"name": title}))
            names.append(_named("thread_sort_index", pid, number, {"sort_index": number}))
        events += _link_flows(timeline, link.flows, kept, pid, thread + tid)
        tid += used
    if names:
        last = 1 + max(lane.stage for lane in timeline.lanes)
        names.append(_named("process_name", pid, 0, {"name": "links"}))
        names.append(_named("process_sort_index", pid, 0, {"sort_index": last}))
    return names, events, left_out


def _threads(timeline: Timeline, flows: LinkFlows) -> Ints:
    """For each flow the first thread that is free when it starts; -1 when all are taken."""
    start, end = timeline.start[flows.task], timeline.end[flows.task]
    starts, ends = np.round(start * 1e6, 3).tolist(), np.round(end * 1e6, 3).tolist()
    thread = np.full(len(starts), -1, dtype=np.int64)
    free = [-np.inf] * MAX_THREADS
    for flow in np.lexsort((end, start)).tolist():
        for number, since in enumerate(free):
            if since <= starts[flow]:
                free[number] = ends[flow]
                thread[flow] = number
                break
    return thread


def _link_flows(
    timeline: Timeline,
    flows: LinkFlows,
    kept: Ints,
    pid: int,
    thread: Ints,
) -> list[_Flow]:
    labels = [clean(label) for label in flows.labels]
    task, moved = flows.task[kept], flows.bytes[kept]
    length = timeline.end[task] - timeline.start[task]
    rate = np.divide(moved, length, out=np.zeros(len(task)), where=length > 0)
    starts, lengths = _microseconds(timeline)
    rows = zip(
        task.tolist(), flows.label[kept].tolist(), thread[kept].tolist(), np.round(moved).tolist(),
        np.round(rate).tolist(), timeline.stage[task].tolist(), timeline.micro[task].tolist(),
        strict=True,
    )  # fmt: skip
    return [
        _Flow(
            labels[label], starts[t], lengths[t], pid, tid,
            _FlowArgs(amount, speed or None, stage, micro),
        )
        for t, label, tid, amount, speed, stage, micro in rows
    ]  # fmt: skip
