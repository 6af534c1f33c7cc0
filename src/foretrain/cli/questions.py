"""Commands that ask one question: `fit`, `whatif`, `sweep`, `compile`, and of predictions that were written `explain` and
`compare`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.cli.options import JobOptions, Output, Question, assignments, literal
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.analysis.answers import FitAnswer, WhatIf
    from foretrain.analysis.compare import Comparison
    from foretrain.analysis.explain import Explanation
    from foretrain.report.document import Document
    from foretrain.sweeps import Sweep


def fit(question: Question, output: Output) -> FitAnswer:
    """Check whether a configuration fits in memory, and what would make it fit."""
    asked = question.asked()
    import foretrain

    return foretrain.fit(**asked)


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


def compile_command(question: Question, output: Output, dump: bool = False) -> Document:
    """Show the compiled program: rank classes, shapes and tasks."""
    asked = question.asked()
    import foretrain
    from foretrain.report.graph import graph_document

    graph = foretrain.compile_graph(**asked)
    return graph_document(graph, graph.asked, dump)


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


def explain(file: str, output: Output) -> Explanation:
    """Explain where the step time goes and what would help most."""
    document = _prediction(file)
    import foretrain

    return foretrain.explain(document)


def compare(a: str, b: str, output: Output) -> Comparison:
    """Compare two predictions and attribute the difference to its causes.

    Times are per token or sample if the work differs. Exit code 1 if the two share no unit of work.
    """
    documents = _prediction(a), _prediction(b)
    import foretrain

    return foretrain.compare(*documents, names=(a, b))


def _prediction(path: str) -> Mapping[str, Any]:
    """The document in `path`, refused where it is something else."""
    from foretrain.analysis.document import expect_prediction
    from foretrain.loading import load_json

    what = "a prediction (write one with 'foretrain predict … -o FILE.json')"
    return expect_prediction(load_json(Path(path), what), path)
