"""Uncertainty: how far off a step may be, from the spreads of its parts.

A step is kernels, communication and host work in certain shares, and a part that is off by some share of itself
moves the step by that share of its share. Kernels of one family are timed by one table or formula, so they are
off together: their deviations add up. Families, communication and host are off independently: they add as roots
of sums of squares. What no part accounts for (software that differs from its preset, a network that others use,
what the question left open) adds terms of its own. `cost/calibration/uncertainty.yaml` holds one factor for each
part and one size for each term, fitted to published runs by `tools/fit_uncertainty.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import exp, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from foretrain.analysis.prediction import STALLS, Z80
from foretrain.analysis.stalls import Stalls
from foretrain.compile.execution import COLLECTIVE, Communication, Compute, ExecutionGraph
from foretrain.cost import cost
from foretrain.cost.collectives.selector import spread as communication_spread
from foretrain.cost.cost import Costs
from foretrain.loading import load_own_yaml
from foretrain.model.ops.base import kernel_family

GREATEST = 3.0
"""of log seconds: beyond a factor of 20 a wider interval says no more"""

WITH_COMPUTE = ("compute", "optimizer", "bubble", "imbalance")
"""Stalls that are kernels, or waiting for those of others."""

APART = ("conv", "embedding")
"""Families with a factor of their own; the others share that of `kernels`."""

NAMED = ("runtime", "architecture")
"""What has a term by its name."""


@dataclass(frozen=True, slots=True)
class KnownFacts:
    """What a question says of the run, as far as it decides how sure an answer can be."""

    devices: int = 1
    nodes: int = 1
    has_experts: bool = False  # how tokens share themselves out among them is not known
    architecture: str = ""  # of the devices
    runtime: str = ""  # the preset
    is_runtime_known: bool = True  # else the preset stands in for it
    unknown_switches: int = 0  # of the run, that nothing here answers to


@dataclass(frozen=True, slots=True)
class Trust:
    """What decides how sure a step is.

    `parts` are relative standard deviations as the cost models state them, `terms` 0, 1, counts or shares.
    """

    parts: Mapping[str, float]
    terms: Mapping[str, float]
    named: Mapping[str, str]  # the runtime and the devices' architecture
    measured_share: float

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm of the step."""
        scale = scales()
        shares = {
            **self.parts,
            **self.terms,
            **{term_of(n, scale): 1.0 for n in self.named.items()},
        }
        return sqrt(sum((scale.get(name, 0.0) * value) ** 2 for name, value in shares.items()))

    def interval(self, step_seconds: float) -> tuple[float, float]:
        """What the step lies in with a probability of 80 %."""
        factor = exp(min(Z80 * self.spread, GREATEST))
        return step_seconds / factor, step_seconds * factor


def term_of(named: tuple[str, str], scale: Iterable[str]) -> str:
    """The term of a runtime or architecture; those without runs to tell share one."""
    kind, name = named
    own = f"{kind} {name}"
    return own if own in scale else f"{kind} other"


@cache
def _fitted() -> Mapping[str, Any]:
    path = Path(cost.__file__).parent / "calibration" / "uncertainty.yaml"
    table: Mapping[str, Any] = load_own_yaml(path)
    return table


def memory_spread(runtime: str, is_runtime_known: bool = True) -> float:
    """Standard deviation of the logarithm of a peak under this runtime; those without runs to tell, and those that a
    preset stands in for, share one."""
    sizes = _fitted()["memory"]["spread"]
    return float(sizes[runtime if is_runtime_known and runtime in sizes else "other"])


@cache
def scales() -> Mapping[str, float]:
    """Factors on parts and sizes of terms, as fitted; `runtime NAME` is the term of that runtime."""
    data = _fitted()
    own = {f"{kind} {name}": size for kind in NAMED for name, size in data[kind].items()}
    return {**data["parts"], **data["terms"], **own}


