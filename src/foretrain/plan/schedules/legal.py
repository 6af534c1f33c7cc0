"""Whether an order is one that a stage can run: every step once, and none before what it needs of its own stage."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np

from foretrain.errors import PlanError
from foretrain.plan.schedules.base import BACKWARD, BACKWARD_WEIGHT, FORWARD, PipelineSchedule
from foretrain.units import counted

_WORDS = {FORWARD: "forward", BACKWARD: "backward", BACKWARD_WEIGHT: "weight gradients"}
_STAGES, _MICRO_BATCHES, _CHUNKS = (1, 2, 4), (1, 2, 4, 8), 2
"""Sizes that a schedule is tried on; of its chunks the first few numbers."""
_NAMED = 3  # steps named of many


def check_order(kind: PipelineSchedule) -> None:
    """Raises `PlanError` where an order of some small pipeline is none, with what is wrong on each of its stages."""
    for stages, micro_batches, chunks in product(_STAGES, _MICRO_BATCHES, kind.chunks[:_CHUNKS]):
        if not _runs(kind, stages, micro_batches, chunks):
            continue
        many = counted(micro_batches, "micro-batch", "micro-batches")
        faults = [
            f"stage {stage} of {stages}, {many}, {counted(chunks, 'chunk')}: {fault}"
            for stage in range(stages)
            for fault in order_faults(kind, stage, stages, micro_batches, chunks)
        ]
        if faults:
            raise PlanError(f"schedule {kind.name!r} cannot be run as ordered:", faults=faults)


def _runs(kind: PipelineSchedule, stages: int, micro_batches: int, chunks: int) -> bool:
    try:
        kind.check(stages, micro_batches, chunks)
    except PlanError:
        return False
    return True


def order_faults(
    kind: PipelineSchedule, stage: int, stages: int, micro_batches: int, chunks: int
) -> list[str]:
    """What is wrong with the order of a stage; nothing of one that can be run."""
    rows: object = kind.order(stage, stages, micro_batches, chunks)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3:
        got = f"an array {rows.shape}" if isinstance(rows, np.ndarray) else type(rows).__name__
        return [f"order is {got}, not an array (steps, 3) of phase, chunk and micro-batch"]
    phases = list(_WORDS) if kind.splits_backward else [FORWARD, BACKWARD]
    wanted: list[tuple[int, ...]] = [*product(phases, range(chunks), range(micro_batches))]
    run: list[tuple[int, ...]] = [tuple(row) for row in rows.tolist()]
    first = {step: place for place, step in reversed(list(enumerate(run)))}
    twice = [step for place, step in enumerate(run) if first[step] != place]
    named = (
        ("missing", [step for step in wanted if step not in first]),
        ("more than once", list(dict.fromkeys(twice))),
        ("not among its steps", [step for step in first if step not in set(wanted)]),
    )
    faults = [f"{what}: {_steps(steps)}" for what, steps in named if steps]
    return faults or list(_early(first, phases))


def _early(place: dict[tuple[int, ...], int], phases: list[int]) -> Iterator[str]:
    for before, phase in pairwise(phases):
        early = [
            step for step in place if step[0] == phase and place[step] < place[(before, *step[1:])]
        ]
        if early:
            yield f"before its {_WORDS[before]}: {_steps(early)}"


def _steps(steps: list[tuple[int, ...]]) -> str:
    """`forward of chunk 0, micro-batch 3`, and how many more."""
    words = [
        f"{_WORDS.get(phase, f'phase {phase}')} of chunk {chunk}, micro-batch {micro}"
        for phase, chunk, micro in steps[:_NAMED]
    ]
    more = [f"{len(steps) - _NAMED} more"] if len(steps) > _NAMED else []
    return "; ".join(words + more)
