"""Measure links: collectives and point-to-point over sizes and groups, with torch.distributed, into the store.

Every process of a job runs `measure_links`: started by torchrun, on one host or several, or by `spawned` on this host
alone. All ranks see the time of the slowest, so all decide alike when a size is known well enough.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, Protocol

from foretrain.cost.compute.base import latest
from foretrain.errors import InputError, hint
from foretrain.measurement.launching import free_port
from foretrain.measurement.link_curves import fitted
from foretrain.measurement.machine import Machine
from foretrain.measurement.records import Measurement, MeasurementReport, host_key, link_key
from foretrain.measurement.store import Store
from foretrain.measurement.timing import Budget, Effort, repeated

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send")
SIZES = tuple(4**k * 1024 for k in range(8))  # 1 KiB … 16 MiB
ELEMENT = 4  # bytes: float32
JOINED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What a launcher tells every process."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Some of the ranks of a job, and over how many nodes they are spread."""

    ranks: tuple[int, ...]
    nodes: int


class Crew(Protocol):
    """Processes that can be told to do the same work."""

    world: int
    per_node: int
    device: str

    def work(self, calls: int) -> float:
        """Seconds of so many pieces of work on this rank, all ranks starting together."""
        ...

    def largest(self, value: float) -> float:
        """The largest of what all ranks say."""
        ...

    def mean(self, value: float) -> float:
        """The mean of what all ranks say."""
        ...


