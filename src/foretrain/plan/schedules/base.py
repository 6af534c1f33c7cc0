"""What every pipeline schedule answers.

A schedule is data: for each stage the order in which it runs its steps. A step is a row
`(phase, chunk, micro-batch)`. Nothing here knows time; dependencies and durations come later.

A stage is cut into `chunks` model chunks; chunk c of stage s is the (c · stages + s)-th piece of the model.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from foretrain.arrays import Floats, Ints, Ints32
from foretrain.errors import PlanError
from foretrain.plan.schedules.closed_form import Pipelines

FORWARD, BACKWARD, BACKWARD_WEIGHT = range(3)
"""Phases of a step. BACKWARD is both gradients, or the input gradient alone where weight steps exist."""

Steps = Ints32
"""Shape (n, 3): phase, chunk, micro-batch, in the order run. Read-only."""


class PipelineSchedule(Protocol):
    """The order of one pipeline's steps.

    - `splits_backward` – whether weight gradients are steps of their own;
    - `needs_chunks` – whether stages are cut into several chunks;
    - `separates_phases` – whether all backward steps come after all forward steps;
    - `check` – raises `PlanError` where the schedule cannot run these numbers;
    - `in_flight` – the largest number of chunk activations a stage holds at once: from a forward step to
      the last backward step of the same chunk and micro-batch;
    - `held` – the same for the search: [plans, chunks, stages] of each chunk, for so many micro-batches of each plan;
    - `seconds` – from the first forward to the last backward step of many plans, in closed form.
    """

    name: str
    splits_backward: bool
    needs_chunks: bool
    separates_phases: bool

    def check(self, stages: int, micro_batches: int, chunks: int) -> None: ...

    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps: ...

    def in_flight(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int: ...

    def held(self, stages: int, chunks: int, counts: Floats) -> Floats: ...

    def seconds(self, p: Pipelines) -> Floats: ...


def check_counts(name: str, stages: int, micro_batches: int, chunks: int) -> None:
    """Numbers no schedule can run."""
    for what, count in (("stages", stages), ("micro-batches", micro_batches), ("chunks", chunks)):
        if count < 1:
            raise PlanError(f"schedule {name!r} needs at least 1 of {what}, got {count}.")


def check_one_chunk(name: str, stages: int, micro_batches: int, chunks: int) -> None:
    """Schedules that know nothing of model chunks."""
    check_counts(name, stages, micro_batches, chunks)
    if chunks != 1:
        raise PlanError(
            f"schedule {name!r} runs 1 model chunk per stage, got {chunks}. "
            "Use schedule 'interleaved', or set vpp to 1."
        )


def check_stage(stage: int, stages: int) -> None:
    if not 0 <= stage < stages:
        raise PlanError(
            f"stage {stage} does not exist: {stages} stages are numbered 0 to {stages - 1}."
        )


def steps(phase: int, chunk: Ints, micro: Ints) -> Steps:
    """Rows of one phase."""
    rows = np.empty((len(micro), 3), dtype=np.int32)
    rows[:, 0] = phase
    rows[:, 1] = chunk
    rows[:, 2] = micro
    return rows


def read_only(rows: Steps) -> Steps:
    """Orders are cached and shared, so nobody may write to them."""
    rows.flags.writeable = False
    return rows


def one_forward_one_backward(
    forward: Steps, backward: Steps, warm_up: int, weight: Steps | None = None, weight_lag: int = 0
) -> Steps:
    """`warm_up` forward steps, then rounds of one forward and one backward until each list runs out.

    With `weight` steps a round ends with the weight step of the backward step `weight_lag` rounds earlier.
    """
    count = np.arange(len(forward))
    keys = [np.where(count < warm_up, count - warm_up, 3 * (count - warm_up)), 3 * count + 1]
    parts = [forward, backward]
    if weight is not None:
        keys.append(3 * (count + weight_lag) + 2)
        parts.append(weight)
    return read_only(np.concatenate(parts)[np.argsort(np.concatenate(keys), kind="stable")])
