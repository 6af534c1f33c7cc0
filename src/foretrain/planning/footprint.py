"""Memory of many plans at once: what the fullest stage of each holds at its fullest.

Weights and their states are the same for plans that split them alike, activations for plans that run the same blocks
in the same order: each is worked out once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.headroom import fill
from foretrain.planning.choices import COLUMNS
from foretrain.planning.plan_batch import PlanBatch


def peak_bytes(fleet: PlanBatch) -> tuple[Floats, Floats]:
    """(bytes that the allocator holds on the stage with the least room, bytes that are usable there)."""
    held, room = held_bytes(fleet), stage_room(fleet)
    fullest = np.argmax(fill(held, room[None, :]), axis=1)
    return held[np.arange(len(held)), fullest], room[fullest]


def stage_room(fleet: PlanBatch) -> Floats:
    """[stages] bytes that are usable on the smallest device of each."""
    return np.asarray(np.where(fleet.kinds, fleet.task.usable_bytes[None, :], np.inf).min(axis=1))


def held_bytes(fleet: PlanBatch) -> Floats:
    """[plans, stages] what the allocator holds at its fullest: the same in whatever order ranks are counted."""
    names = [name for name in COLUMNS if name != "order"]
    columns = np.stack([getattr(fleet.choices, name) for name in names])
    key = (columns.tobytes(), fleet.share.tobytes(), fleet.behind.tobytes())
    known = fleet.layers.held.get(key)
    if known is None:
        known = fleet.layers.held[key] = _held(fleet)
    return known


def _held(fleet: PlanBatch) -> Floats:
    runtime, choices = fleet.task.runtime, fleet.choices
    lean, holds = fleet.distinct(fleet.weights, choices.zero, choices.offload, choices.buckets)
    kept, gradients, unsplit = (each[holds] for each in static(lean))
    loose = 1.0 + runtime.memory.held_share(exchanges=bool(choices.tp[0] > 1))
    busy, runs = fleet.distinct(fleet.rows, choices.schedule, fleet.leaves)
    work = _activations(busy)
    early, late = work.early[runs] * loose, np.maximum(work.late[runs], unsplit) * loose
    if runtime.gradients.frees_gradients:
        # none is there before the first backward step has given back a micro-batch's activations
        return np.asarray(kept + np.maximum(early, late + gradients))
    return np.asarray(kept + np.maximum(early, late) + gradients)


def static(fleet: PlanBatch) -> tuple[Floats, Floats, Floats]:
    """[plans, stages] weights, optimizer states and buffers; gradients; those that are whole until they are reduced."""
    states, away, bucket = fleet.task.states, fleet.is_offloaded, _buckets(fleet)
    none = np.zeros((len(fleet.choices), fleet.stages))
    groups = [fleet.weights_of(kind) for kind in fleet.kinds_held]
    kept = (states.weights(w) + states.optimizer(w, away) + states.update_copies(w, away) for w in groups)  # fmt: skip
    total = sum(kept, none) + states.staging(groups, bucket) + _gathered(fleet)
    gradients = sum(map(states.gradients, groups), none)
    return np.asarray(total), np.asarray(gradients), states.unreduced(groups, bucket) + none


def _gathered(fleet: PlanBatch) -> Floats:
    """[plans, stages] blocks that are whole for a while."""
    states, none = fleet.task.states, np.zeros((len(fleet.choices), fleet.share.shape[1]))
    blocks = [fleet.block_weights(kind) for kind in fleet.kinds_held]
    weights, gradients = (
        np.asarray(sum(map(each, blocks), none)) for each in (states.gathered, states.reducing)
    )
    return _largest(fleet, weights, states.blocks_gathered) + _largest(fleet, gradients, 1)


def _largest(fleet: PlanBatch, blocks: Floats, count: int) -> Floats:
    """[plans, blocks] → [plans, stages] the largest so many blocks of a stage, together."""
    share = fleet.stage_share
    order = np.argsort(-blocks, axis=1)
    sizes = np.take_along_axis(blocks, order, axis=1)[:, None, :]  # [plans, 1, blocks]
    several = np.moveaxis(share[:, order], 0, 1)  # [plans, stages, blocks]
    taken = np.minimum(np.cumsum(several, axis=2), count)
    taken[:, :, 1:] -= taken[:, :, :-1].copy()
    return np.asarray((taken * sizes).sum(axis=2))


def _buckets(fleet: PlanBatch) -> Floats:
    """[plans, 1] bytes of a bucket."""
    limits = [fleet.task.states.bucket_limits(b)[1] for b in fleet.choices.palette.buckets]
    return np.array(limits)[fleet.choices.buckets][:, None]


class _Activations(NamedTuple):
    """[plans, stages] of all micro-batches in flight, at work."""

    early: Floats  # until backward has given back those of a micro-batch
    late: Floats


def _activations(fleet: PlanBatch) -> _Activations:
    layers = fleet.layers
    plain, inverse = fleet.distinct(fleet.rows, fleet.leaves)
    stays = np.where(plain.leaves, 0.0, 1.0)[:, None]
    saved, ahead, back, apart = (
        _last(plain.by_chunk(column), inverse)
        for column in (
            plain.by_part(layers.saved) * stays,
            workspace(plain, layers.forward_workspace),
            workspace(plain, layers.backward_workspace),
            workspace(plain, layers.backward_workspace, frees=False),
        )
    )
    early, late = (np.zeros((fleet.stages, len(fleet.choices))) for _ in range(2))
    stages = np.arange(fleet.stages)[:, None]
    for number in np.unique(fleet.choices.schedule).tolist():
        kind = fleet.schedule(number)
        work = np.concatenate([ahead, apart if kind.splits_backward else back, back], axis=1)
        mine = np.flatnonzero(fleet.choices.schedule == number)
        counts = fleet.counts[mine].astype(np.int64).tolist()
        tables = {n: kind.moments(fleet.stages, fleet.chunks, n) for n in dict.fromkeys(counts)}
        groups: dict[int, list[int]] = {}  # many counts have the same moments
        for row, count in zip(mine.tolist(), counts, strict=True):
            groups.setdefault(id(tables[count]), []).append(row)
        for table in tables.values():
            rows = groups.pop(id(table), None)
            if rows is None:
                continue
            held, step, is_late = table
            alive = held @ saved[..., rows]  # [stages, moments, plans]
            alive += work[..., rows][stages, step]
            early[:, rows] = (alive * ~is_late[..., None]).max(axis=1)
            late[:, rows] = (alive * is_late[..., None]).max(axis=1)
    keeps = saved.any(axis=1)
    early, late = np.where(keeps, early, np.maximum(early, late)), np.where(keeps, late, 0.0)
    return _Activations(early.T, late.T)


def _last(chunks: Floats, rows: Ints) -> Floats:
    """[plans, chunks, stages] → [stages, chunks, plans], of which some stand for others."""
    return np.ascontiguousarray(chunks.transpose(2, 1, 0))[..., rows]


def workspace(fleet: PlanBatch, column: Floats, frees: bool = True) -> Floats:
    """[plans, parts] the most that a block needs at work beside what all blocks of its part keep: while one is at
    work, those behind it keep nothing (yet, or any more; input gradients by themselves free nothing). What leaves for
    host memory is there while it is copied."""
    needed, saved = column[fleet.rows], fleet.layers.saved[fleet.rows]
    leaving = np.where(fleet.leaves[:, None], saved, 0.0)
    saved = saved - leaving
    worst = np.zeros((len(needed), len(fleet.share)))
    for block in range(fleet.share.shape[1]):
        here = np.flatnonzero(fleet.share[:, block])
        free = saved @ fleet.behind[here, block].T if frees else 0.0
        worst[:, here] = np.maximum(worst[:, here], needed[:, block, None] - free)
    if not leaving.any():
        return worst
    copied = np.where(fleet.share[None] > 0, leaving[:, None, :], 0.0).max(axis=2)
    return np.asarray(worst + copied)
