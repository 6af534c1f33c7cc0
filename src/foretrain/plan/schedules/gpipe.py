"""GPipe (Huang et al. 2019, arXiv 1811.06965): all forward steps, then all backward steps."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Floats
from foretrain.plan.schedules.base import (
    BACKWARD,
    FORWARD,
    PipelineSchedule,
    Steps,
    made_once,
    read_only,
    steps,
)
from foretrain.plan.schedules.closed_form import Pipelines


class GPipe(PipelineSchedule):
    """Every stage keeps the activations of all micro-batches; bubble (p - 1)/m."""

    name = "gpipe"
    separates_phases = True
    is_searched = True

    @made_once
    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        micro = np.arange(micro_batches)
        none = np.zeros_like(micro)
        return read_only(
            np.concatenate((steps(FORWARD, none, micro), steps(BACKWARD, none, micro)))
        )

    def in_flight(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        return micro_batches

    def seconds(self, p: Pipelines) -> Floats:
        """All forward steps behind the slowest stage, or the slowest send, then all backward steps."""
        backward = p.backward + p.weight
        ways = p.forward.sum(axis=1) + backward.sum(axis=1) + 2.0 * p.send.sum(axis=1)
        sent = p.send.max(axis=1, initial=0.0)
        slowest = np.maximum(p.forward.max(axis=1), sent) + np.maximum(backward.max(axis=1), sent)
        return np.asarray(ways + (p.count - 1) * slowest)
