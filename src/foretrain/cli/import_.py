"""`foretrain import trace|nccl-tests`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.options import HELP, Output, command
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.measurement.records import Measurement

app = typer.Typer(
    help="Import output of other tools: profiler traces, nccl-tests.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": list(HELP)},
)


@dataclasses.dataclass(frozen=True)
class Keeping:
    """Whether what was read goes into a store."""

    save: Annotated[
        bool, typer.Option("--save", help="Also save the timings in your measurement store.")
    ] = False
    store: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save them in this store instead.")
    ] = None


def trace(
    recorded: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="torch.profiler traces, one per rank; may be gzipped."
        ),
    ],
    output: Output,
    keeping: Keeping,
    devices_per_node: Annotated[
        int | None,
        typer.Option(metavar="N", help="Ranks per host; distinguishes network from interconnect."),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of steps in a trace without step markers."),
    ] = None,
) -> int:
    """Analyze profiler traces: stalls, exposed communication, operators, host overhead."""
    from foretrain.cli.output import expect_files, give
    from foretrain.cli.progress import Progress

    expect_files(output)
    from foretrain.measurement.trace_records import trace_measurements
    from foretrain.measurement.traces import analyse, read_traces
    from foretrain.report.imported import trace_document

    with Progress("bytes", quiet=output.quiet) as progress:
        traces = read_traces(recorded, progress)
    report = analyse(traces, devices_per_node=devices_per_node, steps=steps)
    kept = _keep(keeping, lambda: trace_measurements(report))
    return give(trace_document(report, kept), output)


def nccl_tests(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="Output of nccl-tests: text, or the JSON of -J."),
    ],
    output: Output,
    keeping: Keeping,
    collective: Annotated[
        str | None, typer.Option(metavar="NAME", help="Collective, if the output does not name it.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of ranks, if the output does not state it."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(metavar="N", help="Number of hosts, if the output does not state it."),
    ] = None,
) -> int:
    """Read nccl-tests timings by collective, message size and group."""
    from foretrain.cli.output import expect_files, give

    expect_files(output)
    from foretrain.adapters.read.nccl_tests import read_nccl_tests
    from foretrain.measurement.trace_records import link_measurements
    from foretrain.report.imported import links_document

    tables = [
        read_nccl_tests(file, collective=collective, ranks=ranks, nodes=nodes) for file in results
    ]
    kept = _keep(keeping, lambda: link_measurements(tables))
    return give(links_document(tables, kept), output)


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
    def refuse(
        files: Annotated[list[Path] | None, typer.Argument(metavar="FILE…")] = None,
    ) -> int:
        raise InputError(f"import {what} is not implemented yet. {instead}")

    refuse.__doc__ = f"Not implemented yet. {instead}"
    return refuse


command(app, trace, name="trace")
command(app, nccl_tests, name="nccl-tests")
command(
    app,
    _not_yet("model", "Pass a Hugging Face config.json or a Foretrain YAML file as MODEL instead."),
    name="model",
)
command(app, _not_yet("cluster", "Pass a Foretrain YAML file as CLUSTER instead."), name="cluster")
