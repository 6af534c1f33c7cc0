"""Schedules that repeat one building block (Qi et al. 2024, arXiv 2405.15362, section 3): when each stage runs the four passes
of a micro-batch, in slots as long as a pass, the model lying along a V. The block of the next micro-batch begins six slots
later, two passes of each kind; weight gradients take the slots that are left, the oldest first. How long a block is decides
how many activations a stage holds.

Steps run as soon as they can in this order. The paper also moves steps of the first and the last blocks forward where memory
allows it (section 3.4), which shortens the filling and the draining of a pipeline a little further; that is not done here.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from foretrain.arrays import Ints
from foretrain.plan.schedules.base import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    PipelineSchedule,
    Steps,
    made_once,
    read_only,
)
from foretrain.plan.schedules.pieces import Pieces, folded

_DOWN, _UP = range(2)
_PASSES = ((FORWARD, _DOWN), (FORWARD, _UP), (BACKWARD, _UP), (BACKWARD, _DOWN))
APART = (
    6  # slots from a block to the next: forward, input gradient and weight gradient of both chunks
)


class BuildingBlocks(PipelineSchedule):
    """A schedule that says when a stage runs the passes of a block."""

    splits_backward = True
    chunks = range(2, 3)

    @abstractmethod
    def block(self, stage: int, stages: int) -> tuple[int, int, int, int]:
        """Slots of the forward pass down, the one up, the input gradient of the chunk up, and that of the chunk down."""

    def pieces(self, stages: int, chunks: int) -> Pieces:
        return folded(stages, chunks)

    @made_once
    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        micro = np.arange(micro_batches)
        slots = np.add.outer(np.array(self.block(stage, stages)), APART * micro)
        rows = np.empty((len(_PASSES), micro_batches, 3), dtype=np.int32)
        rows[..., :2] = np.array(_PASSES)[:, None, :]
        rows[..., 2] = micro
        backward = np.argsort(slots[2:], axis=None)
        weight = rows[2:].reshape(-1, 3)[backward].copy()
        weight[:, 0] = BACKWARD_WEIGHT
        after = _free_after(slots.reshape(-1), slots[2:].reshape(-1)[backward])
        every = np.concatenate([slots.reshape(-1), after])
        whole = np.concatenate([rows.reshape(-1, 3), weight])
        return read_only(np.ascontiguousarray(whole[np.argsort(every)]))


def _free_after(taken: Ints, asked: Ints) -> Ints:
    """[steps] the next slot that is neither taken nor another step's, of steps in the order in which they ask."""
    free = np.setdiff1d(np.arange(int(taken.max()) + len(asked) + 1), taken)
    number = np.arange(len(asked))
    first = np.searchsorted(free, asked)
    return np.asarray(free[np.maximum.accumulate(first - number) + number])
