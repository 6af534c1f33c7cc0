"""Layers shared out unevenly: for every plan the split whose slowest stage is soonest done, of those that fit.

Stages differ by the devices they run on, by the embedding or head they hold besides, and by how many micro-batches
they keep. What a stage takes and holds grows by the same for every layer more, so that whole numbers of layers are
found by bisection over the time of the slowest stage, for all plans at once. That time is a bound as well: whatever the
split, a step is no faster than its slowest stage is through with all micro-batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from foretrain.arrays import Bools, Floats, Ints
from foretrain.compile.passes.place import layer_blocks
from foretrain.plan.schedules.closed_form import Pipelines
from foretrain.planning.footprint import held_bytes, stage_room
from foretrain.planning.layers import Layers, Places
from foretrain.planning.plan_batch import PlanBatch
from foretrain.planning.task import Task

_HALVINGS = 60
_MORE = 8
"""Layers by which the fastest stage may go beyond what is balanced."""
_GAIN = 1e-4
"""Share of the slowest stage's time that another split has to save, where the one there is fits."""


class Distributed(NamedTuple):
    """What is shared out: `layers`, so many; and what stays with the first and the last part."""

    layers: Floats  # [rows of places] repetitions
    first: Floats
    last: Floats

    @property
    def total(self) -> int:
        return int(self.layers.sum())


class Splits(NamedTuple):
    """Of some plans: how many layers every part has, and seconds that a step takes at least with any split."""

    plans: Ints
    counts: Ints  # [plans, parts]
    bound: Floats


def distributed(task: Task, places: Places) -> Distributed:
    """Repetitions of blocks by the compiler's own rule (`compile.passes.place`)."""
    main = layer_blocks(task.workload.model)
    low, high = min(main), max(main)
    found = np.zeros((3, len(places.examples)))
    for block, rows in enumerate(places.rows):
        kind = 1 if block < low else 2 if block > high else 0
        for row in rows:
            found[kind, row] += 1.0
    return Distributed(*found)


def whole_work(task: Task, known: Layers) -> Floats:
    """[states, kinds of devices] seconds that all blocks take on one micro-batch."""
    every = sum(distributed(task, known.places), np.zeros(len(known.places.examples)))
    return np.asarray((known.forward + known.backward) @ every)


class _Stages(NamedTuple):
    """[plans, stages] seconds, or bytes: of what stays there, and of a layer."""

    fixed: Floats
    each: Floats

    def take(self, rows: Ints) -> _Stages:
        """Some of the plans."""
        return _Stages(self.fixed[rows], self.each[rows])


def splits(fleet: PlanBatch, limit: float, fit: Bools | None = None) -> Splits:
    """Of plans that could be faster than a limit, or that could fit, if their layers were shared out otherwise. `fit`:
    those that are known to fit as they are."""
    shared = distributed(fleet.task, fleet.layers.places)
    none = Splits(np.zeros(0, np.int64), np.zeros((0, len(fleet.share)), np.int64), np.zeros(0))
    if fleet.stages == 1 or shared.total < len(fleet.share):
        return none
    least, now = _least(fleet, shared), _layers_now(fleet, shared)
    few, of = fleet.distinct(fleet.rows)
    passes = _passes(few, shared)
    seconds = _work(passes)
    _, slowest = balanced(seconds, np.full(seconds.each.shape, shared.total), least, shared.total)
    turn = (seconds.fixed + seconds.each * now).max(axis=1)
    is_better = (slowest < turn * (1.0 - _GAIN)) | _are_unlike(seconds)
    is_worth = fleet.counts * slowest[of] < limit
    mine = np.flatnonzero(is_worth if fit is None else is_worth & (is_better[of] | ~fit))
    if not len(mine):
        return none
    held, room = _bytes(fleet, shared).take(mine), stage_room(fleet)[None, :]
    fits = (held.fixed + held.each * now <= room).all(axis=1)
    chosen = is_better[of[mine]] | ~fits
    mine, held = mine[chosen], _Stages(held.fixed[chosen], held.each[chosen])
    if not len(mine):
        return none
    caps = np.floor((room - held.fixed) / np.maximum(held.each, 1.0) + 1e-9)
    caps = np.clip(caps, -1.0, shared.total)
    has_room = (caps >= least).all(axis=1) & (caps.sum(axis=1) >= shared.total)
    mine, caps = mine[has_room], caps[has_room]
    if not len(mine):
        return none
    passes = tuple(_Stages(each.fixed[of[mine]], each.each[of[mine]]) for each in passes)
    asked = _Asked(fleet.take(mine), passes, _work(passes), caps, least, shared.total)
    counts, slowest = balanced(asked.seconds, caps, least, shared.total)
    bound = fleet.counts[mine] * slowest
    worth = np.flatnonzero(bound < limit)
    if not len(worth):
        return none
    mine, counts, bound = mine[worth], counts[worth], bound[worth]
    quick = _soonest(asked.take(worth), slowest[worth])
    is_new = np.concatenate([np.ones(len(mine), np.bool_), (counts != quick).any(axis=1)])
    both = np.concatenate([counts, quick])
    plans, bound = np.tile(mine, 2), np.tile(bound, 2)
    is_new &= (both != now).any(axis=1)
    return Splits(plans[is_new], _of_parts(fleet, both[is_new]), bound[is_new])


