"""Zero-bubble schedule ZB-V (Qi et al. 2023, arXiv 2401.10241, section 6; 2024, arXiv 2405.15362).

Every stage holds two chunks, and the model goes down the stages with the first and up again with the second: a V, so
that the first stage has the loss and begins to go back as soon as a micro-batch has come round. Weight gradients follow
their input gradients until there are no forward steps left, then fill the cool-down. PyTorch runs the same order
(`ScheduleZBVZeroBubble`).
"""

from __future__ import annotations

from foretrain.plan.schedules.base import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    PipelineSchedule,
    Steps,
    made_once,
    numbered,
    read_only,
)
from foretrain.plan.schedules.pieces import Pieces, folded

_DOWN, _UP = range(2)


class ZeroBubbleV(PipelineSchedule):
    """No idle time where forward, input gradient and weight gradient take equally long and there are micro-batches
    enough, with the activations of 1F1B's first stage: 2p chunks of half a stage."""

    name = "zb-v"
    aliases = ("zbvzerobubble",)
    splits_backward = True
    chunks = range(2, 3)

    def pieces(self, stages: int, chunks: int) -> Pieces:
        return folded(stages, chunks)

    @made_once
    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        """The order for a full pipeline; fewer micro-batches leave their places empty."""
        behind, full = stages - stage, max(2 * stages - 1, micro_batches)
        forward, forward_up = (FORWARD, _DOWN), (FORWARD, _UP)
        back, back_up = (BACKWARD, _DOWN), (BACKWARD, _UP)
        weight, weight_up = (BACKWARD_WEIGHT, _DOWN), (BACKWARD_WEIGHT, _UP)
        started = stages + behind - 1
        rows = numbered(
            [
                *[forward] * (2 * behind - 1),
                *[forward_up, forward] * stage,
                *[forward_up, back_up, weight_up] * behind,
                *[forward, back, weight, forward_up, back_up, weight_up] * (full - started),
                *[back, weight, forward_up, back_up, weight_up] * (started - stages),
                *[back, back_up] * stage,
                *[back, weight] * behind,
                *[weight_up] * stage,
                *[weight] * stage,
            ]
        )
        return read_only(rows[rows[:, 2] < micro_batches])
