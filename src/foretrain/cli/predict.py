"""`foretrain predict`."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from foretrain.cli.options import JobOptions, Output, Question
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.analysis.prediction import Prediction


class PredictionOutput(Output):
    """Of one prediction, with its timeline, or of all of a file."""

    is_expected_later = True


def predict(
    question: Question, job: JobOptions, output: PredictionOutput, cases: str | None = None
) -> Prediction | int:
    """Predict step time, memory, stalls and cost of a training step or a whole job.

    One configuration from the options, or every case of a file with --cases. Exit code 1 when it does not
    fit, or when the file has no case that could be predicted.
    """
    if cases is not None:
        if job != JobOptions():
            raise InputError(
                "--cases predicts single steps; remove the job options (--tokens, --steps …)."
            )
        return _many(cases, question, output)
    from foretrain.cli.output import expect_files

    expect_files(output, has_timeline=True)
    asked = {**question.asked(), **job.asked()}
    import foretrain

    return foretrain.predict(**asked)


def _many(path: str, question: Question, output: Output) -> int:
    from foretrain.cli import case_lines
    from foretrain.cli.output import note
    from foretrain.cli.streams import write_answer
    from foretrain.report.files import whole_file

    if question != Question():
        raise InputError(
            "--cases reads everything from the file; remove MODEL and the other options."
        )
    files = output.files or []
    if len(files) > 1 or any(file.suffix.lower() != ".jsonl" for file in files):
        raise InputError(
            "--cases writes one JSON Lines file: use one -o FILE.jsonl, or none for stdout."
        )
    with case_lines.open_cases(path) as stream:
        if not files:
            done, failed = _write(
                stream, path, output, lambda raw: write_answer(raw.decode("utf-8"))
            )
        else:
            with whole_file(files[0]) as target:
                done, failed = _write(stream, path, output, target.write)
    if not done:
        note(f"{path} has no cases; expected {case_lines.WHAT}.")
    if failed and not output.quiet:
        from foretrain.units import counted

        note(
            f"{failed:,} of {counted(done, 'case')} could not be predicted; see the errors in "
            "the file."
        )
    if files:
        _summary(done, failed, str(files[0]), output)
    return 1 if failed == done else 0


def _write(
    stream: IO[bytes], path: str, output: Output, write: Callable[[bytes], object]
) -> tuple[int, int]:
    import foretrain
    from foretrain.cli import case_lines
    from foretrain.cli.progress import Progress
    from foretrain.report.json import dumps

    done = failed = 0
    with Progress("cases", case_lines.count_lines(path), quiet=output.quiet) as progress:
        for document in case_lines.answered(stream, foretrain.predict_cases):
            write((dumps(document, indent=None) + "\n").encode("utf-8"))
            done += 1
            failed += "error" in document
            progress(done)
    return done, failed


def _summary(done: int, failed: int, target: str, output: Output) -> None:
    from foretrain.cli.output import print_text
    from foretrain.report.json import dumps

    if output.json:
        print_text(dumps({"cases": done, "failed": failed, "output": target}))
    elif not output.quiet:
        from foretrain.units import counted

        print_text(f"{done - failed:,} of {counted(done, 'case')} predicted, written to {target}")