def _work(passes: tuple[_Stages, ...]) -> _Stages:
    """Forward and backward."""
    forward, backward = passes[:2]
    return _Stages(forward.fixed + backward.fixed, forward.each + backward.each)


def _are_unlike(seconds: _Stages) -> Bools:
    """[plans] whether some stages run faster than others."""
    return np.asarray(seconds.each.min(axis=1) < seconds.each.max(axis=1) * (1.0 - _GAIN))


def _least(fleet: PlanBatch, shared: Distributed) -> Ints:
    """[stages] layers that each has at least: one of every part, but for ends that hold something else."""
    stage_of = fleet.pieces.stage_of
    parts = np.ones(len(stage_of), dtype=np.int64)
    parts[0] -= int(shared.first.any())
    parts[-1] -= int(shared.last.any())
    return np.bincount(stage_of, weights=parts, minlength=fleet.stages).astype(np.int64)


def _layers_now(fleet: PlanBatch, shared: Distributed) -> Ints:
    """[stages] layers of each, as they are placed without a word."""
    return np.asarray(np.rint(fleet.stage_share @ (shared.layers > 0)).astype(np.int64))


def _passes(fleet: PlanBatch, shared: Distributed) -> tuple[_Stages, ...]:
    """… that kernels and collectives of blocks take forward, backward and, of that, for weight gradients, on the slowest
    device of every stage."""
    layers = fleet.layers
    return tuple(
        _of_stages(fleet, shared, each) for each in (layers.forward, layers.backward, layers.weight)
    )


def _of_stages(fleet: PlanBatch, shared: Distributed, seconds: Floats) -> _Stages:
    work = seconds[fleet.rows]  # [plans, kinds, blocks]
    each = work @ (shared.layers / shared.total)
    first, last = work @ shared.first, work @ shared.last
    stage_of = fleet.pieces.stage_of
    fixed = np.zeros((*each.shape, fleet.stages))
    fixed[:, :, stage_of[0]] += first
    fixed[:, :, stage_of[-1]] += last
    runs_on = fleet.kinds.T[None]  # [1, kinds, stages]
    return _Stages(
        np.where(runs_on, fixed, 0.0).max(axis=1),
        np.where(runs_on, each[:, :, None], 0.0).max(axis=1),
    )


def _bytes(fleet: PlanBatch, shared: Distributed) -> _Stages:
    """… that devices hold: what one and two layers in every part make of it."""
    ends = np.zeros_like(fleet.share)
    ends[0] += shared.first
    ends[-1] += shared.last
    layer = shared.layers / shared.total
    once, twice = (
        held_bytes(
            replace(fleet, share=ends + count * layer[None, :], behind=_behind(fleet, layer, count))
        )
        for count in (1.0, 2.0)
    )
    per_part = twice - once
    return _Stages(once - per_part, per_part / fleet.chunks)


def _behind(fleet: PlanBatch, layer: Floats, count: float) -> Floats:
    """What lies behind the last of a block in a part, where that is so many layers."""
    found = np.zeros_like(fleet.behind)
    found[:] = (layer * max(count - 1.0, 0.0))[None, None, :]
    return found


def balanced(seconds: _Stages, room: Floats, least: Ints, total: int) -> tuple[Ints, Floats]:
    """[plans, stages] layers that the slowest stage is soonest done with, none more than there is room for; and seconds
    of it, infinite where there is not room for all."""
    fixed, each = seconds
    able = (room >= least).all(axis=1) & (room.sum(axis=1) >= total)
    low = np.zeros(len(each))
    high = (fixed + each * np.maximum(np.minimum(room, total), least)).max(axis=1)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        done = _within(seconds, room, middle)
        enough = (done >= least).all(axis=1) & (done.sum(axis=1) >= total)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    counts = _whole(np.maximum(_within(seconds, room, high), least))
    _give_back(counts, seconds, least, np.where(able, total, counts.sum(axis=1)))
    slowest = (fixed + each * counts).max(axis=1)
    return counts, np.where(able, slowest, np.inf)


