"""Operators: which ops the busiest stage spends its time in, and the arithmetic really done."""

from __future__ import annotations

import numpy as np

from foretrain.compile.execution import (
    Communication,
    Compute,
    Copy,
    ExecutionGraph,
    Item,
)
from foretrain.cost.cost import Costs


def executed_flops(graph: ExecutionGraph) -> tuple[float, float]:
    """FLOPs of all kernels of all ranks in one step, and those of them done again for backward."""
    works = [item.work for item in graph.items]
    flops = np.array([w.kernel.flops if isinstance(w, Compute) else 0.0 for w in works])
    again = np.array([isinstance(w, Compute) and w.is_recomputed for w in works])
    runs = graph.fold.counts @ graph.item_runs
    return float(runs @ flops), float(runs @ (flops * again))


def busiest_operators(
    graph: ExecutionGraph, costs: Costs, limit: int = 12
) -> tuple[tuple[str, float], ...]:
    """Ops of the rank class with the longest chain, by seconds per step."""
    seconds = graph.item_runs * costs.item_seconds
    if not seconds.size:
        return ()
    row = seconds[int(seconds.sum(axis=1).argmax())]
    total: dict[str, float] = {}
    for item, value in zip(graph.items, row.tolist(), strict=True):
        if value > 0:
            name = _name(item)
            total[name] = total.get(name, 0.0) + value
    return tuple(sorted(total.items(), key=lambda pair: -pair[1])[:limit])


def _name(item: Item) -> str:
    work = item.work
    if isinstance(work, Compute):
        return work.op
    if isinstance(work, (Communication, Copy)):
        return work.label
    return work.kind