class RankGroup(Crew, Protocol):
    """The processes of a job. `TorchGroup` is the real one."""

    rank: int
    backend: str  # gloo | nccl

    def call(self, collective: str, size: int, shape: Shape) -> Callable[[int], object] | None:
        """So many bytes moved among the shape's ranks; None where the backend cannot."""
        ...

    def slowest(self, call: Callable[[int], object] | None, calls: int) -> float:
        """Seconds of so many calls on the rank that took longest, told to all."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    collective: str
    bytes: int
    shape: Shape
    seconds: float
    spread: float
    repeats: int
    was_known: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "collective": self.collective,
            "ranks": len(self.shape.ranks),
            "nodes": self.shape.nodes,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "spread": self.spread,
            "repeats": self.repeats,
            "was_known": self.was_known,
        }


@dataclass(frozen=True, slots=True, repr=False)
class LinkReport(MeasurementReport):
    """What `measure links` did."""

    rows: tuple[MeasuredLink, ...]
    unable: tuple[str, ...]  # collectives that the backend has not
    unmeasured: int
    backend: str
    world: int
    nodes: int
    store: str = ""  # where the times are kept

    def to_dict(self) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "processes": self.world,
            "nodes": self.nodes,
            "measured": self.measured,
            "unmeasured": self.unmeasured,
            "unable": list(self.unable),
            "links": [row.to_dict() for row in self.rows],
            "fitted": fitted(self),
            "store": self.store,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> LinkReport:
        """Of one host, whose groups are ranks side by side."""
        rows = tuple(
            MeasuredLink(
                row["collective"], row["bytes"], Shape(tuple(range(row["ranks"])), row["nodes"]),
                row["seconds"], row["spread"], row["repeats"], row["was_known"],
            )
            for row in document["links"]
        )  # fmt: skip
        rest = (document[key] for key in ("unmeasured", "backend", "processes", "nodes", "store"))
        return cls(rows, tuple(document["unable"]), *rest)


def shapes(world: int, per_node: int) -> tuple[Shape, ...]:
    """Groups of 2, 4, 8 … ranks and of all: side by side, and where there are several nodes one from each."""
    counts = sorted({*(2**k for k in range(1, 20) if 2**k <= world), world} - {1})
    by_ranks: dict[tuple[int, ...], Shape] = {}
    for count in counts:
        ranks = tuple(range(count))
        by_ranks[ranks] = Shape(ranks, -(-count // per_node))
        nodes = world // per_node
        if 1 < count <= nodes:
            apart = tuple(range(0, count * per_node, per_node))
            by_ranks.setdefault(apart, Shape(apart, count))
    # costs are looked up by (ranks, nodes): uneven spreads have no such name
    return tuple(s for s in by_ranks.values() if len(s.ranks) % s.nodes == 0)


def wanted(names: Sequence[str] | None) -> tuple[str, ...]:
    """Collectives by name; all where none is named."""
    for name in names or ():
        if name not in COLLECTIVES:
            raise InputError(f"unknown collective {name!r}.{hint(name, COLLECTIVES)}")
    return tuple(names or COLLECTIVES)


def measure_links(
    group: RankGroup,
    store: Store | None,
    *,
    collectives: Sequence[str] | None = None,
    sizes: Sequence[int] = SIZES,
    effort: Effort | None = None,
    budget: float | None = None,
    machine: Machine | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LinkReport:
    """Time every collective, group and size the store does not know yet. `store` is rank 0's; None elsewhere."""
    if group.world < 2:
        raise InputError("measuring links needs two processes or more; use --processes 2.")
    effort = effort or Effort(seconds=1.0)
    clock = AgreedClock(group)
    session = _LinkSession(group, store, machine or Machine.here(), clock)
    spending = Budget(budget, clock)
    plan = [
        (name, shape, size)
        for name in wanted(collectives)
        for shape in shapes(group.world, group.per_node)
        for size in sizes
        if name != "send" or len(shape.ranks) == 2
    ]
    rows: list[MeasuredLink] = []
    unable: dict[str, None] = {}
    left_out = 0
    for done, (name, shape, size) in enumerate(plan):
        if progress is not None:
            progress(done, len(plan))
        if name in unable:
            continue
        row = session.known(name, shape, size)
        if row is None and spending.is_spent:
            left_out += 1
            continue
        row = row or session.time(name, shape, size, spending.share(len(plan) - done, effort))
        if row is None:
            unable[name] = None
        else:
            rows.append(row)
    if not spending.is_spent:
        measure_drift(group, store, session.machine)
    nodes = -(-group.world // group.per_node)
    path = "" if store is None else str(store.path)
    return LinkReport(
        tuple(rows), tuple(unable), left_out, group.backend, group.world, nodes, path
    )  # fmt: skip


class AgreedClock:
    """Seconds since the start as all ranks were told alike, so that none stops before the others."""

    def __init__(self, group: RankGroup) -> None:
        self.group, self.now = group, 0.0
        self._began = time.monotonic()

    def __call__(self) -> float:
        return self.now

    def tick(self) -> None:
        self.now = self.group.largest(time.monotonic() - self._began)

    def slowest(self, call: Callable[[int], object] | None, calls: int) -> float:
        taken = self.group.slowest(call, calls)
        self.tick()
        return taken


@dataclass(frozen=True, slots=True)
class _LinkSession:
    group: RankGroup
    store: Store | None
    machine: Machine
    clock: AgreedClock

    def _key(self, name: str, shape: Shape, size: int) -> dict[str, Any]:
        g = self.group
        count = len(shape.ranks)
        return link_key(name, count, size, nodes=shape.nodes, backend=g.backend, device=g.device)

    def known(self, name: str, shape: Shape, size: int) -> MeasuredLink | None:
        """What rank 0's store says, agreed on by all."""
        stored = None
        if self.store is not None:
            stored = self.store.known("link", self._key(name, shape, size), self.machine)
        # one number tells all ranks whether there is anything: a time that is never negative, or -1
        seconds = self.group.largest(stored.seconds if stored else -1.0)
        if seconds < 0.0:
            return None
        spread, repeats = (stored.spread, stored.repeats) if stored else (0.0, 1)
        return MeasuredLink(name, size, shape, seconds, spread, repeats, True)

    def time(self, name: str, shape: Shape, size: int, effort: Effort) -> MeasuredLink | None:
        takes_part = self.group.rank in shape.ranks
        call = self.group.call(name, size, shape)
        if call is None:
            return None
        mine = call if takes_part else None
        samples = repeated(lambda calls: self.clock.slowest(mine, calls), effort, self.clock)
        row = Measurement.of("link", self._key(name, shape, size), samples, self.machine)
        if self.store is not None:
            self.store.add(row)
        return MeasuredLink(name, size, shape, row.seconds, row.spread, row.repeats, False)


# --- how far processes that do equal work drift apart, one number of a calibration -------------------------

DRIFT = "drift"
WORKS = (0.01, 0.04, 0.16)  # seconds of work between two meetings
SPENT = 1.5  # seconds on each of them
FEWEST = 10  # meetings
PIECES = 20  # of work, to tell how long one takes


def measure_drift(crew: Crew, store: Store | None, machine: Machine) -> None:
    """Seconds that ranks wait for the last of them after equal work. Known ones are not measured again."""
    piece = 0.0
    for work in WORKS:
        key = _drift_key(crew, work)
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


def _drift_key(crew: Crew, work: float) -> dict[str, Any]:
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


# --- processes --------------------------------------------------------------------------------------


def is_joined(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher such as torchrun started this process as one of several."""
    return all(name in environment for name in JOINED)


def spawned(
    command: Sequence[str],
    processes: int,
    seconds: float | None = None,
    answer: int | None = None,
) -> int:
    """Run a command as so many processes of one job on this host; the first one's output is ours, or goes to the file
    `answer`. The exit code."""
    port = free_port()
    running: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(processes):
            variables = {
                "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            }  # fmt: skip
            environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
            quiet = None if rank == 0 else subprocess.DEVNULL
            shown = answer if rank == 0 else subprocess.DEVNULL
            running.append(
                subprocess.Popen(
                    [sys.executable, *command], env=environment, stdout=shown, stderr=quiet
                )
            )
        return _first_fault(running, seconds)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.wait()


def _first_fault(running: Sequence[subprocess.Popen[bytes]], seconds: float | None) -> int:
    """Wait for all; a process that fails takes the others with it, which would wait for it for ever."""
    began = time.monotonic()
    while True:
        codes = [process.poll() for process in running]
        if any(codes):
            return next(code for code in codes if code)
        if all(code == 0 for code in codes):
            return 0
        if seconds is not None and time.monotonic() - began > seconds:
            raise InputError(f"the processes did not finish within {seconds:.0f} s.")
        time.sleep(0.05)
