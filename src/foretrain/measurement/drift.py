"""How far processes that do equal work drift apart: measured with `measure links`, one number of a calibration."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from math import sqrt
from typing import Any, Protocol

from foretrain.cost.compute.base import latest
from foretrain.measurement.machine import Machine
from foretrain.measurement.records import Measurement, host_key
from foretrain.measurement.store import Store

DRIFT = "drift"
WORKS = (0.01, 0.04, 0.16)  # seconds of work between two meetings
SPENT = 1.5  # seconds on each of them
FEWEST = 10  # meetings
PIECES = 20  # of work, to tell how long one takes


class Crew(Protocol):
    """Processes that can be told to do the same work."""

    world: int
    per_node: int
    device: str

    def work(self, calls: int) -> float:
        """Seconds of so many pieces of work on this rank, all ranks starting together."""
        ...

    def largest(self, value: float) -> float: ...

    def mean(self, value: float) -> float: ...


def measure_drift(
    crew: Crew, store: Store | None, machine: Machine, works: Iterable[float] = WORKS
) -> None:
    """Seconds that ranks wait for the last of them after equal work. Known ones are not measured again."""
    piece = 0.0
    for work in works:
        key = _key(crew, work)
        known = store is not None and store.known("host", key, machine) is not None
        if crew.largest(float(known)):
            continue
        piece = piece or _piece(crew)
        calls = max(1, round(work / piece))
        waits, took = [], []
        for _ in range(max(FEWEST, round(SPENT / work))):
            own = crew.work(calls)
            took.append(crew.mean(own))
            waits.append(max(0.0, crew.largest(own) - took[-1]))
        about = {"worked": statistics.median(took)}
        if store is not None:
            store.add(Measurement.of("host", key, waits, machine, about=about))


def _piece(crew: Crew) -> float:
    """Seconds of one piece of work, after some that it takes to get going."""
    crew.work(PIECES)
    return crew.mean(crew.work(PIECES)) / PIECES or 1e-6


def _key(crew: Crew, work: float) -> dict[str, Any]:
    nodes = -(-crew.world // crew.per_node)
    return host_key(DRIFT, ranks=crew.world, nodes=nodes, device=crew.device, work=work)


def drift_of(rows: Iterable[Measurement]) -> float:
    """The deviation of a process from the mean after a second of work, in seconds: the median of what the waits of one
    host's processes come to under the square-root law. None measured, none there."""
    drifts = []
    for row in rows:
        key, worked = row.key, row.about.get("worked")
        ranks = key.get("ranks")
        if (row.kind, key.get("what"), key.get("nodes")) != ("host", DRIFT, 1):
            continue
        if isinstance(worked, int | float) and worked > 0 and isinstance(ranks, int) and ranks > 1:
            drifts.append(row.seconds / (latest(ranks) * sqrt(worked)))
    return statistics.median(drifts) if drifts else 0.0
