"""1F1B, also PipeDream-flush (Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training").

A stage runs as many forward steps as stages lie behind it, then one forward and one backward in turn.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Floats
from foretrain.plan.schedules.base import (
    BACKWARD,
    FORWARD,
    PipelineSchedule,
    Steps,
    made_once,
    one_forward_one_backward,
    steps,
)
from foretrain.plan.schedules.closed_form import Pipelines, turns


class OneForwardOneBackward(PipelineSchedule):
    """GPipe's bubble (p - 1)/m, but stage s holds at most p - s micro-batches."""

    name = "1f1b"
    is_searched = True
    otherwise = "interleaved"

    @made_once
    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        micro = np.arange(micro_batches)
        none = np.zeros_like(micro)
        return one_forward_one_backward(
            steps(FORWARD, none, micro),
            steps(BACKWARD, none, micro),
            min(stages - stage - 1, micro_batches),
        )

    def in_flight(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        return min(stages - stage, micro_batches)

    def seconds(self, p: Pipelines) -> Floats:
        return turns(p, p.backward + p.weight)
