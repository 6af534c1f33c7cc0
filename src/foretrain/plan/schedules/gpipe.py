"""GPipe (Huang et al. 2019, arXiv 1811.06965): all forward steps, then all backward steps."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from foretrain.plan.schedules.base import (
    BACKWARD,
    FORWARD,
    Steps,
    check_one_chunk,
    check_stage,
    read_only,
    steps,
)


class GPipe:
    """Every stage keeps the activations of all micro-batches; bubble (p - 1)/m."""

    name = "gpipe"
    splits_backward = False
    needs_chunks = False

    def check(self, stages: int, micro_batches: int, chunks: int) -> None:
        check_one_chunk(self.name, stages, micro_batches, chunks)

    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        self.check(stages, micro_batches, chunks)
        check_stage(stage, stages)
        return _order(micro_batches)

    def in_flight(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        return micro_batches


@lru_cache(maxsize=64)
def _order(micro_batches: int) -> Steps:
    micro = np.arange(micro_batches)
    none = np.zeros_like(micro)
    return read_only(np.concatenate((steps(FORWARD, none, micro), steps(BACKWARD, none, micro))))
