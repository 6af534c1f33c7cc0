"""`foretrain measure export|import` and `calibrate`: measurements out of the store, into it, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.cli.options import Output
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.report.document import Document


def export(
    output: Output,
    file: Path | None = None,
    store: str | None = None,
    kind: str | None = None,
    machine: str | None = None,
) -> Document | int:
    """Export measurements to a file for other stores and other software."""
    from foretrain.cli.output import print_text
    from foretrain.measurement.exchange import WRITERS, to_json
    from foretrain.measurement.records import KINDS
    from foretrain.measurement.store import Store
    from foretrain.report.files import write_whole
    from foretrain.report.measured import moved_document

    if kind is not None and kind not in KINDS:
        raise InputError(f"--kind {kind!r}: unknown kind. Known: {', '.join(KINDS)}.")
    if file is not None and file.suffix.lower() not in WRITERS:
        raise InputError(f"{file}: unsupported format; use a {' or '.join(WRITERS)} file.")
    with Store.open(store, must_exist=True) as opened:
        rows = opened.rows(kind, machine)
        if machine is not None and machine not in opened.machines():
            known = ", ".join(opened.machines()) or "none"
            raise InputError(f"--machine {machine!r}: not in {opened.path}. Known: {known}.")
    if file is None:
        print_text(to_json(rows).rstrip("\n"))
        return 0
    write_whole(file, WRITERS[file.suffix.lower()](rows))
    document = {"measurements": len(rows), "output": str(file)}
    from foretrain.units import counted

    headline = f"{counted(len(rows), 'measurement')} written to {file}"
    return moved_document(headline, rows, document)


def import_(measured: list[Path], output: Output, store: str | None = None) -> Document:
    """Import measurement files into the store; if one is invalid, nothing is imported."""
    from foretrain.measurement.exchange import read_measurements
    from foretrain.measurement.store import Store
    from foretrain.report.measured import moved_document

    rows = [row for file in measured for row in read_measurements(file)]
    with Store.open(store) as opened:
        before = sum(opened.count().values())
        opened.add(*rows)
        new = sum(opened.count().values()) - before
        path = opened.path
    document = {"measurements": len(rows), "new": new, "store": str(path)}
    headline = f"{new:,} of {len(rows):,} measurements are new in {path}"
    return moved_document(headline, rows, document)


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
