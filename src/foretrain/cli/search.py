"""`foretrain search`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.cli.options import OpenQuestion, Output
from foretrain.errors import InputError

if TYPE_CHECKING:
    from foretrain.cli.progress import SearchProgress
    from foretrain.report.document import Document
    from foretrain.searching import SearchResult


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which plans are looked at, and what is asked of them."""

    objective: str = "time"
    top: int = 10
    where: list[str] | None = None
    per_layer: bool | None = None
    hypothetical: bool = False
    seed: int | None = None


@dataclasses.dataclass(frozen=True)
class Workforce:
    """Who does the work, and where what is done is kept."""

    workers: int | None = None
    ray: str | None = None
    state: Path | None = None
    restart: bool = False


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Launch files of the best plan."""

    export: Path | None = None
    to: str | None = None


def search(
    question: OpenQuestion,
    wanted: Wanted,
    workforce: Workforce,
    launch: ExportOptions,
    output: Output,
    why: str | None = None,
) -> Document | int:
    """Search for the best parallelization plans and explain why others are slower.

    All plans are estimated and the best are simulated. Exit code 1 if none fits.
    """
    from foretrain.cli.progress import SearchProgress

    asked = _asked(question, wanted, workforce)
    _expect_target(launch.export, launch.to)
    from foretrain.advice.why import is_plan
    from foretrain.report.search import search_document
    from foretrain.searching import search as find

    is_plan(why or "")  # a fault in it is told before the search, not after
    shown = SearchProgress(quiet=output.quiet)
    try:
        with shown:
            result = find(**asked, to=launch.to, progress=shown)
            answer = result.why(why) if why is not None else None
    except KeyboardInterrupt:
        return _interrupted(shown, workforce.state)
    result = dataclasses.replace(result, said={**result.said, **question.written()})
    return search_document(result, answer, _exported(result, launch))


def _asked(question: OpenQuestion, wanted: Wanted, workforce: Workforce) -> dict[str, Any]:
    """Arguments of the public API."""
    asked = question.asked()
    if "batch" not in asked:
        raise InputError("--batch: missing. Specify the global batch size in samples.")
    more = {**dataclasses.asdict(wanted), **dataclasses.asdict(workforce)}
    return {**asked, **more, "where": tuple(wanted.where or ())}


def _interrupted(shown: SearchProgress, state: Path | None) -> int:
    """What is kept, and how to go on."""
    from foretrain.cli.output import note

    if not shown.parts:
        note("foretrain: interrupted before any plan was evaluated.")
    elif state is None:
        note(
            f"foretrain: interrupted after {shown.reached()}; no progress was saved. With "
            "--state FILE the same command can resume."
        )
    else:
        note(
            f"foretrain: interrupted after {shown.reached()}; progress is saved in {state}. "
            "Run the same command again to resume."
        )
    return 130


def _expect_target(folder: Path | None, target: str | None) -> None:
    """Refuse what cannot be written before any work is done."""
    if folder is None and target is None:
        return
    from foretrain.adapters.write import TARGETS, expect_target
    from foretrain.adapters.write.exported import expect_folder

    if target is None:
        raise InputError(f"--export {folder}: also specify --to, one of {', '.join(TARGETS)}.")
    expect_target(target)
    if folder is None:
        raise InputError(f"--to {target}: also specify the output directory with --export DIR.")
    expect_folder(folder)


def _exported(result: SearchResult, launch: ExportOptions) -> dict[str, Any] | None:
    """Launch files of the best plan, where they are asked for."""
    if launch.export is None or launch.to is None or not result.best:
        return None
    from foretrain.exports import export_scenario

    exported = export_scenario(result.task.scenario(result.best[0].plan), launch.to)
    exported.save(launch.export)
    return {
        "target": exported.target,
        "folder": str(launch.export),
        "files": list(exported.files),
        "cannot": list(exported.cannot),
        "warnings": list(exported.warnings),
    }
