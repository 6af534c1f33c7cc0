"""`foretrain search`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.options import OpenQuestion, Output
from foretrain.errors import FileError, InputError

if TYPE_CHECKING:
    from foretrain.cli.search_progress import SearchProgress
    from foretrain.searching import Found


@dataclasses.dataclass(frozen=True)
class Wanted:
    """Which plans are looked at, and what is asked of them."""

    objective: Annotated[
        str, typer.Option(metavar="time|cost|memory|pareto", help="What is made small.")
    ] = "time"
    top: Annotated[int, typer.Option(metavar="N", help="How many plans to show.")] = 10
    where: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONSTRAINTS",
            help="Plans to look at: 'tp<=8, pp=4|8, zero>=1, sp, no recompute'. Repeatable.",
        ),
    ] = None
    per_layer: Annotated[
        bool,
        typer.Option("--per-layer", help="Also try different strategies for different layers."),
    ] = False
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Draws --stragglers that are given as a spread; the search itself draws nothing.",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class Workforce:
    """Who does the work, and where what is done is kept."""

    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Processes to use; left out, this one.")
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A Ray cluster to use; 'local' starts one here."),
    ] = None
    state: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Keep what is done in FILE; the same command goes on from there.",
        ),
    ] = None
    restart: Annotated[bool, typer.Option("--restart", help="Forget what --state FILE holds.")] = (
        False
    )


@dataclasses.dataclass(frozen=True)
class Launch:
    """Launch files of the best plan."""

    export: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write launch files of the best plan into DIR."),
    ] = None
    to: Annotated[
        str | None,
        typer.Option(metavar="TARGET", help="What they are for: megatron, deepspeed, torchrun …"),
    ] = None


def search(
    question: OpenQuestion,
    wanted: Wanted,
    workforce: Workforce,
    launch: Launch,
    output: Output,
    why: Annotated[
        str | None,
        typer.Option(metavar="CHOICE", help="Say why the best plan is not like this: 'tp=4'."),
    ] = None,
) -> int:
    """The best plans, what they trade, and why the others lose.

    Every plan is estimated, the best are simulated. Exit code 1 when none fits.
    """
    from foretrain.cli.output import expect_page, give_page
    from foretrain.cli.search_progress import SearchProgress

    expect_page(output)
    asked = _asked(question, wanted, workforce)
    _expect_target(launch.export, launch.to)
    from foretrain.planning.constraints import parse
    from foretrain.report.search import search_page
    from foretrain.searching import search as find

    parse([why or ""])  # a fault in it is told before the search, not after
    shown = SearchProgress(quiet=output.quiet)
    try:
        with shown:
            found = find(**asked, progress=shown)
            answer = found.why(why) if why is not None else None
    except KeyboardInterrupt:
        return _interrupted(shown, workforce.state)
    return give_page(search_page(found, answer, _exported(found, launch)), output)


def _asked(question: OpenQuestion, wanted: Wanted, workforce: Workforce) -> dict[str, Any]:
    """Arguments of the public API."""
    asked = question.asked()
    if "batch" not in asked:
        raise InputError("--batch: missing. Give the global batch in samples.")
    more = {**dataclasses.asdict(wanted), **dataclasses.asdict(workforce)}
    return {**asked, **more, "where": tuple(wanted.where or ())}


def _interrupted(shown: SearchProgress, state: Path | None) -> int:
    """What is kept, and how to go on."""
    from foretrain.cli.output import note

    if not shown.parts:
        note("foretrain: interrupted before any plan was looked at.")
    elif state is None:
        note(
            f"foretrain: interrupted after {shown.reached()}; nothing is kept. With --state FILE the same command "
            "could go on from there."
        )
    else:
        note(
            f"foretrain: interrupted after {shown.reached()}; they are kept in {state}. Give the same command again "
            "to go on."
        )
    return 130


def _expect_target(folder: Path | None, target: str | None) -> None:
    """Refuse what cannot be written before any work is done."""
    if folder is None and target is None:
        return
    from foretrain.adapters.write import TARGETS, expect_target

    if target is None:
        raise InputError(
            f"--export {folder}: say with --to what the files are for: {', '.join(TARGETS)}."
        )
    expect_target(target)
    if folder is None:
        raise InputError(f"--to {target}: say with --export DIR where the files go.")
    if not folder.parent.is_dir():
        raise FileError(f"{folder} cannot be made: the folder {folder.parent} does not exist.")
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder} is a file; launch files need a folder. Give another name.")


def _exported(found: Found, launch: Launch) -> dict[str, Any] | None:
    """Launch files of the best plan, where they are asked for."""
    if launch.export is None or launch.to is None or not found.best:
        return None
    from foretrain.adapters.write import export

    made = export(found.task.scenario(found.best[0].plan), launch.to)
    made.save(launch.export)
    return {
        "target": made.target,
        "folder": str(launch.export),
        "files": list(made.files),
        "cannot": list(made.cannot),
    }
