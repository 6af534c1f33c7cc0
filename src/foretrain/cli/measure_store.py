"""`foretrain measure export|import`: measurements out of the store and into it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrain.cli.options import Output
from foretrain.errors import InputError

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="FILE", help="Measurement store. Default: your own store."),
]


def export(
    output: Output,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A .json or .csv file. Default: JSON on stdout."),
    ] = None,
    store: StoreOption = None,
    kind: Annotated[
        str | None, typer.Option(help="Only one kind: op, link, data, train or host.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="ID", help="Only measurements of this machine.")
    ] = None,
) -> int:
    """Export measurements to a file for other stores and other software."""
    from foretrain.cli.output import expect_files, give, print_text
    from foretrain.measurement.exchange import WRITERS, to_json
    from foretrain.measurement.store import KINDS, Store
    from foretrain.report.files import write_whole
    from foretrain.report.measured import moved_document

    expect_files(output)
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
    return give(moved_document(headline, rows, document), output)


def import_(
    measured: Annotated[
        list[Path], typer.Argument(metavar="FILES…", help="Files written by 'measure export'.")
    ],
    output: Output,
    store: StoreOption = None,
) -> int:
    """Import measurement files into the store; if one is invalid, nothing is imported."""
    from foretrain.cli.output import expect_files, give
    from foretrain.measurement.exchange import read_measurements
    from foretrain.measurement.store import Store
    from foretrain.report.measured import moved_document

    expect_files(output)
    rows = [row for file in measured for row in read_measurements(file)]
    with Store.open(store) as opened:
        before = sum(opened.count().values())
        opened.add(*rows)
        new = sum(opened.count().values()) - before
        path = opened.path
    document = {"measurements": len(rows), "new": new, "store": str(path)}
    headline = f"{new:,} of {len(rows):,} measurements are new in {path}"
    return give(moved_document(headline, rows, document), output)
