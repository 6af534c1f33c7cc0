"""`foretrain calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrain.cli.measure_store import StoreOption
from foretrain.cli.options import Output
from foretrain.errors import InputError


def calibrate(
    output: Output,
    measured: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES…", help="Exported measurements (.json, .csv). Default: the store."
        ),
    ] = None,
    store: StoreOption = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Machine whose measurements to use. Default: this one (or the only one in FILES).",
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Use kernels timed with N threads. Default: the number used most often.",
        ),
    ] = None,
    processes: Annotated[
        str, typer.Option(metavar="N", help="Use kernels timed by N concurrent processes.")
    ] = "1",
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Catalog name of the measured GPU."),
    ] = None,
) -> int:
    """Build cost tables from measurements.

    -o FILE.json writes the calibration that 'predict --calibration FILE.json' takes.
    """
    from foretrain.cli.output import expect_files, give
    from foretrain.report.measured import calibration_document
    from foretrain.units import parse_count

    expect_files(output)
    if measured and store is not None:
        raise InputError("specify FILES or --store, not both.")
    import foretrain

    calibration = foretrain.calibrate(
        measured or (),
        store=store,
        machine=machine,
        threads=None if threads is None else parse_count(threads, "--threads"),
        processes=parse_count(processes, "--processes"),
        device=device,
    )
    return give(calibration_document(calibration), output)
