"""The commands: one file each, one row each."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from foretrain import __version__
from foretrain.cli import (
    catalog,
    compare,
    compile,
    doctor,
    explain,
    fit,
    predict,
    schema,
    sweep,
    validate,
    whatif,
)
from foretrain.cli.options import HELP, command

# Plain help: drawing it with rich would take as long again as everything else.
app = typer.Typer(
    name="foretrain",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": list(HELP)},
)


def addressed(app: typer.Typer, args: list[str]) -> tuple[Any, list[str], str]:
    """(command to run, its arguments, its name): the top one, or for plain help the one it is about.

    Going through the top command makes the parser load its validator, which doubles the time help takes.
    """
    top_command: Any = typer.main.get_command(app)
    command, name = top_command, "foretrain"
    if len(args) > 1 and args[-1] in HELP:
        for word in args[:-1]:
            if word not in getattr(command, "commands", {}):
                return top_command, args, "foretrain"
            command, name = command.commands[word], f"{name} {word}"
        return command, args[-1:], name
    return top_command, args, name


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"foretrain {__version__}\n")
        raise typer.Exit()


@app.callback()
def top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Predicts distributed training before the cluster is rented: step time, memory, stalls and cost.

    Exit codes: 0 the answer; 1 the answer is no (does not fit, tolerance exceeded); 2 bad input; 101 our bug.
    """


command(app, predict.predict)
command(app, fit.fit)
command(app, explain.explain)
command(app, compare.compare)
command(app, whatif.whatif)
command(app, sweep.sweep)
command(app, validate.validate)
command(app, compile.compile_command, name="compile")
app.add_typer(catalog.app, name="catalog")
command(app, schema.schema)
command(app, doctor.doctor)
