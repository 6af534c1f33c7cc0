"""`foretrain whatif`."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrain.cli.job import JobOptions
from foretrain.cli.options import ChangedQuestion, Output, assignments
from foretrain.errors import InputError


def whatif(
    question: ChangedQuestion,
    job: JobOptions,
    output: Output,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="What to change: network.bandwidth=2x, interconnect.bandwidth=2x, device.compute=1.5x, "
            "device.memory_bandwidth=2x, host=0x, plan='…', batch=512, runtime=fsdp2; or a runtime "
            "option: cuda_graphs=true, attention=flash … Repeatable.",
        ),
    ] = None,
) -> int:
    """Change something and compare the step before and after."""
    from foretrain.cli.output import expect_files, give

    expect_files(output)
    changed = assignments(changes, "--set")
    if not changed:
        raise InputError(
            "--set: missing. Specify what to change, such as --set network.bandwidth=2x."
        )
    asked = {**question.asked(), **job.asked()}
    import foretrain

    return give(foretrain.whatif(**asked, changes=changed), output)
