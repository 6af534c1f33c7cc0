"""How long pipelines take, in closed form, for many plans at once; every schedule has its own form.

A plan's parts are the pieces of its model, from the first to the last. Columns hold one plan per row:
`forward`, `backward` and `weight` are [plans, parts] seconds of one micro-batch, `send` is [plans, parts - 1] seconds
from each part to the next (0 where both lie on one stage), `count` is [plans] micro-batches.

Bounds come from max-plus algebra: a stage cannot be done before its own work and the way of the first micro-batch
to it and of the last back, and no loop of micro-batches in flight turns faster than its mean. Against running
every step in order (`tests/unit/test_search_pipelines.py`) they are off by 0.1 % in the mean for 1F1B, 1 % for the
others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Floats


@dataclass(frozen=True, eq=False, slots=True)
class Pipelines:
    """Plans that run on as many stages with as many chunks each, one per row."""

    stages: int
    forward: Floats
    backward: Floats  # both gradients, or the input's alone where `weight` holds the other
    weight: Floats
    send: Floats
    count: Floats
    met: Floats  # sends once those of other micro-batches go the other way

    @property
    def chunks(self) -> int:
        return int(self.forward.shape[1]) // self.stages


def turns(p: Pipelines, backward: Floats) -> Floats:
    """One forward and one backward in turn: the smaller of two upper bounds.

    By stage: the way to it and back, its own work, and what it waits for the first and the last micro-batch to
    come back from behind it. By the slowest loop: all stages once, then a turn of the loop for every micro-batch.
    """
    forward, count = p.forward, p.count[:, None]
    flight = np.arange(p.stages, 0.0, -1.0)[None, :]  # micro-batches under way from each stage on
    work = forward + backward
    sent, met = before(p.send), before(p.met - p.send)
    ahead = np.cumsum(work, axis=1) - work + 2.0 * sent
    whole = work.sum(axis=1, keepdims=True) + 2.0 * sent[:, -1:]
    behind = whole - ahead - work
    loop = np.maximum(work, (behind + 2.0 * (met[:, -1:] - met) + work) / flight)
    waits = np.maximum(0.0, behind - (flight - 1) * forward)
    waits += np.maximum(0.0, behind - (flight - 1) * backward)
    many = waits + flight * work + (count - flight) * loop
    few = behind + np.maximum(forward + count * backward, count * forward + backward)
    by_stage = (ahead + np.where(count <= flight, few, many)).max(axis=1)
    by_loop = whole[:, 0] + (count[:, 0] - 1) * loop.max(axis=1)
    return np.asarray(np.minimum(by_stage, by_loop))


def before(send: Floats) -> Floats:
    """[plans, parts] seconds of the sends on the way to each part."""
    return np.concatenate([np.zeros((len(send), 1)), np.cumsum(send, axis=1)], axis=1)
