"""`foretrain measure study`."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrain.cli.options import Output
from foretrain.errors import InputError


def study(
    output: Output,
    devices: Annotated[
        str, typer.Option(metavar="N,…", help="Numbers of training processes, such as 2 or 2,4.")
    ] = "2",
    batch: Annotated[int, typer.Option(help="Samples per process.")] = 4,
    steps: Annotated[int, typer.Option(help="Timed steps per network.")] = 20,
    repeats: Annotated[int, typer.Option(help="Training runs per network.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use five networks instead of all.")
    ] = False,
) -> int:
    """Measure how communication stalls scale with layers, gradients, bytes and devices on this machine.

    Trains a family of networks in one process and in several, fits a law and asks the simulator for the same.
    -o FILE.html draws it.
    """
    from foretrain.cli.output import expect_files, give
    from foretrain.cli.progress import Progress

    expect_files(output)
    counts = [word.strip() for word in devices.split(",")]
    if not all(word.isdigit() for word in counts):
        raise InputError(f"--devices {devices!r} is not a list of numbers such as 2,4.")
    faults = [
        f"--{name} {value}: must be {least} or more."
        for name, value, least in (
            ("batch", batch, 1),
            ("steps", steps, 5),
            ("repeats", repeats, 1),
        )
        if value < least
    ]
    if faults:
        raise InputError("invalid study:", faults=faults)
    from foretrain.measurement.study import measure_study
    from foretrain.measurement.study_networks import FAMILY, QUICK
    from foretrain.report.measured_study import study_document

    with Progress("launches", quiet=output.quiet) as progress:
        found = measure_study(
            QUICK if quick else FAMILY,
            devices=[int(word) for word in counts],
            batch=batch,
            steps=steps,
            repeats=repeats,
            progress=progress,
        )
    return give(study_document(found), output)
