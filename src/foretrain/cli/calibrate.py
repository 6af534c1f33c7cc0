"""`foretrain calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.cli.options import Output
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.report.document import Document


def calibrate(
    output: Output,
    measured: list[Path] | None = None,
    store: str | None = None,
    machine: str | None = None,
    threads: str | None = None,
    processes: str = "1",
    device: str | None = None,
) -> Document:
    """Build cost tables from measurements.

    -o FILE.json writes the calibration that 'predict --calibration FILE.json' takes.
    """
    from foretrain.report.measured import calibration_document
    from foretrain.units import parse_count

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
    return calibration_document(calibration)
