"""The commands: one file each, one row each."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from foretrain import __version__
from foretrain.cli.options import HELP, command
from foretrain.cli.parsing import let_texts_through
from foretrain.named import named

# Command -> "module:function" under foretrain.cli, or the app of a group of commands; in the order help shows
# them. Names, not functions, so that one command does not load the others.
COMMANDS: dict[str, str] = {
    "predict": "predict:predict",
    "fit": "fit:fit",
    "explain": "explain:explain",
    "compare": "compare:compare",
    "whatif": "whatif:whatif",
    "sweep": "sweep:sweep",
    "search": "search:search",
    "recommend": "recommend:recommend",
    "measure": "measure:app",
    "calibrate": "calibrate:calibrate",
    "import": "import_:app",
    "validate": "validate:validate",
    "compile": "compile:compile_command",
    "export": "export:export",
    "catalog": "catalog:app",
    "schema": "schema:schema",
    "doctor": "doctor:doctor",
}


def app_for(args: list[str]) -> typer.Typer:
    """The command line as far as these arguments need it: the command they name, else all."""
    return app_with(args[:1] if args[:1] and args[0] in COMMANDS else COMMANDS)


def app_with(names: Iterable[str]) -> typer.Typer:
    """The command line with these commands."""
    # Plain help: drawing it with rich would take as long again as everything else.
    app = typer.Typer(
        name="foretrain",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP)},
    )
    app.callback()(top)
    for name in names:
        target = named(f"foretrain.cli.{COMMANDS[name]}")
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name)
        else:
            command(app, target, name=name)
    return app


def addressed(app: typer.Typer, args: list[str]) -> tuple[Any, list[str], str]:
    """(command to run, its arguments, its name): the top one, or for plain help the one it is about."""
    top_command: Any = typer.main.get_command(app)
    let_texts_through(top_command)
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


def top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Predict distributed training before you rent the cluster: step time, memory, stalls and cost.

    Exit codes: 0 success; 1 negative result (does not fit, tolerance exceeded); 2 invalid input; 101 internal error.
    """
