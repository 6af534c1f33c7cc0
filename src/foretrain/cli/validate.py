"""`foretrain validate`."""

from __future__ import annotations

from pathlib import Path

from foretrain.cli.options import Output
from foretrain.errors import InputError


def validate(
    cases: list[Path],
    output: Output,
    quality: str = "high,medium",
    group: list[str] | None = None,
    split: str | None = None,
    tolerance: float | None = None,
    jobs: int | None = None,
) -> int:
    """Compare predictions with measurements, group by group.

    Exit code 1 if the mean error exceeds --tolerance or no case could be predicted. -o FILE.html plots the result.
    """
    from foretrain.cli.output import give
    from foretrain.cli.progress import Progress

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
