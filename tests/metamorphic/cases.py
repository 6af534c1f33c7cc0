"""Cases: drawn questions with their answers, and complaints about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from foretrain.analysis.prediction import Prediction
from foretrain.cluster import Cluster
from foretrain.compile.exchanges import FromBuffer
from foretrain.compile.execution import COLLECTIVE
from foretrain.scenario import Scenario
from foretrain.simulate import Simulation, simulate_scenario

from .drawing import Drawn, drawn

SCENARIOS = 2_000
CHUNK = 40
CHUNKS = range(SCENARIOS // CHUNK)


class Case:
    """A drawn question; its answer is worked out once for all properties."""

    def __init__(self, number: int) -> None:
        self.number = number

    @cached_property
    def _drawn(self) -> tuple[Drawn, Simulation]:
        return drawn(self.number)

    @property
    def drawn(self) -> Drawn:
        return self._drawn[0]

    @property
    def model(self) -> Any:
        return self.drawn.model

    @property
    def words(self) -> dict[str, Any]:
        return self.drawn.words

    @property
    def simulated(self) -> Simulation:
        return self._drawn[1]

    @property
    def scenario(self) -> Scenario:
        return self.simulated.scenario

    @property
    def cluster(self) -> Cluster:
        return self.scenario.cluster

    @property
    def step(self) -> float:
        return self.simulated.step_seconds

    @property
    def prediction(self) -> Prediction:
        return self.simulated.prediction

    def step_on(self, cluster: Cluster) -> float:
        """The same plan elsewhere."""
        return simulate_scenario(replace(self.scenario, cluster=cluster)).step_seconds


ROUNDING = 1e-6
"""Of a step: sums of thousands of times in another order."""
BESIDE = 0.01
"""Of a step, where exchanges run beside kernels. Parts of a schedule that are done sooner can make all of it longer
(Graham 1969, Bounds on multiprocessing timing anomalies): a reduction that begins earlier takes bandwidth from a gather
that kernels wait for, and slows kernels that it did not meet before. The worst of 4,000 draws lost 0.9 %."""


def allowance(case: Case) -> float:
    """How much of a step may be lost on parts that are faster, and why.

    Nothing but rounding where one thing runs at a time, `BESIDE` where exchanges run beside kernels. A thread that fuses
    gradients by cycles (Horovod, BlueFog) sends what it finds ready at a tick: other times make other buffers, and each
    chain of them waits for at most one more cycle and agreement.
    """
    graph, runtime = case.simulated.graph, case.scenario.runtime
    if {name for _, name in graph.streams} <= {"compute", "host"}:
        return ROUNDING
    thread = runtime.fusion_cycles
    if thread is None:
        return BESIDE
    agreed = thread.negotiation_seconds(case.cluster.device_count)
    exchanges = np.flatnonzero(graph.task_kind == COLLECTIVE).tolist()
    works = (graph.shape(int(graph.task_shape[task]))[0].work for task in exchanges)
    waits = 1 + sum(isinstance(work, FromBuffer) and work.delay > 0 for work in works)
    return BESIDE + waits * (max(thread.cycle_seconds, agreed) + agreed) / case.step


Property = Callable[[Case], Iterable[str]]


def hold(cases: Iterable[Case], property_: Property) -> None:
    """Assert a property of all cases; every complaint comes with the line that asks its question."""
    faults = [f"{complaint}\n    {case.drawn}" for case in cases for complaint in property_(case)]
    assert not faults, "\n".join(faults)


def every(cases: Iterable[Case], stride: int, offset: int = 0) -> Iterator[Case]:
    """Some of the cases, so that all properties together stay within minutes."""
    return (case for case in cases if case.number % stride == offset)


def figures(found: Prediction) -> dict[str, Any]:
    """All that a name may not change."""
    memory = found.memory.to_dict()
    return {
        "step": found.step_seconds,
        "interval": found.interval,
        "measured_share": found.measured_share,
        "stalls": dict(found.stalls),
        "stalls_by_stage": [dict(stage) for stage in found.stalls_by_stage],
        "memory": memory,
        "mfu": found.mfu,
    }


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Where two documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from differences(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))
    elif one != other:
        yield f"{path}: {one!r} and {other!r}"
