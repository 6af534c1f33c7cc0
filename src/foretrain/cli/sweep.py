"""`foretrain sweep`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from foretrain.cli.options import Output, Question, literal
from foretrain.errors import InputError, did_you_mean

ASKED = ("model", "on", "plan", "batch", "micro_batch", "seq", "precision", "optimizer", "runtime")
COUNTS = ("batch", "micro_batch", "seq")
MAX_POINTS = 10_000


def sweep(
    question: Question,
    output: Output,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,C",
            help="Values to try: seq=4k,8k; plan='tp4 dp4','tp8 dp2'; network.bandwidth=1x,2x. Repeatable: all combinations.",
        ),
    ] = None,
) -> int:
    """Predict every combination of some values."""
    from foretrain.cli.output import expect_page, give_page
    from foretrain.cli.progress import Progress

    expect_page(output)
    axes = _axes(vary)
    first = {name: str(values[0]) for name, values in axes.items()}
    needed = dataclasses.replace(  # what is varied need not be given apart
        question,
        model=first.get("model", question.model),
        on=first.get("on", question.on),
    )
    asked = needed.asked()
    from foretrain.report.answers import sweep_page

    total = math.prod(len(values) for values in axes.values())
    with Progress("points", total, quiet=output.quiet) as progress:
        points = []
        for point in _points(axes, asked):
            points.append(point)
            progress(len(points))
    return give_page(sweep_page(list(axes), points), output)


def _axes(texts: list[str] | None) -> dict[str, list[Any]]:
    axes: dict[str, list[Any]] = {}
    for text in texts or ():
        key, equals, values = text.partition("=")
        name = key.strip().replace("-", "_") if "." not in key else key.strip()
        if not equals or not values.strip():
            raise InputError(f"--vary {text!r} is not KEY=A,B,C.")
        if name in axes:
            raise InputError(f"--vary: {name!r} is given twice.")
        if name not in ASKED and "." not in name and name != "host":
            raise InputError(
                f"--vary: unknown key {name!r}.{did_you_mean(name, ASKED)} Known: {', '.join(ASKED)}."
            )
        axes[name] = [
            literal(value.strip().strip("'\"")) for value in values.split(",") if value.strip()
        ]
    if not axes:
        raise InputError("--vary: missing. Say what to vary, such as --vary seq=4k,8k.")
    if math.prod(len(values) for values in axes.values()) > MAX_POINTS:
        raise InputError(f"--vary: more than {MAX_POINTS:,} combinations; give fewer values.")
    return axes


def _points(axes: dict[str, list[Any]], asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    import foretrain
    from foretrain.units import parse_count

    for combination in itertools.product(*axes.values()):
        values = dict(zip(axes, combination, strict=True))
        try:
            own = {n: parse_count(v) if n in COUNTS else v for n, v in values.items() if n in ASKED}
            changes = {name: value for name, value in values.items() if name not in ASKED}
            if changes:
                prediction = foretrain.whatif(**{**asked, **own}, changes=changes)[1]
            else:
                prediction = foretrain.predict(**{**asked, **own})
        except InputError as error:
            message = {"kind": type(error).__name__, "message": str(error)}
            yield {"values": values, "error": message}
        else:
            yield {"values": values, "prediction": prediction}
