"""Interleaved 1F1B (Narayanan et al. SC21, arXiv 2104.04473, section 2.2).

Every stage holds v chunks of the model and works on groups of micro-batches: a group passes chunk 0, then chunk 1, and
so on; backward runs through the chunks the other way. The bubble shrinks v times. A group has a micro-batch for every
stage, or more where their number asks for it: no group, the last one included, may have fewer than there are stages
(Megatron Core from 0.10, `microbatch_group_size_per_vp_stage`; PyTorch's `ScheduleInterleaved1F1B` has the same groups
where it can have equal ones).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from foretrain.arrays import Bools, Floats
from foretrain.errors import PlanError
from foretrain.limits import LAYERS
from foretrain.plan.schedules import running
from foretrain.plan.schedules.base import (
    BACKWARD,
    FORWARD,
    Counts,
    PipelineSchedule,
    Steps,
    check_counts,
    made_once,
    one_forward_one_backward,
    steps,
)
from foretrain.plan.schedules.closed_form import Pipelines, turns
from foretrain.units import counted


class Interleaved(PipelineSchedule):
    """Bubble (p - 1)/(v·m); more activations in flight than 1F1B."""

    name = "interleaved"
    aliases = ("interleaved1f1b",)
    is_searched = True
    chunks = range(2, LAYERS.most + 1)
    otherwise = "1f1b"
    needs = "fewer micro-batches than stages"

    def fits(self, stages: Counts, micro_batches: Counts) -> Bools:
        return np.asarray(np.asarray(micro_batches) >= stages)

    def check(self, stages: int, micro_batches: int, chunks: int) -> None:
        check_counts(self.name, stages, micro_batches, chunks)
        if not self.fits(stages, micro_batches):
            raise PlanError(
                f"schedule 'interleaved' requires a micro-batch for every stage: {counted(micro_batches, 'micro-batch', 'micro-batches')}, "
                f"{counted(stages, 'stage')}. Use at least {stages} micro-batches, or schedule '1f1b'."
            )

    @made_once
    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        size = group(stages, micro_batches)
        slot = np.arange(micro_batches * chunks)
        number = slot // (size * chunks)
        here = np.minimum(size, micro_batches - number * size)  # the last group may have fewer
        chunk, member = np.divmod(slot - number * size * chunks, here)
        micro = number * size + member
        return one_forward_one_backward(
            steps(FORWARD, chunk, micro),
            steps(BACKWARD, chunks - 1 - chunk, micro),
            min(warm_up(stage, stages, chunks, size), len(slot)),
        )

    def in_flight(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        before = warm_up(stage, stages, chunks, group(stages, micro_batches))
        return min(before + 1, micro_batches * chunks)

    def moments(self, stages: int, chunks: int, micro_batches: int) -> running.Moments:
        """Of groups that are as long as the pipeline a few are enough; others lie differently with every number."""
        if micro_batches % stages == 0:
            return super().moments(stages, chunks, micro_batches)
        return running.moments_of(self, stages, micro_batches, chunks)

    def seconds(self, p: Pipelines) -> Floats:
        """A stage's work, the first chunks ahead of it and the last ones behind it, and all sends of one micro-batch:
        chunks are only further sends away from each other, micro-batches hide none of them (and need not)."""
        if p.chunks == 1:
            return turns(p, p.backward + p.weight)
        shape = (len(p.forward), p.chunks, p.stages)
        work = (p.forward + p.backward + p.weight).reshape(shape)
        ahead = np.cumsum(work[:, 0], axis=1) - work[:, 0]
        behind = work[:, -1].sum(axis=1, keepdims=True) - np.cumsum(work[:, -1], axis=1)
        longest = (p.count[:, None] * work.sum(axis=1) + ahead + behind).max(axis=1)
        return np.asarray(longest + 2.0 * p.send.sum(axis=1))


@lru_cache(maxsize=4096)
def group(stages: int, micro_batches: int) -> int:
    """Micro-batches of a group: the fewest, one for every stage or more, that leave the last group as many as that."""
    sizes = range(stages, micro_batches)
    even = (n for n in sizes if micro_batches % n == 0 or micro_batches % n >= stages)
    return next(even, micro_batches)


def warm_up(stage: int, stages: int, chunks: int, size: int) -> int:
    """Forward steps before the first backward step may be asked for.

    The first micro-batch reaches the last chunk after v - 1 times a group; its gradient comes back two slots
    (one forward, one backward) later per stage in between.
    """
    return 2 * (stages - stage - 1) + (chunks - 1) * size
