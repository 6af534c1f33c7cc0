"""Timeline: the engine's answer dressed with lanes and labels; and the critical path through it."""

from __future__ import annotations

import numpy as np

from foretrain.analysis.prediction import Lane, PathStep, Timeline
from foretrain.arrays import Ints32
from foretrain.compile.columns import distinct
from foretrain.compile.execution import (
    CHAIN,
    KIND_NAMES,
    LAUNCH,
    LAUNCH_REST,
    PHASE_NAMES,
    Communication,
    Copy,
    ExecutionGraph,
    Load,
)
from foretrain.engine import Run
from foretrain.units import show_bytes


def timeline(graph: ExecutionGraph, run: Run) -> Timeline:
    lanes = tuple(
        Lane(c, int(graph.fold.stage_of[c]), name, int(graph.fold.counts[c]))
        for c, name in graph.streams
    )
    has_lane = np.diff(graph.stream_ptr) > 0
    lane = np.full(graph.tasks, -1, dtype=np.int32)
    lane[has_lane] = graph.stream_ids[graph.stream_ptr[:-1][has_lane]]
    label, labels = _labels(graph)
    return Timeline(
        start=run.start,
        end=run.end,
        lane=lane,
        label=label,
        stage=graph.task_stage,
        chunk=graph.task_chunk,
        micro=graph.task_micro,
        phase=graph.task_phase,
        kind=graph.task_kind,
        waited_for=run.waited_for,
        lanes=lanes,
        labels=labels,
    )


def _labels(graph: ExecutionGraph) -> tuple[Ints32, tuple[str, ...]]:
    """Chains are named by their phase, everything else by its work."""
    kind = graph.task_kind
    is_plain = (kind == CHAIN) | (kind == LAUNCH) | (kind == LAUNCH_REST)
    shape = np.where(is_plain, -1, graph.task_shape.astype(np.int64))
    key = (shape + 1) * 64 + kind * 8 + np.where(is_plain, graph.task_phase, 0)
    values, number = distinct(key)
    names = tuple(_name(graph, int(v)) for v in values)
    return number.astype(np.int32), names


def _name(graph: ExecutionGraph, key: int) -> str:
    shape, kind, phase = key // 64 - 1, key % 64 // 8, key % 8
    if shape < 0:
        return PHASE_NAMES[phase] if kind == CHAIN else f"launch {PHASE_NAMES[phase]}"
    work = graph.shape(shape)[0].work
    if isinstance(work, (Communication, Copy)):
        return f"{work.label} {show_bytes(work.bytes)}"
    if isinstance(work, Load):
        return work.kind
    return KIND_NAMES[kind]


def critical_path(timeline: Timeline, limit: int = 4000) -> tuple[PathStep, ...]:
    """Steps in time order, from 0 to the end of the step; neighbours doing the same thing on the same stage are
    told as one, and of very long paths the middle is summed up."""
    if not len(timeline):
        return ()
    steps: list[tuple[float, float, int, str]] = []  # fields of steps
    starts, ends = timeline.start.tolist(), timeline.end.tolist()
    stages, causes = timeline.stage.tolist(), timeline.waited_for.tolist()
    names = _Names(timeline)
    task = int(timeline.end.argmax())
    while task >= 0:
        start, end = starts[task], ends[task]
        if end > start:
            stage, what = stages[task], names.of(task)
            if steps and steps[-1][2] == stage and steps[-1][3] == what:
                steps[-1] = (start, steps[-1][1], stage, what)
            else:
                steps.append((start, end, stage, what))
        task = causes[task]
    steps.reverse()
    if len(steps) > limit:
        head, middle, tail = (
            steps[: limit // 2],
            steps[limit // 2 : -limit // 2],
            steps[-limit // 2 :],
        )
        what = f"{len(middle):,} steps in between"
        steps = [*head, (middle[0][0], middle[-1][1], middle[0][2], what), *tail]
    return tuple(PathStep(*fields) for fields in steps)


class _Names:
    """What each task is called on the path."""

    def __init__(self, timeline: Timeline) -> None:
        self.kinds, self.phases = timeline.kind.tolist(), timeline.phase.tolist()
        self.label, self.labels = timeline.label.tolist(), timeline.labels

    def of(self, task: int) -> str:
        kind = KIND_NAMES[self.kinds[task]]
        if kind == "chain":
            return PHASE_NAMES[self.phases[task]]
        return "host launches" if kind == "launch" else self.labels[self.label[task]]
