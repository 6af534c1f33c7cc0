"""Links: how much of the step each kind of link is in use."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from foretrain.analysis.operators import item_runs
from foretrain.analysis.prediction import LinkUse
from foretrain.compile.execution import ExecutionGraph
from foretrain.cost.cost import Costs
from foretrain.cost.network import EngineRoutes, Routes

Floats = NDArray[np.float64]


def link_use(
    graph: ExecutionGraph,
    costs: Costs,
    name: Callable[[int], str],
    step_seconds: float,
    limit: int = 24,
) -> tuple[LinkUse, ...]:
    """The busiest links, one of each kind, over one step."""
    routes = costs.network_routes
    load = _loads(costs.routes, _moved(costs.route, costs.volume, len(costs.routes.ceiling)))
    runs = item_runs(graph)
    moved = _moved(costs.item_route.ravel(), (runs * costs.item_volume).ravel(), len(routes.rate))
    load += _loads(routes, moved)
    order = np.argsort(-load / routes.capacity, kind="stable")
    return tuple(
        LinkUse(
            name=name(int(routes.example[k])),
            is_network=bool(routes.on_network[k]),
            bytes=float(load[k]),
            bandwidth=float(routes.capacity[k]),
            share=float(load[k] / routes.capacity[k] / step_seconds),
        )
        for k in order[:limit].tolist()
        if load[k] > 0
    )


def _moved(route: NDArray[np.integer], volume: Floats, routes: int) -> Floats:
    """Bytes per route."""
    known = route >= 0
    return np.bincount(route[known], weights=volume[known], minlength=routes).astype(np.float64)


def _loads(routes: Routes | EngineRoutes, moved: Floats) -> Floats:
    """Bytes per constraint: every route loads the links it crosses."""
    owner = np.repeat(np.arange(len(routes.ptr) - 1), np.diff(routes.ptr))
    put = moved[owner] * routes.weight
    return np.bincount(routes.link, weights=put, minlength=len(routes.capacity)).astype(np.float64)
