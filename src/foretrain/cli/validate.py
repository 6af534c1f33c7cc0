"""`foretrain validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretrain.cli.options import Output
from foretrain.errors import InputError


def validate(
    cases: Annotated[
        list[Path],
        typer.Argument(
            metavar="CASES…",
            help="Case files with measured values (JSON Lines; '-' for standard input).",
        ),
    ],
    output: Output,
    quality: Annotated[
        str, typer.Option(help="Qualities of measurement to include.")
    ] = "high,medium",
    group: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this group. Repeatable.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="fit|check",
            help="Only the fit or the check half of the cases, split by a hash of their "
            "configuration.",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Exit with code 1 if the mean error over all cases exceeds this, such as 0.1."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Number of processes. Default: all cores.")
    ] = None,
) -> int:
    """Compare predictions with measurements, group by group.

    Exit code 1 if the mean error exceeds --tolerance or no case could be predicted. -o FILE.html plots the result.
    """
    from foretrain.cli.output import expect_files, give
    from foretrain.cli.progress import Progress

    expect_files(output)
    if tolerance is not None and not 0 <= tolerance < float("inf"):
        raise InputError(f"--tolerance {tolerance}: must be a fraction such as 0.1.")
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: must be 1 or more.")
    import foretrain
    from foretrain.report.validation import validation_document
    from foretrain.validation.running import cores

    with Progress("cases", quiet=output.quiet) as progress:
        report = foretrain.validate(
            [str(path) for path in cases],
            quality=tuple(word.strip() for word in quality.split(",") if word.strip()),
            progress=progress,
            split=split,
            groups=tuple(group or ()),
            jobs=jobs or cores(),
        )
    code = give(validation_document(report, tolerance), output)
    return 1 if report.cases and report.total["failed"] == len(report.cases) else code