def trust(graph: ExecutionGraph, costs: Costs, stalls: Stalls, known: KnownFacts) -> Trust:
    """Parts and terms of a step, read off the busiest rank class."""
    busiest = _busiest(graph, costs)
    step = float(stalls.by_class[busiest].sum())
    named = {"runtime": known.runtime, "architecture": known.architecture}
    if step <= 0.0:
        return Trust({}, {"model": 1.0}, named, 0.0)
    share = dict(zip(STALLS, (stalls.by_class[busiest] / step).tolist(), strict=True))
    with_compute = sum(share[name] for name in WITH_COMPUTE)
    seconds, deviation, measured = _kernels(graph, costs, busiest)
    linked, left = _collectives(graph, costs, busiest)
    total = sum(seconds.values())
    alike = {name: with_compute * deviation[name] / total for name in seconds} if total else {}
    moving = communication_spread()
    covered = measured / total if total else 0.0
    return Trust(
        parts={
            **{name: alike.pop(name, 0.0) for name in APART},
            "kernels": sqrt(sum(value * value for value in alike.values())),
            "interconnect": moving * share["interconnect"],
            "network": moving * share["network"],
            "host": share["host"],
            "data": share["prep"] + share["fetch"],
        },
        terms={
            "model": 1.0,
            "unmeasured_kernels": with_compute * (1.0 - covered),
            "several_devices": float(known.devices > 1),
            "several_nodes": float(known.nodes > 1),
            "experts": float(known.has_experts),
            "left_curve": share["interconnect"] * left,
            "unknown_runtime": float(not known.is_runtime_known),
            "unknown_switches": sqrt(known.unknown_switches),
        },
        named=named,
        measured_share=min(1.0, with_compute * covered + share["interconnect"] * linked),
    )


def _busiest(graph: ExecutionGraph, costs: Costs) -> int:
    """The rank class whose chain has most to do."""
    task, owner = graph.chains
    busy = np.bincount(owner, costs.seconds[task] * (costs.route[task] < 0), graph.fold.classes)
    return int(np.argmax(busy))


def _kernels(
    graph: ExecutionGraph, costs: Costs, rank_class: int
) -> tuple[dict[str, float], dict[str, float], float]:
    """By family seconds and deviations on a chain; measured kernel seconds."""
    count = graph.item_runs[rank_class]
    seconds: dict[str, float] = {}
    deviation: dict[str, float] = {}
    measured = 0.0
    for index in np.flatnonzero(count).tolist():
        work, times = graph.items[index].work, float(count[index])
        rests = times * float(costs.item_measured[rank_class, index])
        spent = times * float(costs.item_seconds[rank_class, index])
        if isinstance(work, Compute):
            name = kernel_family(work.kernel.kind)
            seconds[name] = seconds.get(name, 0.0) + spent
            off = times * float(costs.item_spread[rank_class, index])
            deviation[name] = deviation.get(name, 0.0) + off
            measured += rests
    return seconds, deviation, measured


def _collectives(graph: ExecutionGraph, costs: Costs, rank_class: int) -> tuple[float, float]:
    """Of the seconds of collectives inside domains, the share that measured curves tell, and the share that has
    curves of which none holds: those on the chain of a class, and all that are tasks of their own, as one class
    runs them for all."""
    tasks = np.flatnonzero(graph.task_kind == COLLECTIVE)
    item = graph.shape_items[graph.shape_ptr[graph.task_shape[tasks]]].astype(np.int64)
    runs = np.zeros_like(costs.item_seconds)
    np.add.at(runs, (graph.task_class[tasks], item), 1.0)
    runs[rank_class] += graph.item_runs[rank_class]
    is_collective = np.array([isinstance(one.work, Communication) for one in graph.items])
    is_far = np.append(costs.network_routes.is_network, True)  # the last: no route at all
    runs *= is_collective & ~is_far[costs.item_route]
    total, measured, left = (
        float((runs * column).sum())
        for column in (costs.item_seconds, costs.item_measured, costs.item_left)
    )
    return (measured / total, left / total) if total else (0.0, 0.0)
