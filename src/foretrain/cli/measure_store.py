"""`foretrain measure export|import`: measurements out of the store and into it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrain.cli.options import Output
from foretrain.errors import InputError

StoreOption = Annotated[
    str | None, typer.Option("--store", metavar="FILE", help="The store; left out, yours.")
]


def export(
    output: Output,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="A .json or .csv file; left out, JSON on stdout."),
    ] = None,
    store: StoreOption = None,
    kind: Annotated[
        str | None, typer.Option(help="One kind alone: op, link, data, train or host.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="ID", help="Those of one machine alone.")
    ] = None,
) -> int:
    """Write measurements into a file that other stores, and other software, can read."""
    from foretrain.cli.output import expect_page, give_page, print_text
    from foretrain.measurement.exchange import WRITERS, to_json
    from foretrain.measurement.store import KINDS, Store
    from foretrain.report.files import write_whole
    from foretrain.report.measurements import moved_page

    expect_page(output)
    if kind is not None and kind not in KINDS:
        raise InputError(f"--kind {kind!r}: known are {', '.join(KINDS)}.")
    if file is not None and file.suffix.lower() not in WRITERS:
        raise InputError(f"{file}: give a {' or '.join(WRITERS)} file.")
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
    return give_page(moved_page(headline, rows, document), output)


def import_(
    measured: Annotated[
        list[Path], typer.Argument(metavar="FILES…", help="What 'measure export' wrote.")
    ],
    output: Output,
    store: StoreOption = None,
) -> int:
    """Bring measurements of files into the store: all of them, or none where one is not usable."""
    from foretrain.cli.output import expect_page, give_page
    from foretrain.measurement.exchange import read_measurements
    from foretrain.measurement.store import Store
    from foretrain.report.measurements import moved_page

    expect_page(output)
    rows = [row for file in measured for row in read_measurements(file)]
    with Store.open(store) as opened:
        before = sum(opened.count().values())
        opened.add(*rows)
        new = sum(opened.count().values()) - before
        path = opened.path
    document = {"measurements": len(rows), "new": new, "store": str(path)}
    headline = f"{new:,} new measurements of {len(rows):,} in {path}"
    return give_page(moved_page(headline, rows, document), output)
