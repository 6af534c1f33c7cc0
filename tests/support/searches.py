"""Searches that are quick, and work that is slow or dies: for tests of what runs and keeps them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from foretrain.planning.executors import Executor, Work
from foretrain.planning.planner import RankedPlans
from foretrain.planning.task import Task
from foretrain.scenario import plain
from foretrain.testing.asking import ask


def small_task() -> Task:
    """Some ten thousand plans, in eight parts."""
    asked = ask("gpt2-small", on="2 x dgx-a100-80gb", batch=64, seq=1024)
    return Task(asked.workload, asked.cluster, asked.runtime)


def substance(result: RankedPlans) -> dict[str, Any]:
    """All of a result but how long it took and what happened on the way; floats to the last bit."""
    return {
        "valid": result.plans_valid,
        "fitting": result.plans_fitting,
        "pruned": dict(result.plans_pruned),
        "best": [
            [row.plan.text, row.estimated_seconds.hex(), row.prediction.to_dict(in_full=False)]
            for row in result.best
        ],
        "pareto": plain(result.pareto),
        "told": plain(result.told),
        "nearest": plain(result.nearest),
    }


class Wrapped:
    """An executor whose work is wrapped into another function: `around(work, item)`."""

    def __init__(self, inner: Executor, around: Callable[[Work, Any], Any]) -> None:
        self.inner, self.around = inner, around

    @property
    def notes(self) -> Sequence[str]:
        return self.inner.notes

    def run(self, work: Work, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        return self.inner.run(partial(self.around, work), items)


def slowed(seconds: float, work: Work, item: Any) -> Any:
    time.sleep(seconds)
    return work(item)
