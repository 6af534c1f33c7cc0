"""`foretrain whatif`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.cli.options import JobOptions, Output, Question, assignments
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.analysis.answers import WhatIf


def whatif(
    question: Question, job: JobOptions, output: Output, changes: list[str] | None = None
) -> WhatIf:
    """Change something and compare the step before and after."""
    changed = assignments(changes, "--set")
    if not changed:
        raise InputError(
            "--set: missing. Specify what to change, such as --set network.bandwidth=2x."
        )
    asked = {**question.asked(), **job.asked()}
    import foretrain

    return foretrain.whatif(**asked, changes=changed)
