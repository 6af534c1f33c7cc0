"""What profiler traces of a training run say: the step and its stalls, communication, operators, host overheads.

report = analyse([read_trace("rank0.json.gz"), read_trace("rank1.json.gz")])
report.step_seconds, report.stalls, report.exposed_seconds, report.ops, report.overheads
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretrain.adapters.read.collective_calls import Call
from foretrain.adapters.read.kineto import Trace, read_trace
from foretrain.analysis.answer import Answer
from foretrain.analysis.prediction import STALLS
from foretrain.arrays import Bools
from foretrain.errors import InputError
from foretrain.measurement.trace_ops import CollectiveRow, TraceOpRow, collective_rows, op_rows
from foretrain.measurement.trace_overheads import OverheadRow, overhead_rows
from foretrain.measurement.trace_parts import TraceParts, parts
from foretrain.measurement.trace_stalls import TraceBreakdown, breakdown, waits

MOST_TRACES = 4_096


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank's mean step."""

    path: str
    rank: int | None
    host: str
    device: str
    step_seconds: tuple[float, ...]
    stalls: Mapping[str, float]
    communication_seconds: float
    exposed_seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": self.path,
            "rank": self.rank,
            "host": self.host,
            "device": self.device,
            "step_seconds": list(self.step_seconds),
            "stalls": dict(self.stalls),
            "communication_seconds": self.communication_seconds,
            "exposed_communication_seconds": self.exposed_seconds,
        }


@dataclass(frozen=True, slots=True, repr=False)
class TraceReport(Answer):
    """The mean step of all ranks: `stalls` has the names of a prediction and sums to `step_seconds`."""

    step_seconds: float
    interval: tuple[float, float]  # shortest and longest step of any rank
    stalls: Mapping[str, float]
    communication_seconds: float  # exchanging data, hidden or not
    exposed_seconds: float  # and doing nothing else
    ranks: tuple[RankReport, ...]
    world: int
    devices_per_node: int | None
    on_device: bool
    ops: tuple[TraceOpRow, ...]
    collectives: tuple[CollectiveRow, ...]
    overheads: tuple[OverheadRow, ...]
    began: float | None  # seconds since 1970
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def bottleneck(self) -> str:
        return max(self.stalls, key=lambda name: self.stalls[name])

    @property
    def steps(self) -> int:
        return max(len(rank.step_seconds) for rank in self.ranks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "step_seconds": self.step_seconds,
            "interval": list(self.interval),
            "stalls": dict(self.stalls),
            "bottleneck": self.bottleneck,
            "communication_seconds": self.communication_seconds,
            "exposed_communication_seconds": self.exposed_seconds,
            "steps": self.steps,
            "world_size": self.world,
            "devices_per_node": self.devices_per_node,
            "ranks": [rank.to_dict() for rank in self.ranks],
            "collectives": [row.to_dict() for row in self.collectives],
            "host_overheads": [row.to_dict() for row in self.overheads],
            "operators": [row.to_dict() for row in self.ops],
            "assumptions": list(self.assumptions),
            "warnings": list(self.warnings),
        }


def read_traces(
    paths: Sequence[str | Path], progress: Callable[[int, int], None] | None = None
) -> tuple[Trace, ...]:
    """One trace per rank."""
    if not paths:
        raise InputError("no trace specified; pass one file per rank.")
    if len(paths) > MOST_TRACES:
        raise InputError(f"{len(paths):,} traces exceed the limit of {MOST_TRACES:,}; pass fewer.")
    return tuple(read_trace(path, progress) for path in paths)


