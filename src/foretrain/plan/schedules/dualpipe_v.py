"""DualPipeV: DeepSeek's DualPipe cut in half (DeepSeek-AI 2024, arXiv 2412.19437, section 3.2.1; github.com/deepseek-ai/
DualPipe; "cut in half" by Qi et al., 2025).

Every stage holds the two chunks of a V. Between warm-up and cool-down forward steps of one chunk go with backward steps of
the other, so that what either exchanges hides under the other's kernels (`expert_overlap` of a runtime says how much).
Weight gradients are put off only while the pipeline fills and drains. PyTorch runs the same order (`ScheduleDualPipeV`).

Steps of a pair run one after the other here; what the forward step sends leaves before the backward step begins.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Bools
from foretrain.plan.schedules.base import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    Counts,
    PipelineSchedule,
    Steps,
    made_once,
    numbered,
    read_only,
)
from foretrain.plan.schedules.pieces import Pieces, folded

_DOWN, _UP = range(2)


class DualPipeV(PipelineSchedule):
    """2p + 1 activations of half a stage; a micro-batch for every piece of the model, or more."""

    name = "dualpipev"
    splits_backward = True
    joins_gradients = True
    chunks = range(2, 3)
    needs = "fewer micro-batches than 2 per stage"

    def fits(self, stages: Counts, micro_batches: Counts) -> Bools:
        return np.asarray(np.asarray(micro_batches) >= 2 * np.asarray(stages))

    def remedy(self, stages: int) -> str:
        return f" Use at least {2 * stages} micro-batches, or schedule 'zb-v'."

    def pieces(self, stages: int, chunks: int) -> Pieces:
        return folded(stages, chunks)

    @made_once
    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        behind, here = stages - stage - 1, stage + 1
        forward, forward_up = (FORWARD, _DOWN), (FORWARD, _UP)
        back, back_up = (BACKWARD, _DOWN), (BACKWARD, _UP)
        weight, weight_up = (BACKWARD_WEIGHT, _DOWN), (BACKWARD_WEIGHT, _UP)
        # half of the last backward steps make both gradients, the other half put their weight gradients off
        last = [back_up, back] * here
        early = [
            step
            for _, chunk in last[:here]
            for step in ((BACKWARD, chunk), (BACKWARD_WEIGHT, chunk))
        ]
        put_off = [(BACKWARD_WEIGHT, chunk) for _, chunk in (*last[here:], *[back] * behind)]
        return read_only(
            numbered(
                [
                    *[forward] * (2 * behind),
                    *[forward, forward_up] * here,
                    *[back_up, weight_up, forward_up] * behind,
                    *[forward, back_up, weight_up, forward_up, back, weight]
                    * (micro_batches - 2 * stages + here),
                    *[back_up, weight_up, forward_up, back, weight] * behind,
                    *early,
                    *last[here:],
                    *(step for late in put_off[:behind] for step in (late, back)),
                    *put_off[behind:],
                ]
            )
        )
