"""Gradients that a background thread fuses cycle by cycle, in closed form: `compile/passes/bucket.py` has the rule.

Gradients come evenly over the backward work of a chunk. What came during a cycle goes together, as far as it fits the
fusion buffer, once the coordinator has heard from all ranks; the last of it after the work is done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Floats
from foretrain.runtime.features.fusion_cycles import FusionCycles


@dataclass(frozen=True, eq=False, slots=True)
class Fusion:
    """[plans, columns] of the gradients of one chunk."""

    buffers: Floats
    last: Floats  # those of the last cycle …
    delay: Floats  # … and seconds after the end of the work before the first of them can go


def fused(
    thread: FusionCycles, ranks: int, size: Floats, limit: Floats, tensors: Floats, work: Floats
) -> Fusion:
    """`size` bytes of so many `tensors`, made during `work` seconds; buffers hold `limit` bytes."""
    agreed = thread.negotiation_seconds(ranks)
    period = max(thread.cycle_seconds, agreed)
    cycles = np.maximum(np.ceil(work / period), 1.0)
    whole = period / np.maximum(work, period)  # share of a cycle that is over
    rest = np.maximum(1.0 - (cycles - 1.0) * whole, 0.0)
    full, last = (
        np.clip(np.ceil(size * share * thread.fusion_copies / limit), 1.0, np.maximum(tensors * share, 1.0))
        for share in (whole, rest)
    )  # fmt: skip
    delay = np.maximum(cycles * period + agreed - work, 0.0)
    return Fusion((cycles - 1.0) * full + last, last, delay)