class _Asked(NamedTuple):
    """Plans whose layers are to be shared out."""

    fleet: PlanBatch
    passes: tuple[_Stages, ...]
    seconds: _Stages
    room: Floats
    least: Ints
    total: int

    def take(self, rows: Ints) -> _Asked:
        """Some of the plans."""
        few = tuple(each.take(rows) for each in (*self.passes, self.seconds))
        return _Asked(self.fleet.take(rows), few[:-1], few[-1], self.room[rows], *self[4:])


def _soonest(asked: _Asked, slowest: Floats) -> Ints:
    """[plans, stages] layers with which the pipeline is soonest through, by its schedule: where devices differ, those
    that are fast are given more than would be balanced, as all fill and drain it."""
    each = asked.seconds.each
    able = np.isfinite(slowest)
    best, found = np.full(len(each), np.inf), np.zeros(each.shape, dtype=np.int64)
    for more in range(_MORE):
        limit = np.where(able, slowest, 0.0) + more * each.min(axis=1)
        counts = _whole(np.maximum(_within(asked.seconds, asked.room, limit), asked.least))
        enough = np.where(able, asked.total, counts.sum(axis=1))
        _give_back(counts, asked.seconds, asked.least, enough)
        through = _through(asked, counts)
        is_sooner = through < best * (1.0 - 1e-9)
        best, found[is_sooner] = np.where(is_sooner, through, best), counts[is_sooner]
    return found


def _through(asked: _Asked, counts: Ints) -> Floats:
    """[plans] seconds of the pipeline, without what is sent."""
    f, stage_of = asked.fleet, asked.fleet.pieces.stage_of
    parts = _of_parts(f, counts)
    columns = []
    for fixed, each in asked.passes:
        column = each[:, stage_of] * parts
        column[:, 0] += fixed[:, stage_of[0]]
        if stage_of[-1] != stage_of[0]:
            column[:, -1] += fixed[:, stage_of[-1]]
        columns.append(column)
    forward, backward, weight = columns
    seconds = np.zeros(len(parts))
    for number in np.unique(f.choices.schedule).tolist():
        rows, kind = np.flatnonzero(f.choices.schedule == number), f.schedule(number)
        later = weight[rows] if kind.splits_backward else np.zeros_like(weight[rows])
        none = np.zeros((len(rows), parts.shape[1] - 1))
        run = Pipelines(
            f.stages, forward[rows], backward[rows] - later, later, none, f.counts[rows], none
        )
        seconds[rows] = kind.seconds(run)
    return seconds


def _within(seconds: _Stages, room: Floats, limit: Floats) -> Floats:
    """Layers that are done in time."""
    in_time = (limit[:, None] - seconds.fixed) / np.maximum(seconds.each, 1e-30)
    return np.asarray(np.clip(np.floor(in_time + 1e-9), 0.0, room))


def _whole(counts: Floats) -> Ints:
    return counts.astype(np.int64)


def _give_back(counts: Ints, seconds: _Stages, least: Ints, total: Ints) -> None:
    """Layers that are too many are taken from slow devices, and there from the stage that takes longest."""
    slow = seconds.each / seconds.each.max(axis=1, keepdims=True)
    while True:
        over = np.flatnonzero(counts.sum(axis=1) > total)
        if not len(over):
            return
        taken = seconds.fixed[over] + seconds.each[over] * counts[over]
        first = 1e6 * np.round(slow[over], 6) + taken / taken.max(axis=1, keepdims=True)
        counts[over, np.argmax(np.where(counts[over] > least, first, -1.0), axis=1)] -= 1


def _of_parts(fleet: PlanBatch, stages: Ints) -> Ints:
    """[plans, parts] of layers of stages: the same in every chunk, those left over away from the ends of the model."""
    last = len(fleet.share) - 1
    parts = np.zeros((len(stages), last + 1), dtype=np.int64)
    for stage in range(fleet.stages):
        mine = fleet.pieces.of[:, stage].tolist()
        each, rest = np.divmod(stages[:, stage], fleet.chunks)
        for place, part in enumerate(sorted(mine, key=lambda part: (part in (0, last), part))):
            parts[:, part] = each + (place < rest)
    return parts
