"""`foretrain sweep`."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from foretrain.cli.options import JobOptions, Output, Question, literal
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.sweeps import Sweep


def sweep(
    question: Question, job: JobOptions, output: Output, vary: list[str] | None = None
) -> Sweep:
    """Predict all combinations of the given values."""
    from foretrain.cli.progress import Progress

    axes = _axes(vary)
    first = {name: str(values[0]) for name, values in axes.items()}
    needed = dataclasses.replace(  # what is varied need not be given apart
        question,
        model=question.model or first.get("model"),
        on=question.on or first.get("on"),
    )
    asked = {**needed.asked(), **job.asked()}
    for name in ("model", "on"):
        if getattr(question, name) is None:
            del asked[name]  # it is varied
    import foretrain

    total = math.prod(len(values) for values in axes.values())
    with Progress("points", total, quiet=output.quiet) as progress:
        return foretrain.sweep(**asked, vary=axes, progress=progress)


def _axes(texts: list[str] | None) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for text in texts or ():
        key, equals, values = text.partition("=")
        name = key.strip().replace("-", "_") if "." not in key else key.strip()
        if not equals or not values.strip():
            raise InputError(f"--vary {text!r} is not KEY=A,B,C.")
        if name in axes:
            raise InputError(f"--vary: {name!r} is specified twice.")
        axes[name] = [
            literal(value.strip().strip("'\"")) for value in values.split(",") if value.strip()
        ]
    if not axes:
        raise InputError("--vary: missing. Specify what to vary, such as --vary seq=4k,8k.")
    return axes
