"""`foretrain calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.options import Output
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.measurement.calibration import Calibration


def calibrate(
    output: Output,
    measured: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILES…", help="Exported measurements (.json, .csv); left out, the store."
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="FILE", help="The store; left out, yours.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="Of which machine; left out, this one (or the only one of FILES)."
        ),
    ] = None,
    threads: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Take kernels timed with N threads; left out, the usual number."
        ),
    ] = None,
    processes: Annotated[
        str, typer.Option(metavar="N", help="Take kernels timed by N processes at once.")
    ] = "1",
    device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What the catalogue calls the GPU that was measured."),
    ] = None,
) -> int:
    """Make cost tables of measurements.

    -o FILE.json writes the calibration that 'predict --calibration FILE.json' takes.
    """
    from foretrain.cli.output import expect_page, give_page
    from foretrain.report.measurements import calibration_page
    from foretrain.units import parse_count

    expect_page(output)
    if measured and store is not None:
        raise InputError("give FILES or --store, not both.")
    how: dict[str, Any] = {
        "threads": None if threads is None else parse_count(threads),
        "processes": parse_count(processes),
        "device": device,
    }
    if measured:
        found = _of_files(measured, machine, how)
    else:
        found = _of_store(store, machine, how)
    return give_page(calibration_page(found), output)


def _of_files(files: list[Path], machine: str | None, how: dict[str, Any]) -> Calibration:
    from foretrain.measurement.exchange import read_measurements
    from foretrain.measurement.fitting import calibration_of

    rows = [row for file in files for row in read_measurements(file)]
    if machine is not None:
        rows = [row for row in rows if row.machine.id == machine]
    last = {
        (row.kind, row.key_text, row.machine.id): row for row in sorted(rows, key=lambda r: r.at)
    }
    return calibration_of(tuple(last.values()), **how)


def _of_store(path: str | None, machine: str | None, how: dict[str, Any]) -> Calibration:
    from foretrain.measurement.fitting import calibrate as calibrated
    from foretrain.measurement.machine import Machine
    from foretrain.measurement.store import Store

    with Store.open(path, must_exist=True) as store:
        found = calibrated(store, machine or Machine.here(), **how)
        store.add_calibration(
            Machine.from_dict(found.machine), found.to_dict(), found.provenance.last
        )
    return found
