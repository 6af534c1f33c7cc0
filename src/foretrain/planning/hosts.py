"""Hosts that issue kernels: steps take no less than that, where they wait for what a step receives, or all of them
together, where they run ahead."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Bools, Floats
from foretrain.planning.plan_batch import PlanBatch
from foretrain.planning.sends import Sends


def waits(f: PlanBatch) -> bool:
    """Whether hosts wait for what their stage receives."""
    return f.task.runtime.host.host_blocks_on_pipeline and f.stages > 1


def issue_seconds(f: PlanBatch, sends: Sends) -> list[Floats] | None:
    """[plans, parts] seconds in which hosts issue forward, backward and weight-gradient kernels."""
    layers = f.layers
    if not layers.host_forward.any():
        return None
    host = [f.by_part(c) for c in (layers.host_forward, layers.host_backward, layers.host_weight)]
    if layers.host_copied.any():
        is_split = (f.choices.zero >= 3)[:, None]
        out, back = (f.by_part(layers.host_copied[..., way]) * is_split for way in (0, 1))
        host = [host[0] + out, host[1] + out + back, host[2] + back]
    if _is_polling(f, sends):
        host = [h + f.by_part(layers.late[..., phase]) for phase, h in enumerate(host)]
    return host


def _is_polling(f: PlanBatch, sends: Sends) -> bool:
    """Whether hosts poll the network, which makes them late."""
    return f.task.runtime.network_polling is not None and sends.is_far


def issued(parts: list[Floats], f: PlanBatch, sends: Sends, puts_off: Bools) -> list[Floats]:
    """No faster than hosts issue kernels, step by step where a host waits for what a step receives."""
    host = issue_seconds(f, sends) if waits(f) else None
    if host is None:
        return parts
    if not f.task.runtime.pipeline.overlaps_pipeline:  # while a stage sends, its host goes on
        ahead, back = sends.leaving(sends.seconds)
        host[0], host[1] = np.maximum(host[0] - ahead, 0.0), np.maximum(host[1] - back, host[2])
    slow = [np.maximum(device, issue) for device, issue in zip(parts, host, strict=True)]
    split = np.maximum(parts[1] - parts[2], host[1] - host[2]) + slow[2]
    slow[1] = np.where(puts_off[:, None], split, slow[1])
    # parts that lie behind another on its stage receive nothing going forward, as the first, nor those before them going
    # back, as the last: hosts need not wait then
    turn = host[0] + host[1]
    near = np.flatnonzero(f.pieces.hops == 0)
    unfed, unreturned = [0, *near + 1], [*near, turn.shape[1] - 1]
    first = turn[:, unfed] - slow[1][:, unfed]
    last = turn[:, unreturned] - slow[0][:, unreturned]
    slow[0][:, unfed] = np.maximum(first, parts[0][:, unfed])
    slow[1][:, unreturned] = np.maximum(last, parts[1][:, unreturned])
    lead = _lead(f, sends)[:, None]
    return [slow[0] + lead, slow[1] + lead, slow[2]]


def _lead(f: PlanBatch, sends: Sends) -> Floats:
    """[plans] seconds by which a host has to be ahead of its devices: what a block asks for less what it falls behind,
    which is counted with all that is issued."""
    (late, *_), lead = _behind(f, sends)
    return np.asarray((lead[..., 0] - np.maximum(late, 0.0)).max(axis=1).clip(min=0.0))


def _behind(f: PlanBatch, sends: Sends) -> tuple[list[Floats], Floats]:
    """[plans, blocks] seconds that hosts fall behind devices in forward, backward and weight-gradient work of a block,
    and [plans, blocks, 3] by which they have to be ahead of it."""
    layers, rows = f.layers, f.rows
    columns = (
        (layers.forward, layers.host_forward),
        (layers.backward, layers.host_backward),
        (layers.weight, layers.host_weight),
    )
    behind = [host[rows] - device[rows].max(axis=1) for device, host in columns]
    if not _is_polling(f, sends):
        return behind, layers.lead[rows]
    late = layers.late[rows]
    return [each + late[..., phase] for phase, each in enumerate(behind)], layers.late_lead[rows]


def running_ahead(f: PlanBatch, sends: Sends) -> Floats:
    """[plans, stages] seconds that hosts need for a micro-batch where they wait for nobody."""
    host = None if waits(f) else issue_seconds(f, sends)
    if host is None:
        return np.zeros((len(f.choices), f.stages))
    return f.summed(host[0] + host[1])


def leads(f: PlanBatch, sends: Sends) -> list[Floats]:
    """[plans, parts] by how much hosts have to be ahead of forward, backward and weight-gradient steps: of blocks in a
    row, each by its own lead and by what hosts fall behind over those before it."""
    late, leads = _behind(f, sends)
    found = []
    for phase, each in enumerate(late):
        lead = np.zeros((len(f.rows), len(f.share)))
        behind = np.zeros_like(lead)
        blocks = range(f.share.shape[1])
        for block in blocks if phase == 0 else reversed(blocks):
            count = f.share[:, block]
            own = each[:, block, None]
            again = np.maximum(count - 1.0, 0.0) * np.maximum(own, 0.0)
            ahead = behind + leads[:, block, phase, None] + again
            lead = np.where(count > 0, np.maximum(lead, ahead), lead)
            behind += count * own
        found.append(lead)
    return found
