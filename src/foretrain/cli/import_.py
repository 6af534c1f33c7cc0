"""`foretrain import trace|nccl-tests`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.cli.options import Output
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.measurement.records import Measurement
    from foretrain.report.document import Document


@dataclasses.dataclass(frozen=True)
class Keeping:
    """Whether what was read goes into a store."""

    save: bool = False
    store: Path | None = None


def trace(
    recorded: list[Path],
    output: Output,
    keeping: Keeping,
    devices_per_node: int | None = None,
    steps: int | None = None,
) -> Document:
    """Analyze profiler traces: stalls, exposed communication, operators, host overhead."""
    from foretrain.cli.progress import Progress
    from foretrain.measurement.trace_records import trace_measurements
    from foretrain.measurement.traces import analyse, read_traces
    from foretrain.report.imported import trace_document

    with Progress("bytes", quiet=output.quiet) as progress:
        traces = read_traces(recorded, progress)
    report = analyse(traces, devices_per_node=devices_per_node, steps=steps)
    return trace_document(report, _keep(keeping, lambda: trace_measurements(report)))


def nccl_tests(
    results: list[Path],
    output: Output,
    keeping: Keeping,
    collective: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
) -> Document:
    """Read nccl-tests timings by collective, message size and group."""
    from foretrain.adapters.read.nccl_tests import read_nccl_tests
    from foretrain.measurement.trace_records import link_measurements
    from foretrain.report.imported import links_document

    tables = [
        read_nccl_tests(file, collective=collective, ranks=ranks, nodes=nodes) for file in results
    ]
    return links_document(tables, _keep(keeping, lambda: link_measurements(tables)))


def _keep(
    keeping: Keeping, measurements: Callable[[], Sequence[Measurement]]
) -> dict[str, Any] | None:
    if not keeping.save and keeping.store is None:
        return None
    from foretrain.measurement.store import Store

    rows = measurements()
    with Store.open(keeping.store) as store:
        store.add(*rows)
        return {"measurements": len(rows), "store": str(store.path)}


def _not_yet(what: str, instead: str) -> Callable[..., int]:
    def refuse(files: list[Path] | None = None) -> int:
        raise InputError(f"import {what} is not implemented yet. {instead}")

    refuse.__doc__ = f"Not implemented yet. {instead}"
    return refuse


model = _not_yet(
    "model", "Pass a Hugging Face config.json or a Foretrain YAML file as MODEL instead."
)
cluster = _not_yet("cluster", "Pass a Foretrain YAML file as CLUSTER instead.")
