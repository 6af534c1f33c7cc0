"""`foretrain measure train` and `measure whatif`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.cli.options import Output, Question, assignments
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.report.document import Document


def train(
    command: list[str],
    question: Question,
    output: Output,
    data: list[Path] | None = None,
    steps: int = 20,
    warmup: int = 5,
    repeats: int = 3,
    rounds: int = 2,
    budget: str = "60s",
    timeout: str = "15min",
    runs: str | None = None,
    one: str | None = None,
    cache: str = "cold",
    log: Path | None = None,
    store: Path | None = None,
) -> Document | int:
    """Measure where a training script spends its time: compute, communication, data, host.

    The script loops over foretrain.measure.watch(loader, model, optimizer) and is run several times: one device and
    all, one batch replayed and real data, cold cache and warm. -o FILE.html draws it.
    """
    from foretrain.cli.output import note
    from foretrain.cli.progress import Progress
    from foretrain.measurement.protocol import StallProtocol, measure_train
    from foretrain.units import parse_seconds

    protocol = StallProtocol(
        steps=steps,
        warmup=warmup,
        repeats=repeats,
        rounds=rounds,
        seconds=parse_seconds(budget),
        timeout=parse_seconds(timeout),
        data=tuple(str(path.absolute()) for path in data or ()),
        runs=tuple(name.strip() for name in runs.split(",")) if runs else (),
        one_device=tuple(shlex.split(one or "")),
        cache=cache,
        log=log,
    )
    predicted = _predicted(question)
    with Progress("launches", quiet=output.quiet) as progress:
        document = measure_train(command, protocol, prediction=predicted, progress=progress)
    if document is None:
        note("measured as an additional host; the first host prints the result.")
        return 0
    if store is not None:
        _keep(document, store)
    from foretrain.report.measured_train import train_document

    return train_document(document)


def _predicted(question: Question) -> dict[str, Any] | None:
    """The configuration that is measured, as a question: predicted beside it where --model and --on are given."""
    if question == Question():
        return None
    import foretrain

    return foretrain.predict(**question.asked()).to_dict(in_full=False)


def _keep(document: dict[str, Any], store: Path) -> None:
    from foretrain.measurement.train_runs import keep_runs

    keep_runs(document, None if str(store) in ("", ".") else store)


def whatif(file: Path, output: Output, changes: list[str] | None = None) -> Document:
    """Estimate the effect of caching, more workers or cores, or a faster disk or network on a measured run."""
    from foretrain.loading import load_json
    from foretrain.measurement.whatif import changed, feeding_of
    from foretrain.report.measured_train import changed_document

    document = load_json(file, "a document of `measure train`")
    wanted = assignments(changes, "--set")
    if not wanted:
        raise InputError("--set: missing. Specify what to change, such as --set workers=8.")
    before = feeding_of(document, str(file))
    return changed_document(before, changed(before, wanted), wanted)
