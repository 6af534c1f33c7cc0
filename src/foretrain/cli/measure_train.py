"""`foretrain measure train` and `measure whatif`."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from foretrain.cli.options import Output, Question, assignments
from foretrain.errors import InputError


@dataclasses.dataclass(frozen=True)
class SameQuestion(Question):
    """The configuration that is measured, as a question: predicted beside it when --model and --on are given."""

    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Also predict this model and compare."),
    ] = None


def train(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="-- COMMAND…",
            help="Command that runs the script: torchrun --nproc-per-node 2 train.py …, or "
            "python train.py …",
        ),
    ],
    question: SameQuestion,
    output: Output,
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Training data files or directories. Repeatable."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps timed in each run.")] = 20,
    warmup: Annotated[int, typer.Option(help="Untimed warm-up steps before them.")] = 5,
    repeats: Annotated[int, typer.Option(help="Launches of each run.")] = 3,
    rounds: Annotated[
        int,
        typer.Option(help="Rounds over all runs within a launch, to average out machine drift."),
    ] = 2,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Time limit for the steps of a run.")
    ] = "60s",
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Time limit for a whole launch.")
    ] = "15min",
    runs: Annotated[str | None, typer.Option(metavar="T0,T1,…", help="Only these runs.")] = None,
    one: Annotated[
        str | None,
        typer.Option(
            "--one-device",
            metavar="COMMAND",
            help="Command that runs the script on one device, for launchers other than torchrun.",
        ),
    ] = None,
    cache: Annotated[
        str,
        typer.Option(
            metavar="cold|warm",
            help="Whether the stall breakdown is of a step with a cold or a warm cache.",
        ),
    ] = "cold",
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the output of the launches to FILE.")
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Also save the runs in this store ('' for the default store)."
        ),
    ] = None,
) -> int:
    """Measure where a training script spends its time: compute, communication, data, host.

    The script loops over foretrain.measure.watch(loader, model, optimizer) and is run several times: one device and
    all, one batch replayed and real data, cold cache and warm. -o FILE.html draws it.
    """
    from foretrain.cli.output import expect_files, give, note
    from foretrain.cli.progress import Progress
    from foretrain.measurement.protocol import Protocol, measure_train
    from foretrain.units import parse_seconds

    expect_files(output)
    protocol = Protocol(
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

    return give(train_document(document), output)


def _predicted(question: SameQuestion) -> dict[str, Any] | None:
    if question == SameQuestion():
        return None
    import foretrain

    return foretrain.predict(**question.asked()).to_dict(in_full=False)


def _keep(document: dict[str, Any], store: Path) -> None:
    from foretrain.measurement.train_runs import keep_runs

    keep_runs(document, None if str(store) in ("", ".") else store)


def whatif(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.json", help="JSON file written by `measure train`.")
    ],
    output: Output,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="cached=0.5, workers=8, cores=4 (per rank), disk=2x, network=2x. Repeatable: all at once.",
        ),
    ] = None,
) -> int:
    """Estimate the effect of caching, more workers or cores, or a faster disk or network on a measured run."""
    from foretrain.cli.output import expect_files, give
    from foretrain.loading import load_json
    from foretrain.measurement.whatif import changed, feeding_of
    from foretrain.report.measured_train import changed_document

    expect_files(output)
    document = load_json(file, "a document of `measure train`")
    wanted = assignments(changes, "--set")
    if not wanted:
        raise InputError("--set: missing. Specify what to change, such as --set workers=8.")
    before = feeding_of(document, str(file))
    return give(changed_document(before, changed(before, wanted), wanted), output)
