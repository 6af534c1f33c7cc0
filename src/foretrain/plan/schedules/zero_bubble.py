"""Zero-bubble schedule H1 (Qi et al. 2023, arXiv 2401.10241, section 2.1).

The backward step is cut in two: the input gradient, which the stage before waits for, and the weight
gradient, which nobody waits for. Stage s puts weight steps off by s rounds, so that all stages hold the same
number of activations as the first stage of 1F1B, and those left at the end fill the cool-down.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from foretrain.plan.schedules.base import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    Steps,
    check_one_chunk,
    check_stage,
    one_forward_one_backward,
    steps,
)


class ZeroBubbleH1:
    """Idle time (p - 1)(f + b - w) where 1F1B has (p - 1)(f + b + w); the same largest memory."""

    name = "zb-h1"
    splits_backward = True
    needs_chunks = False

    def check(self, stages: int, micro_batches: int, chunks: int) -> None:
        check_one_chunk(self.name, stages, micro_batches, chunks)

    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        self.check(stages, micro_batches, chunks)
        check_stage(stage, stages)
        return _order(stage, stages, micro_batches)

    def in_flight(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        return min(stages, micro_batches)


@lru_cache(maxsize=1024)
def _order(stage: int, stages: int, micro_batches: int) -> Steps:
    micro = np.arange(micro_batches)
    none = np.zeros_like(micro)
    return one_forward_one_backward(
        steps(FORWARD, none, micro),
        steps(BACKWARD, none, micro),
        min(stages - stage - 1, micro_batches),
        steps(BACKWARD_WEIGHT, none, micro),
        weight_lag=stage,
    )
