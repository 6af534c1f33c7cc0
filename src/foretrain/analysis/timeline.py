"""Timeline: the engine's answer dressed with lanes and labels."""

from __future__ import annotations

import numpy as np

from foretrain.analysis.prediction import Lane, Timeline
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
    is_plain = np.isin(graph.task_kind, (CHAIN, LAUNCH, LAUNCH_REST))
    shape = np.where(is_plain, -1, graph.task_shape.astype(np.int64))
    key = (shape + 1) * 64 + graph.task_kind * 8 + np.where(is_plain, graph.task_phase, 0)
    values, number = distinct(key)
    names = tuple(_name(graph, int(v)) for v in values)
    return number.astype(np.int32), names


def _name(graph: ExecutionGraph, key: int) -> str:
    shape, kind, phase = key // 64 - 1, key % 64 // 8, key % 8
    if shape < 0:
        return PHASE_NAMES[phase] if kind == CHAIN else f"launch {PHASE_NAMES[phase]}"
    work = graph.shape(shape)[0].work
    if isinstance(work, Communication):
        name = work.collective.replace("_", "-")
        return f"{work.purpose} {name} {show_bytes(work.bytes)}"
    if isinstance(work, Copy):
        return f"copy {work.direction.replace('_', ' ')} {show_bytes(work.bytes)}"
    if isinstance(work, Load):
        return work.kind
    return KIND_NAMES[kind]
