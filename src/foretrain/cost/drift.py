"""Processes that do equal work come to a collective at different times, and the first waits for the last.

What delays a process (caches, memory and cores that others use, the kernel's own work) comes in many small pieces, each
as likely at any time, so that two processes drift apart as random walks do: by a deviation that grows with the square
root of the time since they last met. How fast is measured (`foretrain measure links`).
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np

from foretrain.compile.execution import CHAIN, COLLECTIVE, Communication, ExecutionGraph, Item
from foretrain.cost.compute.base import latest
from foretrain.cost.cost import Costs
from foretrain.cost.items import INTERCONNECT


def with_waits(graph: ExecutionGraph, costs: Costs, drift: float, ranks: int) -> Costs:
    """The costs with a wait before every collective. `drift`: the deviation after a second, in seconds."""
    pace = drift * latest(ranks)
    if pace == 0.0:
        return costs
    seconds, breakdown = costs.seconds.copy(), costs.breakdown[costs.alike]  # a row for every task
    apart = np.zeros(graph.fold.classes)  # seconds since each class of ranks met others
    for task in range(graph.tasks):
        kind, of = int(graph.task_kind[task]), int(graph.task_class[task])
        if kind == COLLECTIVE:
            seconds[task] += pace * sqrt(apart[of])
            apart[of] = 0.0
        elif kind == CHAIN:
            shape = int(graph.task_shape[task])
            alone = costs.item_seconds[of, graph.shape_items[slice(*graph.shape_ptr[shape:][:2])]]
            wait, apart[of] = _inside(graph.shape(shape), alone.tolist(), float(apart[of]), pace)
            seconds[task] += wait
            breakdown[task, INTERCONNECT] += wait
    return replace(
        costs,
        seconds=seconds,
        alike=np.arange(graph.tasks),
        breakdown=breakdown,
        first_launch=costs.first_launch[costs.alike],
    )


def _inside(
    items: tuple[Item, ...], seconds: list[float], apart: float, pace: float
) -> tuple[float, float]:
    """Of the collectives in a chain: their waits, and the seconds since the last of them."""
    wait = 0.0
    for item, own in zip(items, seconds, strict=True):
        if isinstance(item.work, Communication):
            wait += pace * sqrt(apart)
            apart = 0.0
        else:
            apart += own
    return wait, apart
