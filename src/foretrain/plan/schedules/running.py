"""What follows from the order of a schedule's steps, by running them: for schedules that have no closed form."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.errors import PlanError
from foretrain.plan.schedules.closed_form import Pipelines

if TYPE_CHECKING:
    from foretrain.plan.schedules.base import PipelineSchedule

_FORWARD, _BACKWARD, _WEIGHT = range(3)
_ROUNDS = 4
"""Micro-batches per stage after which each further one takes a pipeline as long as the one before."""


class Turn(NamedTuple):
    """A step in an order that all stages can run in. `needed`: the number of the turn whose result it waits for, and
    `sent`: the number of the send that brings it; -1: none."""

    stage: int
    phase: int
    piece: int
    needed: int
    sent: int


@lru_cache(maxsize=4096)
def held(kind: PipelineSchedule, stage: int, stages: int, micro_batches: int, chunks: int) -> Ints:
    """[chunks] activations that a stage holds when it holds most of them."""
    rows = kind.order(stage, stages, micro_batches, chunks)
    last = _WEIGHT if kind.splits_backward else _BACKWARD
    change = np.where(rows[:, 0] == _FORWARD, 1, np.where(rows[:, 0] == last, -1, 0))
    fullest = int(np.argmax(np.cumsum(change))) + 1
    until = slice(0, fullest)
    return np.bincount(rows[until, 1], change[until], chunks).astype(np.int64)


class Moments(NamedTuple):
    """Moments of the stages of a pipeline, of those that are alike one."""

    held: Floats  # [stages, moments, chunks] micro-batches that a stage holds, the one at work among them
    step: Ints  # [stages, moments] phase · chunks + chunk
    is_late: (
        Bools  # [stages, moments] whether the activations of a micro-batch were given back before
    )


def moments(kind: PipelineSchedule, stages: int, micro_batches: int, chunks: int) -> Moments:
    """Once a pipeline is full, more micro-batches bring no other moments, unless all forward steps come first."""
    if not kind.separates_phases:
        micro_batches = min(micro_batches, _enough(kind, stages))
    return moments_of(kind, stages, micro_batches, chunks)


@lru_cache(maxsize=4096)
def moments_of(kind: PipelineSchedule, stages: int, micro_batches: int, chunks: int) -> Moments:
    """Those of just so many micro-batches."""
    last = _WEIGHT if kind.splits_backward else _BACKWARD
    found = []
    for stage in range(stages):
        rows = kind.order(stage, stages, micro_batches, chunks)
        change = np.where(rows[:, 0] == _FORWARD, 1, np.where(rows[:, 0] == last, -1, 0))
        each = np.zeros((len(rows), chunks), dtype=np.int64)
        each[np.arange(len(rows)), rows[:, 1]] = change
        held = np.cumsum(each, axis=0) - np.minimum(each, 0)
        late = np.arange(len(rows)) > np.argmax(change < 0)
        table = _distinct(np.column_stack([held, rows[:, 0] * chunks + rows[:, 1], late]))
        if chunks == 1:  # of one step the moment at which most is held is the fullest
            table = _distinct(table[::-1], 1)
        found.append(table)
    most = max(map(len, found))
    table = np.stack([np.pad(rows, ((0, most - len(rows)), (0, 0)), "edge") for rows in found])
    return Moments(table[..., :chunks].astype(np.float64), table[..., chunks], table[..., -1] > 0)


def _distinct(table: Ints, ignored: int = 0) -> Ints:
    """The different rows, ascending; of those that differ in the first columns alone, which are ignored, the first."""
    columns = table[:, ignored:]
    order = np.lexsort(columns.T[::-1])
    ordered = columns[order]
    is_new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    return np.asarray(table[order[is_new]])


@lru_cache(maxsize=1024)
def filling(kind: PipelineSchedule, stages: int, chunks: int) -> float:
    count = _enough(kind, stages)
    before = [_alone(kind, stage, stages, count, chunks)[0] for stage in range(stages)]
    return sum(before) / (stages * chunks)


@lru_cache(maxsize=1024)
def lone_passes(kind: PipelineSchedule, stages: int, chunks: int) -> float:
    count = _enough(kind, stages)
    return max(sum(_alone(kind, s, stages, count, chunks)) / 2.0 for s in range(stages))


def _enough(kind: PipelineSchedule, stages: int) -> int:
    """Micro-batches that fill a pipeline."""
    few = range(_ROUNDS * stages, 2 * _ROUNDS * stages + 1)
    return next((count for count in few if kind.fits(stages, count)), few.start)


def _alone(
    kind: PipelineSchedule, stage: int, stages: int, count: int, chunks: int
) -> tuple[int, int]:
    """Forward steps before the first backward step, backward steps after the last forward step."""
    phase = kind.order(stage, stages, count, chunks)[:, 0]
    first = int(np.argmax(phase == _BACKWARD))
    last = len(phase) - int(np.argmax(phase[::-1] == _FORWARD))
    return int((phase[:first] == _FORWARD).sum()), int((phase[last:] == _BACKWARD).sum())


def seconds(kind: PipelineSchedule, p: Pipelines) -> Floats:
    """[plans] until the last step is done. Long pipelines are run in part, and go on as they did."""
    low = _enough(kind, p.stages)
    high = low + p.stages
    out = np.zeros(len(p.count))
    for count in np.unique(p.count).tolist():
        rows = np.flatnonzero(p.count == count)
        if count <= high:
            out[rows] = _run(kind, p, rows, int(count))
            continue
        few, more = (_run(kind, p, rows, n) for n in (low, high))
        out[rows] = few + (count - low) * (more - few) / (high - low)
    return out


def _run(kind: PipelineSchedule, p: Pipelines, rows: Ints, count: int) -> Floats:
    """[plans] of those in `rows`, with so many micro-batches."""
    work = [list(column[rows].T) for column in (p.forward, p.backward, p.weight)]
    send = list(p.send[rows].T)
    clock = [np.zeros(len(rows)) for _ in range(p.stages)]
    done: list[Floats] = []
    for turn in in_turn(kind, p.stages, count, p.chunks):
        begin = clock[turn.stage]
        if turn.needed >= 0:
            there = done[turn.needed]
            begin = np.maximum(begin, there + send[turn.sent] if turn.sent >= 0 else there)
        clock[turn.stage] = begin + work[turn.phase][turn.piece]
        done.append(clock[turn.stage])
    return np.asarray(np.max(clock, axis=0))


@lru_cache(maxsize=64)
def in_turn(
    kind: PipelineSchedule, stages: int, micro_batches: int, chunks: int
) -> tuple[Turn, ...]:
    """All steps of a pipeline, each after those it waits for; `PlanError` where stages wait for each other."""
    pieces = kind.pieces(stages, chunks)
    orders = [kind.order(s, stages, micro_batches, chunks).tolist() for s in range(stages)]
    number: dict[tuple[int, int, int], int] = {}
    turns: list[Turn] = []
    at = [0] * stages
    table = pieces.of.tolist()
    while len(turns) < sum(map(len, orders)):
        before = len(turns)
        for stage, order in enumerate(orders):
            while at[stage] < len(order):
                phase, chunk, micro = order[at[stage]]
                piece = table[chunk][stage]
                source, sent = _waits(phase, piece, pieces.count)
                if source is not None and (*source, micro) not in number:
                    break
                needed = -1 if source is None else number[*source, micro]
                number[phase, piece, micro] = len(turns)
                if (
                    kind.joins_gradients
                    and phase == _WEIGHT
                    and order[at[stage] - 1] == [_BACKWARD, chunk, micro]
                ):
                    number[_BACKWARD, piece, micro] = len(turns)
                turns.append(Turn(stage, phase, piece, needed, sent))
                at[stage] += 1
        if len(turns) == before:
            waiting = [order[i : i + 1] for order, i in zip(orders, at, strict=True)]
            raise PlanError(f"schedule {kind.name!r} is in a deadlock: stages wait at {waiting}.")
    return tuple(turns)


def _waits(phase: int, piece: int, count: int) -> tuple[tuple[int, int] | None, int]:
    """Phase and piece of the step that a step waits for, and the number of the send between their pieces."""
    if phase == _FORWARD:
        return (None, -1) if piece == 0 else ((_FORWARD, piece - 1), piece - 1)
    if phase == _WEIGHT:
        return (_BACKWARD, piece), -1
    if piece == count - 1:
        return (_FORWARD, piece), -1
    return (_BACKWARD, piece + 1), piece