def analyse(
    traces: Sequence[Trace], *, devices_per_node: int | None = None, steps: int | None = None
) -> TraceReport:
    """`devices_per_node` tells network from interconnect where the traces do not; `steps` how many they hold where
    the profiler marked none."""
    for name, value in (("devices per node", devices_per_node), ("steps", steps)):
        if value is not None and not 1 <= value <= 1_000_000:
            raise InputError(f"{name}: {value} must be 1 or more.")
    _expect_different(traces)
    ranks = tuple(parts(trace, steps) for trace in traces)
    world = max(len(traces), *(trace.world or 1 for trace in traces))
    local, assumptions = _devices_per_node(traces, world, devices_per_node)
    networks = tuple(_over_network(one, world, local) for one in ranks)
    waited, odd = waits(ranks)
    rows = tuple(
        breakdown(one, wait, network)
        for one, wait, network in zip(ranks, waited, networks, strict=True)
    )
    reports = tuple(_rank_report(one, row) for one, row in zip(ranks, rows, strict=True))
    stalls = _named(np.mean([row.stalls.mean(axis=0) for row in rows], axis=0))
    every = np.concatenate([row.step_seconds for row in rows])
    return TraceReport(
        step_seconds=sum(stalls.values()),  # every moment has a cause: this is the mean step
        interval=(float(every.min()), float(every.max())),
        stalls=stalls,
        communication_seconds=float(np.mean([row.communication.mean() for row in rows])),
        exposed_seconds=float(np.mean([row.exposed.mean() for row in rows])),
        ranks=reports,
        world=world,
        devices_per_node=local,
        on_device=any(one.on_device for one in ranks),
        ops=op_rows(ranks),
        collectives=collective_rows(ranks, waited, networks),
        overheads=overhead_rows(traces),
        began=min((t.began for t in traces if t.began is not None), default=None),
        assumptions=(*assumptions, *_assumed(ranks, world)),
        warnings=(*_warnings(ranks), *odd),
    )


def _expect_different(traces: Sequence[Trace]) -> None:
    if not traces:
        raise InputError("no trace specified; pass one file per rank.")
    twice = [
        rank
        for rank, count in Counter(t.rank for t in traces if t.rank is not None).items()
        if count > 1
    ]
    if twice:
        names = ", ".join(t.path for t in traces if t.rank == twice[0])
        raise InputError(f"rank {twice[0]} has more than one trace: {names}. Pass one per rank.")


def _devices_per_node(
    traces: Sequence[Trace], world: int, given: int | None
) -> tuple[int | None, tuple[str, ...]]:
    """As told, else as many ranks as share a host name, else the devices the profiler saw; None: not known."""
    if given is not None:
        return given, ()
    hosts = Counter(trace.host for trace in traces)
    if len(traces) == world > 1 and "" not in hosts:
        return max(hosts.values()), ()
    recorded = max(len(trace.devices) for trace in traces)
    if recorded:
        return recorded, (f"devices per node: {recorded}, as recorded by the profiler",)
    if world == 1:
        return 1, ()
    return None, (
        (
            "devices per node: not specified; all communication counts as interconnect "
            "(--devices-per-node)"
        ),
    )


def _over_network(one: TraceParts, world: int, local: int | None) -> Bools:
    crosses = [local is not None and _crosses_nodes(call, world, local) for call in one.calls]
    return np.array(crosses, dtype=np.bool_)


def _crosses_nodes(call: Call, world: int, local: int) -> bool:
    """Ranks are numbered node by node."""
    if call.ranks:
        return min(call.ranks) // local != max(call.ranks) // local
    return (call.size or world) > local


def _rank_report(one: TraceParts, row: TraceBreakdown) -> RankReport:
    trace = one.trace
    return RankReport(
        path=trace.path,
        rank=trace.rank,
        host=trace.host,
        device=trace.devices[0] if one.on_device and trace.devices else "",
        step_seconds=tuple(row.step_seconds.tolist()),
        stalls=_named(row.stalls.mean(axis=0)),
        communication_seconds=float(row.communication.mean()),
        exposed_seconds=float(row.exposed.mean()),
    )


def _named(seconds: Any) -> dict[str, float]:
    return dict(zip(STALLS, (float(value) for value in seconds), strict=True))


def _assumed(ranks: Sequence[TraceParts], world: int) -> tuple[str, ...]:
    said = []
    if any(len(one.exchange) for one in ranks) and len(ranks) < world:
        said.append(
            f"{len(ranks)} of {world} ranks have traces: waiting for the others counts as "
            "communication"
        )
    if any(len(one.loading) for one in ranks):
        said.append(
            "waiting for the data loader counts as prep: a trace does not distinguish "
            "storage from preprocessing"
        )
    if not any(one.on_device for one in ranks):
        said.append("no device work was recorded: the CPU is treated as the device")
    return tuple(said)


def _warnings(ranks: Sequence[TraceParts]) -> tuple[str, ...]:
    return tuple(
        f"{one.trace.path}: {warning}"
        for one in ranks
        for warning in (*one.trace.warnings, *one.warnings)
    )
