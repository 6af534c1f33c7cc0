"""What was read from traces and nccl-tests, as measurements for the store."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from foretrain.adapters.read.nccl_tests import LinkTable
from foretrain.measurement.machine import Machine
from foretrain.measurement.records import (
    LONGEST_KEY,
    Measurement,
    canonical,
    host_key,
    link_key,
    median_and_spread,
    now,
)
from foretrain.measurement.traces import TraceReport

UNKNOWN = "unknown"
SOURCE = {"source": "trace"}


def trace_measurements(report: TraceReport) -> tuple[Measurement, ...]:
    """Operators, collectives and host overheads. The machine is this one if the trace was taken on it, else one of
    which no more is known than the trace tells."""
    began = None if report.began is None else datetime.fromtimestamp(report.began, UTC)
    at = now() if began is None else began.isoformat(timespec="microseconds")
    return tuple(_of_trace(report, _machine(report), at))


def _of_trace(report: TraceReport, machine: Machine, at: str) -> Iterator[Measurement]:
    device = _device(report)
    for op in report.ops:
        key = {"op": op.name, "shapes": op.dims, "types": op.types, "device": device}
        if len(canonical(key)) <= LONGEST_KEY // 2:
            yield Measurement("op", key, op.seconds, op.spread, op.count, machine, at, about=SOURCE)
    backend = "nccl" if report.on_device else "gloo"
    # With every rank's trace the wait is known and taken off; else a time is more than the transfer.
    for row in report.collectives if len(report.ranks) == report.world else ():
        if row.bytes <= 0 or row.ranks < 2 or row.seconds <= 0:
            continue
        local = report.devices_per_node or row.ranks
        nodes = math.ceil(row.ranks / local) if row.is_network else 1
        link = link_key(
            row.collective, row.ranks, row.bytes, nodes=nodes, backend=backend, device=device
        )
        yield Measurement(
            "link", link, row.seconds, row.spread, row.count, machine, at, about=SOURCE
        )
    for over in report.overheads:
        key = host_key(over.stretch, name=over.name, device=device)
        spread = over.deviation / over.seconds if over.seconds > 0 else 0.0
        yield Measurement("host", key, over.seconds, spread, over.count, machine, at, about=SOURCE)


def link_measurements(tables: Iterable[LinkTable]) -> tuple[Measurement, ...]:
    """One measurement per collective, group and size: out of place and in place are its repeats. Results that were
    found wrong are left out."""
    at = now()
    measurements = []
    for table in tables:
        device = table.device or "cpu"
        where = _somewhere((device,), UNKNOWN)
        samples: dict[str, tuple[dict[str, object], list[float]]] = {}
        for row in table.rows:
            if row.is_right is False or row.bytes <= 0:
                continue
            key = link_key(
                row.collective,
                row.ranks,
                row.bytes,
                nodes=row.nodes,
                backend="nccl",
                device=device,
            )
            samples.setdefault(canonical(key), (key, []))[1].append(row.seconds)
        for key, seconds in samples.values():
            middle, spread = median_and_spread(seconds)
            about = {"source": "nccl-tests"}
            measurements.append(
                Measurement("link", key, middle, spread, len(seconds), where, at, about=about)
            )
    return tuple(measurements)


def _device(report: TraceReport) -> str:
    named = [rank.device for rank in report.ranks if rank.device]
    return named[0] if named else UNKNOWN if report.on_device else "cpu"


def _machine(report: TraceReport) -> Machine:
    host = report.ranks[0].host
    here = Machine.here()
    if host and _hashed(host) == here.host:
        return here
    device = _device(report)
    return _somewhere(() if device == "cpu" else (device,), _hashed(host) if host else UNKNOWN)


def _somewhere(devices: tuple[str, ...], host: str) -> Machine:
    return Machine(UNKNOWN, 1, 0, devices, UNKNOWN, host, UNKNOWN, ())


def _hashed(name: str) -> str:
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16]
