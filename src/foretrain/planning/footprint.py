"""Memory of many plans at once: what the fullest stage of each holds at its fullest.

Weights and their states are the same for plans that split them alike, activations for plans that run the same blocks
in the same order: each is worked out once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Bools, Floats
from foretrain.cluster.headroom import fill
from foretrain.model.optimizer import MASTER_BYTES
from foretrain.plan.schedules.interleaved import warm_up
from foretrain.planning.fleet import KINDS, Fleet


def peak_bytes(fleet: Fleet) -> tuple[Floats, Floats]:
    """(bytes that the allocator holds on the stage with the least room, bytes that are usable there)."""
    runtime, choices = fleet.task.runtime, fleet.choices
    lean, holds = fleet.distinct(fleet.weights, choices.zero, choices.offload, choices.buckets)
    static, gradients, unsplit = (each[holds] for each in (*_static(lean), _unsplit(lean)))
    busy, runs = fleet.distinct(fleet.rows, choices.schedule)
    work = _activations(busy)
    loose = 1.0 + runtime.fragmentation
    loose += runtime.exchange_fragmentation if choices.tp[0] > 1 else 0.0
    alive = np.maximum(work.alive[runs], unsplit) * loose
    if runtime.frees_gradients:
        # none is there before the first backward step has given back a micro-batch's activations
        first = np.maximum(alive, alive - work.first[runs] * loose + gradients)
        held = static + np.where(work.refills[runs], alive + gradients, first)
    else:
        held = static + alive + gradients
    room = np.where(fleet.kinds, fleet.task.usable_bytes[None, :], np.inf).min(axis=1)
    fullest = np.argmax(fill(held, room[None, :]), axis=1)
    return held[np.arange(len(held)), fullest], room[fullest]


def _static(fleet: Fleet) -> tuple[Floats, Floats]:
    """[plans, stages] weights, optimizer states and buffers; gradients."""
    task, runtime = fleet.task, fleet.task.runtime
    precision, optimizer = task.workload.precision, task.workload.optimizer
    gradient = runtime.gradient_bytes or precision.gradient_bytes
    has_master = precision.has_master_weights and optimizer.has_update
    offloads = np.array(["optimizer" in o for o in fleet.choices.palette.offload])
    keeps_states = ~offloads[fleet.choices.offload][:, None]
    total = np.zeros((len(fleet.choices), fleet.stages))
    gradients = np.zeros_like(total)
    for kind in KINDS:
        everything = fleet.by_stage(fleet.elements("elements", kind))
        if not everything.any():
            continue
        elements = fleet.by_stage(fleet.elements("trained", kind))
        sent, refreshed = (
            fleet.by_stage(fleet.elements(name, kind)) for name in ("sent", "refreshed")
        )
        optimizer_parts, gradient_parts, weight_parts = (
            fleet.parts_of(kind, role)[:, None] for role in (1, 2, 3)
        )
        is_master = (weight_parts > 1) & has_master & runtime.shards_master
        kept = elements
        if has_master and not runtime.keeps_transposed:
            kept = np.where(is_master, elements, refreshed)
        weight = np.where(is_master, MASTER_BYTES, precision.weight_bytes)
        state = optimizer.state_bytes + np.where(has_master & ~is_master, MASTER_BYTES, 0.0)
        states = elements * np.where(keeps_states, state, 0.0) / optimizer_parts
        frozen = (sent - refreshed) * precision.weight_bytes
        total += (kept * weight + frozen) / weight_parts + states
        total += np.where(optimizer_parts > 1, runtime.update_copies * states, 0.0)
        total += _buffers(fleet, kind, elements, gradient)
        reached = fleet.by_stage(fleet.elements("touched", kind))
        gradients += reached * gradient / gradient_parts
    return total, gradients


def _buffers(fleet: Fleet, kind: int, elements: Floats, gradient: float) -> Floats:
    """Blocks that are whole for a while, and what reductions keep beside gradients."""
    runtime, precision = fleet.task.runtime, fleet.task.workload.precision
    is_gathered = (fleet.parts_of(kind, 3) > 1)[:, None]
    sent = _largest(fleet, fleet.elements("sent", kind), 1 + runtime.prefetched_blocks)
    held = np.where(is_gathered, sent * precision.weight_bytes, 0.0)
    if runtime.overlaps_gradients:
        made = precision.gradient_bytes
        formats = made + (gradient if gradient != made else 0.0)
        largest = _largest(fleet, fleet.elements("trained", kind), 1)
        held += np.where((fleet.parts_of(kind, 2) > 1)[:, None], largest * formats, 0.0)
    if fleet.axes_of(kind):
        held += runtime.reducer_copies * elements * precision.gradient_bytes
        limit = _bucket_limits(fleet)[:, None]
        held += runtime.staging_buckets * np.minimum(limit, elements * gradient)
    return held


def _largest(fleet: Fleet, column: Floats, count: int) -> Floats:
    """[plans, stages] the largest so many blocks of a stage, together."""
    blocks = column[fleet.rows]
    share = fleet.share.reshape(fleet.chunks, fleet.stages, -1).sum(axis=0)
    order = np.argsort(-blocks, axis=1)
    sizes = np.take_along_axis(blocks, order, axis=1)[:, None, :]  # [plans, 1, blocks]
    several = np.moveaxis(share[:, order], 0, 1)  # [plans, stages, blocks]
    taken = np.minimum(np.cumsum(several, axis=2), count)
    taken[:, :, 1:] -= taken[:, :, :-1].copy()
    return np.asarray((taken * sizes).sum(axis=2))


def _unsplit(fleet: Fleet) -> Floats:
    """[plans, stages] gradients that are whole until they are reduced after backward, a bucket at most."""
    total = np.zeros((len(fleet.choices), fleet.stages))
    runtime = fleet.task.runtime
    if runtime.overlaps_gradients:
        return total
    size = runtime.gradient_bytes or fleet.task.workload.precision.gradient_bytes
    for kind in KINDS:
        lost = 1.0 - 1.0 / fleet.parts_of(kind, 2)
        total += fleet.by_stage(fleet.elements("trained", kind)) * lost[:, None] * size
    return np.minimum(total, _bucket_limits(fleet)[:, None])


def _bucket_limits(fleet: Fleet) -> Floats:
    runtime = fleet.task.runtime
    chosen = [runtime.bucket_bytes if b is None else b for b in fleet.choices.palette.buckets]
    return np.array(chosen)[fleet.choices.buckets]


@dataclass(frozen=True, eq=False, slots=True)
class _Activations:
    """[plans, stages]"""

    alive: Floats  # of all micro-batches in flight, at work
    first: Floats  # of the one that backward begins with
    refills: Bools  # whether others follow it


def _activations(fleet: Fleet) -> _Activations:
    layers, stages, chunks = fleet.layers, fleet.stages, fleet.chunks
    plain, inverse = fleet.distinct(fleet.rows)
    saved = plain.by_part(layers.saved).reshape(-1, chunks, stages)[inverse]
    work = np.maximum(
        _workspace(plain, layers.forward_workspace), _workspace(plain, layers.backward_workspace)
    )
    work = work.reshape(-1, chunks, stages).max(axis=1)[inverse]
    flight = _in_flight(fleet)
    alive = np.einsum("ncs,ncs->ns", saved, flight) + work
    refills = fleet.counts[:, None] * chunks > flight.sum(axis=1)
    return _Activations(alive, saved[:, -1], refills)


def _workspace(fleet: Fleet, column: Floats) -> Floats:
    """[plans, parts] the most that a block needs at work beside what all blocks of its part keep: while one is at
    work, those behind it keep nothing (yet, or any more)."""
    needed, saved = column[fleet.rows], fleet.layers.saved[fleet.rows]
    worst = np.zeros((len(needed), len(fleet.share)))
    free = np.zeros_like(worst)
    for block in range(fleet.share.shape[1] - 1, -1, -1):
        here = np.flatnonzero(fleet.share[:, block])
        asks = needed[:, block, None] - free[:, here]
        worst[:, here] = np.maximum(worst[:, here], asks)
        free[:, here] += saved[:, block, None] * fleet.share[None, here, block]
    return worst


def _in_flight(fleet: Fleet) -> Floats:
    """[plans, chunks, stages] micro-batches whose activations a stage holds at most."""
    stages, chunks, count = fleet.stages, fleet.chunks, fleet.counts
    place = np.arange(stages)
    if stages == 1:
        return np.ones((len(count), 1, 1))  # whatever the schedule: there is none
    if chunks == 1:
        names = np.array(fleet.choices.palette.schedule)[fleet.choices.schedule]
        several = np.broadcast_to((stages - place)[None, :], (len(count), stages)).astype(float)
        several = np.where((names == "zb-h1")[:, None], float(stages), several)
        several = np.where((names == "gpipe")[:, None], np.inf, several)
        return np.asarray(np.minimum(several, count[:, None]))[:, None, :]
    units = np.array([warm_up(s, stages, chunks) + 1 for s in range(stages)])
    units = np.minimum(units[None, :], (count * chunks)[:, None])
    rounds, rest = np.divmod(units, stages * chunks)
    chunk = np.arange(chunks)[None, :, None]
    extra = np.clip(rest[:, None, :] - chunk * stages, 0, stages)
    return np.asarray(rounds[:, None, :] * stages + extra)
