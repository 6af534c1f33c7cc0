"""Interleaved 1F1B (Narayanan et al. SC21, arXiv 2104.04473, section 2.2).

Every stage holds v chunks of the model and works on groups of p micro-batches: the group passes chunk 0,
then chunk 1, and so on; backward runs through the chunks the other way. The bubble shrinks v times.
"""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Bools, Floats
from foretrain.errors import PlanError
from foretrain.limits import LAYERS
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


class Interleaved(PipelineSchedule):
    """Bubble (p - 1)/(v·m); more activations in flight than 1F1B."""

    name = "interleaved"
    aliases = ("interleaved1f1b",)
    is_searched = True
    chunks = range(2, LAYERS.most + 1)
    otherwise = "1f1b"
    needs = "micro-batches not divisible by stages"

    def fits(self, stages: Counts, micro_batches: Counts) -> Bools:
        return np.asarray(np.asarray(micro_batches) % stages == 0)

    def check(self, stages: int, micro_batches: int, chunks: int) -> None:
        check_counts(self.name, stages, micro_batches, chunks)
        if not self.fits(stages, micro_batches):
            below = micro_batches // stages * stages
            near = f"{below} or {below + stages}" if below else f"{stages}"
            raise PlanError(
                "schedule 'interleaved' requires the number of micro-batches to be divisible "
                f"by the number of stages: {micro_batches} micro-batches, {stages} stages. Try "
                f"{near} micro-batches, or schedule '1f1b'."
            )

    @made_once
    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        slot = np.arange(micro_batches * chunks)
        group, place = np.divmod(slot, stages * chunks)
        chunk, member = np.divmod(place, stages)
        micro = group * stages + member
        return one_forward_one_backward(
            steps(FORWARD, chunk, micro),
            steps(BACKWARD, chunks - 1 - chunk, micro),
            min(warm_up(stage, stages, chunks), len(slot)),
        )

    def in_flight(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        return min(warm_up(stage, stages, chunks) + 1, micro_batches * chunks)

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


def warm_up(stage: int, stages: int, chunks: int) -> int:
    """Forward steps before the first backward step may be asked for.

    The first micro-batch reaches the last chunk after (v - 1)·p steps; its gradient comes back two slots
    (one forward, one backward) later per stage in between.
    """
    return 2 * (stages - stage - 1) + (chunks - 1) * stages
