"""What every pipeline schedule answers.

A schedule is data: for each stage the order in which it runs its steps. A step is a row
`(phase, chunk, micro-batch)`. Nothing here knows time; dependencies and durations come later.

A stage is cut into `chunks` model chunks; which piece of the model each of them is, the schedule says (`pieces`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np

from foretrain.arrays import Bools, Floats, Ints, Ints32
from foretrain.errors import PlanError
from foretrain.plan.schedules import running
from foretrain.plan.schedules.closed_form import Pipelines
from foretrain.plan.schedules.pieces import Pieces, looped
from foretrain.units import counted

FORWARD, BACKWARD, BACKWARD_WEIGHT = range(3)
"""Phases of a step. BACKWARD is both gradients, or the input gradient alone where weight steps exist."""

Steps = Ints32
"""Shape (n, 3): phase, chunk, micro-batch, in the order run. Read-only."""

Counts = Ints | Ints32 | int
"""One number, or one for each of many plans."""


Kind = TypeVar("Kind", bound="PipelineSchedule")


def made_once(
    order: Callable[[Kind, int, int, int, int], Steps],
) -> Callable[[Kind, int, int, int, int], Steps]:
    """An `order` that is worked out once for each set of numbers, which are checked then."""

    @lru_cache(maxsize=1024)
    def checked(kind: Kind, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps:
        kind.check(stages, micro_batches, chunks)
        check_stage(stage, stages)
        return read_only(order(kind, stage, stages, micro_batches, chunks))

    return checked


class PipelineSchedule(ABC):
    """The order of one pipeline's steps, and what follows from it.

    A schedule subclasses this, says its `name` and its `order`, and whatever differs from what is here. Answers below
    `check` follow from the order; schedules that know them in closed form say so.

    - `aliases`, `stands_for` – letters and digits of other names that it has, and of schedules that are not here
      which it comes nearest to;
    - `splits_backward` – whether weight gradients are steps of their own;
    - `joins_gradients` – whether the input gradients of a step leave its stage only when the weight gradients are made, if
      that is what the stage does next: one step to whoever waits;
    - `separates_phases` – whether all backward steps come after all forward steps;
    - `is_searched` – whether searches look at it without being asked to;
    - `chunks` – how many chunks a stage may have;
    - `otherwise` – the schedule that its name means with other numbers of chunks;
    - `needs` – what it asks of the number of micro-batches, in words; `fits` – which of those have it.
    """

    name: str
    aliases: tuple[str, ...] = ()
    stands_for: tuple[str, ...] = ()
    splits_backward: bool = False
    joins_gradients: bool = False
    separates_phases: bool = False
    is_searched: bool = False
    chunks: range = range(1, 2)
    otherwise: str | None = None
    needs: str = ""

    @abstractmethod
    def order(self, stage: int, stages: int, micro_batches: int, chunks: int) -> Steps: ...

    def pieces(self, stages: int, chunks: int) -> Pieces:
        """Which pieces of the model the chunks of each stage are."""
        return looped(stages, chunks)

    def fits(self, stages: Counts, micro_batches: Counts) -> Bools:
        """[plans] or one: whether so many micro-batches can be run."""
        return np.ones(np.broadcast(stages, micro_batches).shape, dtype=np.bool_)

    def remedy(self, stages: int) -> str:
        """What to do where the number of micro-batches does not fit, after a space."""
        return ""

    def check(self, stages: int, micro_batches: int, chunks: int) -> None:
        """Raises `PlanError` where the schedule cannot run these numbers."""
        check_counts(self.name, stages, micro_batches, chunks)
        if chunks not in self.chunks:
            least = self.chunks.start
            raise PlanError(
                f"schedule {self.name!r} runs {counted(least, 'model chunk')} per stage, got {chunks}. "
                f"Use schedule 'interleaved', or set vpp to {least}."
            )
        if not self.fits(stages, micro_batches):
            raise PlanError(
                f"schedule {self.name!r}: {self.needs}: {counted(micro_batches, 'micro-batch', 'micro-batches')}, "
                f"{counted(stages, 'stage')}.{self.remedy(stages)}"
            )

    def in_flight(self, stage: int, stages: int, micro_batches: int, chunks: int) -> int:
        """The largest number of chunk activations a stage holds at once: from a forward step to the last backward step
        of the same chunk and micro-batch."""
        return int(running.held(self, stage, stages, micro_batches, chunks).sum())

    def moments(self, stages: int, chunks: int, micro_batches: int) -> running.Moments:
        """What stages hold while they are at which step."""
        return running.moments(self, stages, micro_batches, chunks)

    def filling(self, stages: int, chunks: int) -> float:
        """Micro-batches whose forward work a stage has done before its first backward step, in the mean over stages."""
        return running.filling(self, stages, chunks)

    def lone_passes(self, stages: int, chunks: int) -> float:
        """Passes of either direction beside which a stage has none in the other, while a pipeline fills and drains: on
        the stage that has most of them."""
        return running.lone_passes(self, stages, chunks)

    def seconds(self, p: Pipelines) -> Floats:
        """[plans] from the first forward to the last backward step."""
        return running.seconds(self, p)


def check_counts(name: str, stages: int, micro_batches: int, chunks: int) -> None:
    """Numbers no schedule can run."""
    for what, count in (("stages", stages), ("micro-batches", micro_batches), ("chunks", chunks)):
        if count < 1:
            raise PlanError(f"schedule {name!r} needs at least 1 of {what}, got {count}.")


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


def numbered(pairs: Sequence[tuple[int, int]]) -> Steps:
    """Rows of (phase, chunk) in the order run, each of the next micro-batch of its phase and chunk."""
    rows = np.zeros((len(pairs), 3), dtype=np.int32)
    rows[:, :2] = pairs
    for pair in set(pairs):
        mine = np.flatnonzero((rows[:, 0] == pair[0]) & (rows[:, 1] == pair[1]))
        rows[mine, 2] = np.arange(len(mine))
    return rows


def joined(rows: Steps) -> Bools:
    """[steps] input gradients whose weight gradients the stage makes next."""
    here, after = rows[:-1], rows[1:]
    are_one = (here[:, 0] == BACKWARD) & (after[:, 0] == BACKWARD_WEIGHT)
    return np.append(are_one & (here[:, 1:] == after[:, 1:]).all(axis=1), False)


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
