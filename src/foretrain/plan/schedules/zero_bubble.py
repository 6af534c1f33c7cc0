"""Zero-bubble schedule H1 (Qi et al. 2023, arXiv 2401.10241, section 2.1).

The backward step is cut in two: the input gradient, which the stage before waits for, and the weight
gradient, which nobody waits for. Stage s puts weight steps off by s rounds, so that all stages hold the same
number of activations as the first stage of 1F1B, and those left at the end fill the cool-down.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Floats
from foretrain.plan.schedules.base import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    PipelineSchedule,
    Steps,
    made_once,
    one_forward_one_backward,
    steps,
)
from foretrain.plan.schedules.closed_form import Pipelines, before, turns


class ZeroBubbleH1(PipelineSchedule):
    """Idle time (p - 1)(f + b - w) where 1F1B has (p - 1)(f + b + w); the same largest memory."""

    name = "zb-h1"
    stands_for = ("zerobubble", "dualpipe")
    splits_backward = True
    is_searched = True

    @made_once
    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        micro = np.arange(micro_batches)
        none = np.zeros_like(micro)
        return one_forward_one_backward(
            steps(FORWARD, none, micro),
            steps(BACKWARD, none, micro),
            min(stages - stage - 1, micro_batches),
            steps(BACKWARD_WEIGHT, none, micro),
            weight_lag=stage,
        )

    def in_flight(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        return min(stages, micro_batches)

    def seconds(self, p: Pipelines) -> Floats:
        """Weight gradients put off fill what backward steps take to come back to the first stage."""
        place, sent, count = np.arange(p.stages)[None, :], before(p.send), p.count[:, None]
        to = np.cumsum(p.forward, axis=1) - p.forward + sent
        back = np.cumsum(p.backward, axis=1) - p.backward + sent
        waits = np.maximum(0.0, back - np.minimum(place, count) * p.weight)
        by_stage = to + count * (p.forward + p.backward + p.weight) + waits
        work = p.forward + p.backward
        whole = work.sum(axis=1, keepdims=True) + 2.0 * sent[:, -1:]
        few = whole + p.weight + (count - 1) * np.maximum(p.forward, p.backward)
        alone = turns(p, p.backward) + p.weight[:, 0]
        return np.asarray(np.maximum(np.maximum(by_stage, few).max(axis=1), alone))
