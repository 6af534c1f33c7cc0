"""How good estimates and searches are: against the simulator, which is right by definition here.

`gaps` simulates plans drawn evenly from those of a space that fit; `exhausted` simulates every plan of a small space
and says what the search lost by looking at estimates first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Floats
from foretrain.errors import InputError
from foretrain.planning.choices import Choices, joined
from foretrain.planning.estimator import Estimates, Estimator
from foretrain.planning.planner import search
from foretrain.planning.space import Space, space
from foretrain.planning.task import Task
from foretrain.simulate import answer


@dataclass(frozen=True, slots=True)
class Gap:
    """A plan as estimated and as simulated."""

    plan: str
    estimated_seconds: float
    seconds: float
    estimated_bytes: float
    bytes: float
    fits: bool

    @property
    def time(self) -> float:
        return self.estimated_seconds / self.seconds - 1.0

    @property
    def memory(self) -> float:
        return self.estimated_bytes / self.bytes - 1.0


@dataclass(frozen=True, slots=True)
class Agreement:
    """Gaps in shares of what was simulated; `tau` is Kendall's, between the two orders of the plans."""

    plans: int
    median: float
    p95: float
    tau: float
    memory_median: float
    memory_p95: float
    unfit: int  # plans that fit as estimated and not as simulated

    @classmethod
    def of(cls, rows: Sequence[Gap]) -> Agreement:
        time = np.array([abs(row.time) for row in rows])
        memory = np.array([abs(row.memory) for row in rows])
        return cls(
            len(rows),
            float(np.median(time)),
            float(np.percentile(time, 95)),
            tau([row.estimated_seconds for row in rows], [row.seconds for row in rows]),
            float(np.median(memory)),
            float(np.percentile(memory, 95)),
            sum(not row.fits for row in rows),
        )


def tau(one: Sequence[float], other: Sequence[float]) -> float:
    """Kendall's tau-b: pairs in the same order less pairs in another, over pairs that are in order in each."""
    a, b = (np.sign(np.subtract.outer(np.asarray(x), np.asarray(x))) for x in (one, other))
    below = np.sqrt((a != 0).sum() * (b != 0).sum())
    return float((a * b).sum() / below) if below else 1.0


def estimated(task: Task, plans: Space) -> tuple[Choices, list[Estimates]]:
    """Every plan of a space, part by part, estimated."""
    tables = [plans.choices(part)[0] for part in plans.parts()]
    return joined(tables, plans.palette), [Estimator(task).estimate(table) for table in tables]


def column(found: Sequence[Estimates], name: str) -> Floats:
    return np.concatenate([getattr(one, name) for one in found])


def gaps(task: Task, where: Sequence[str], count: int, seed: int) -> tuple[Gap, ...]:
    """So many plans drawn evenly from those that fit, estimated and simulated."""
    plans, found = estimated(task, space(task, where))
    rows = np.flatnonzero(column(found, "fits"))
    drawn = np.random.default_rng(seed).permutation(rows)
    seconds, memory = column(found, "seconds"), column(found, "memory")
    out: list[Gap] = []
    for row in drawn.tolist():
        if len(out) == count:
            break
        words = plans.words(row)
        try:
            simulated = answer(task.scenario(task.plan(words)))
        except (
            InputError
        ):  # refused by what the estimator does not look at, such as a barrier between stages
            continue
        out.append(
            Gap(
                task.text(words),
                float(seconds[row]),
                simulated.step_seconds,
                float(memory[row]),
                simulated.memory.peak_bytes,
                simulated.fits,
            )
        )
    return tuple(out)


@dataclass(frozen=True, slots=True)
class Exhausted:
    """A small space simulated in full, and what the search found in it. `best` is empty where nothing fits."""

    plans: int
    fitting: int
    best: str
    found: str
    best_seconds: float
    found_seconds: float

    @property
    def lost(self) -> float:
        """By which the plan found is slower than the best there is."""
        return self.found_seconds / self.best_seconds - 1.0 if self.best else 0.0

    @property
    def agrees(self) -> bool:
        """Both or neither found a plan that fits."""
        return bool(self.best) == bool(self.found)


def exhausted(task: Task, where: Sequence[str], top: int = 3) -> Exhausted:
    """Every plan of a space simulated, beside what the search makes of the space."""
    plans, _ = estimated(task, space(task, where))
    best, best_seconds, fitting, count = "", float("inf"), 0, 0
    for row in range(len(plans)):
        words = plans.words(row)
        try:
            simulated = answer(task.scenario(task.plan(words)))
        except InputError:
            continue
        count += 1
        if simulated.fits:
            fitting += 1
            if simulated.step_seconds < best_seconds:
                best, best_seconds = task.text(words), simulated.step_seconds
    result = search(task, where=where, top=top)
    first = result.best[0] if result.best else None
    return Exhausted(
        count,
        fitting,
        best,
        first.plan.text if first else "",
        best_seconds,
        first.prediction.step_seconds if first else float("inf"),
    )
