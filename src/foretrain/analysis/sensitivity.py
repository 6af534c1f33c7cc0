"""Sensitivity: what the step would be if one thing were better. Same graph, changed costs, run again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from foretrain.analysis.prediction import Remedy
from foretrain.compile.execution import CHAIN, COPY, LAUNCH, LAUNCH_REST, ExecutionGraph
from foretrain.cost.cost import Costs
from foretrain.cost.items import COMPUTE, INTERCONNECT, NETWORK
from foretrain.engine import Run, simulate
from foretrain.engine.program import Program


@dataclass(frozen=True, slots=True)
class Change:
    """Factors on time: 0.5 means twice as fast."""

    text: str
    compute: float = 1.0
    interconnect: float = 1.0
    network: float = 1.0
    host: float = 1.0


CHANGES = (
    Change("kernels twice as fast", compute=0.5),
    Change("interconnect twice as fast", interconnect=0.5),
    Change("network twice as fast", network=0.5),
    Change("no host overhead (CUDA graphs)", host=0.0),
)
WORTH_SAYING = 1.005


def program(graph: ExecutionGraph, costs: Costs) -> Program:
    """The engine's input."""
    return Program(
        duration=costs.seconds,
        volume=costs.volume,
        route=costs.route,
        stream_ptr=graph.stream_ptr,
        stream_ids=graph.stream_ids,
        succ_ptr=graph.succ_ptr,
        succ=graph.succ,
        route_ptr=costs.routes.ptr,
        route_link=costs.routes.link,
        route_weight=costs.routes.weight,
        route_cap=costs.routes.ceiling,
        capacity=costs.routes.capacity,
        streams=len(graph.streams),
        stream_place=np.array([rank_class for rank_class, _ in graph.streams], dtype=np.int32),
        activity=costs.activity,
        sensitivity=costs.sensitivity,
        slowdown=costs.slowdown,
    )


def run_graph(graph: ExecutionGraph, costs: Costs) -> Run:
    return simulate(program(graph, costs))


def remedies(graph: ExecutionGraph, costs: Costs, step_seconds: float) -> tuple[Remedy, ...]:
    """Changes that would help, best first."""
    found = []
    for change in CHANGES:
        seconds = float(run_graph(graph, changed(graph, costs, change)).end.max())
        if step_seconds / seconds >= WORTH_SAYING:
            found.append(Remedy(change.text, seconds, step_seconds / seconds))
    return tuple(sorted(found, key=lambda r: r.step_seconds))


def changed(graph: ExecutionGraph, costs: Costs, change: Change) -> Costs:
    """Costs under a change. Latency counts with the link it belongs to."""
    kind = graph.task_kind
    seconds = costs.seconds.copy()
    factors = {COMPUTE: change.compute, INTERCONNECT: change.interconnect, NETWORK: change.network}
    chains = kind == CHAIN
    parts = costs.breakdown[costs.alike[chains]]
    for column, share in factors.items():
        seconds[chains] += (share - 1.0) * parts[:, column]
    seconds[(kind == LAUNCH) | (kind == LAUNCH_REST)] *= change.host
    seconds[kind == COPY] *= change.interconnect
    flows = costs.route >= 0
    factor = np.where(costs.is_network, change.network, change.interconnect)
    seconds = np.where(flows, seconds * factor, seconds)
    volume = np.where(flows, costs.volume * factor, costs.volume)
    return replace(costs, seconds=np.maximum(seconds, 0.0), volume=volume)
