"""How long a pipeline takes, in closed form, for many plans at once.

A plan's parts are its stages' chunks: part c·stages + s is chunk c of stage s. Columns hold one plan per row:
`forward`, `backward` and `weight` are [plans, parts] seconds of one micro-batch, `send` is [plans, parts - 1] seconds
from each part to the next, `count` is [plans] micro-batches.

Bounds come from max-plus algebra: a stage cannot be done before its own work and the way of the first micro-batch
to it and of the last back, and no loop of micro-batches in flight turns faster than its mean. Against running
every step in order (`tests/unit/test_search_pipelines.py`) they are off by 0.1 % in the mean for 1F1B, 1 % for the
others.
"""

from __future__ import annotations

from collections.abc import Callable
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


def seconds(kind: str, pipelines: Pipelines) -> Floats:
    """From the first forward to the last backward step under a schedule."""
    return _CLOSED_FORMS[kind](pipelines)


def _one_f_one_b(p: Pipelines) -> Floats:
    return _turns(p, p.backward + p.weight)


def _turns(p: Pipelines, backward: Floats) -> Floats:
    """One forward and one backward in turn: the smaller of two upper bounds.

    By stage: the way to it and back, its own work, and what it waits for the first and the last micro-batch to
    come back from behind it. By the slowest loop: all stages once, then a turn of the loop for every micro-batch.
    """
    forward, flight, count = p.forward, _flight(p.forward), p.count[:, None]
    work = forward + backward
    sent, met = _before(p.send), _before(p.met - p.send)
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


def _flight(stages: Floats) -> Floats:
    """[1, stages] micro-batches that 1F1B has under way from each stage on."""
    return np.arange(stages.shape[1], 0.0, -1.0)[None, :]


def _before(send: Floats) -> Floats:
    """[plans, parts] seconds of the sends on the way to each part."""
    return np.concatenate([np.zeros((len(send), 1)), np.cumsum(send, axis=1)], axis=1)


def _gpipe(p: Pipelines) -> Floats:
    """All forward steps behind the slowest stage, or the slowest send, then all backward steps."""
    backward = p.backward + p.weight
    ways = p.forward.sum(axis=1) + backward.sum(axis=1) + 2.0 * p.send.sum(axis=1)
    sent = p.send.max(axis=1, initial=0.0)
    slowest = np.maximum(p.forward.max(axis=1), sent) + np.maximum(backward.max(axis=1), sent)
    return np.asarray(ways + (p.count - 1) * slowest)


def _interleaved(p: Pipelines) -> Floats:
    """A stage's work, the first chunks ahead of it and the last ones behind it, and all sends of one micro-batch:
    chunks are only further sends away from each other, micro-batches hide none of them (and need not)."""
    if p.chunks == 1:
        return _one_f_one_b(p)
    shape = (len(p.forward), p.chunks, p.stages)
    work = (p.forward + p.backward + p.weight).reshape(shape)
    ahead = np.cumsum(work[:, 0], axis=1) - work[:, 0]
    behind = work[:, -1].sum(axis=1, keepdims=True) - np.cumsum(work[:, -1], axis=1)
    longest = (p.count[:, None] * work.sum(axis=1) + ahead + behind).max(axis=1)
    return np.asarray(longest + 2.0 * p.send.sum(axis=1))


def _zero_bubble(p: Pipelines) -> Floats:
    """Weight gradients put off fill what backward steps take to come back to the first stage."""
    place, sent, count = np.arange(p.stages)[None, :], _before(p.send), p.count[:, None]
    to = np.cumsum(p.forward, axis=1) - p.forward + sent
    back = np.cumsum(p.backward, axis=1) - p.backward + sent
    waits = np.maximum(0.0, back - np.minimum(place, count) * p.weight)
    by_stage = to + count * (p.forward + p.backward + p.weight) + waits
    work = p.forward + p.backward
    whole = work.sum(axis=1, keepdims=True) + 2.0 * sent[:, -1:]
    few = whole + p.weight + (count - 1) * np.maximum(p.forward, p.backward)
    alone = _turns(p, p.backward) + p.weight[:, 0]
    return np.asarray(np.maximum(np.maximum(by_stage, few).max(axis=1), alone))


_CLOSED_FORMS: dict[str, Callable[[Pipelines], Floats]] = {
    "1f1b": _one_f_one_b,
    "interleaved": _interleaved,
    "gpipe": _gpipe,
    "zb-h1": _zero_bubble,
}
