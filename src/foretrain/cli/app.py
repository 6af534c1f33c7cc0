"""The commands: one file each, one row each; and how one is made of a function."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import typer

from foretrain import __version__
from foretrain.cli.options import ARGUMENTS, OPTIONS, Output
from foretrain.cli.parsing import let_texts_through
from foretrain.cli.process import COMPLETE, hang_up, interrupted
from foretrain.cli.streams import answer_alone
from foretrain.named import named

HELP = ("-h", "--help")


@dataclasses.dataclass(frozen=True)
class CommandGroup:
    """Commands under one word."""

    help: str
    commands: dict[str, str]


# Command -> "module:function" under foretrain.cli, in the order help shows them. Names, not functions, so that one
# command does not load the others.
COMMANDS: dict[str, str | CommandGroup] = {
    "predict": "predict:predict",
    "fit": "questions:fit",
    "explain": "questions:explain",
    "compare": "questions:compare",
    "whatif": "questions:whatif",
    "sweep": "questions:sweep",
    "search": "search:search",
    "recommend": "recommend:recommend",
    "measure": CommandGroup(
        "Measure this machine, and move measurements between stores and files.",
        {
            "ops": "measure_device:ops",
            "links": "measure_device:links",
            "data": "measure_device:data",
            "train": "measure_train:train",
            "whatif": "measure_train:whatif",
            "export": "measure_store:export",
            "import": "measure_store:import_",
        },
    ),
    "calibrate": "measure_store:calibrate",
    "import": CommandGroup(
        "Import output of other tools: profiler traces, nccl-tests.",
        {
            "trace": "import_:trace",
            "nccl-tests": "import_:nccl_tests",
            "model": "import_:model",
            "cluster": "import_:cluster",
        },
    ),
    "validate": "validate:validate",
    "compile": "questions:compile_command",
    "export": "export:export",
    "catalog": CommandGroup(
        "Devices, nodes, links, models, runtimes and measurements.",
        {
            "list": "catalog:list_rows",
            "show": "catalog:show",
            "add": "catalog:add",
            "check": "catalog:check",
        },
    ),
    "schema": "schema:schema",
    "doctor": "doctor:doctor",
}


def app_for(args: list[str]) -> typer.Typer:
    """The command line as far as these arguments need it: the command they name, else all."""
    return app_with(args[:1] if args[:1] and args[0] in COMMANDS else COMMANDS)


def app_with(names: Iterable[str]) -> typer.Typer:
    """The command line with these commands."""
    app = _app(name="foretrain")
    app.callback()(top)
    for name in names:
        target = COMMANDS[name]
        if isinstance(target, str):
            _add(app, name, target)
            continue
        group = _app(help=target.help)
        for inner, home in target.commands.items():
            _add(group, f"{name} {inner}", home)
        app.add_typer(group, name=name)
    return app


def _app(**about: Any) -> typer.Typer:
    # Plain help: drawing it with rich would take as long again as everything else.
    return typer.Typer(
        **about,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(HELP)},
    )


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


# --- one command ------------------------------------------------------------------------------------


def _add(app: typer.Typer, path: str, home: str) -> None:
    """The function at `home` as the command `path`: its groups unfolded, its parameters worded as `options.yaml` says."""
    function: Callable[..., Any] = named(f"foretrain.cli.{home}")
    hints = _hints(function)
    groups = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for own in inspect.signature(function).parameters.values():
        if own.name in groups:
            parameters += _fields(typing.cast(type, groups[own.name]))
        else:
            parameters.append(own.replace(annotation=hints[own.name], kind=own.KEYWORD_ONLY))
    parameters = [one.replace(annotation=_worded(path, one)) for one in parameters]
    name = path.rpartition(" ")[2]

    if COMPLETE in os.environ:
        from foretrain.cli.completion import attach

        for parameter in parameters:
            attach(name, parameter)

    @functools.wraps(function)
    def call(**given: Any) -> int:
        for key, group in groups.items():
            names = [one.name for one in _fields(typing.cast(type, group))]
            given[key] = typing.cast(Any, group)(**{name: given.pop(name) for name in names})
        return _guarded(function, given)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    del call.__wrapped__
    app.command(name, context_settings={"help_option_names": list(HELP)})(call)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Types of the parameters; that of the answer may name what is not loaded."""
    own = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    annotated = types.SimpleNamespace(__annotations__=own)
    return typing.get_type_hints(annotated, globalns=inspect.unwrap(function).__globals__)


@functools.cache
def _fields(group: type) -> tuple[inspect.Parameter, ...]:
    hints = typing.get_type_hints(group)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return tuple(
        inspect.Parameter(one.name, keyword, default=one.default, annotation=hints[one.name])
        for one in dataclasses.fields(group)
        if one.name not in getattr(group, "LEFT_OUT", ())
    )


def _worded(path: str, parameter: inspect.Parameter) -> Any:
    """The type of a parameter with the words of this command for it, else those of all commands."""
    tables: tuple[tuple[dict[str, list[str]], Any], ...]
    tables = ((ARGUMENTS, typer.Argument), (OPTIONS, typer.Option))
    for key in (f"{path}.{parameter.name}", parameter.name):
        for table, kind in tables:
            if key in table:
                metavar, text, *flags = table[key]
                if parameter.annotation is bool and not flags:
                    flags = [f"--{parameter.name.replace('_', '-')}"]  # without a --no-… beside it
                about = kind(*flags, metavar=metavar or None, help=text or None)
                return Annotated[parameter.annotation, about]
    raise KeyError(f"{path}: no words for {parameter.name}")


def _guarded(function: Callable[..., Any], given: dict[str, Any]) -> int:
    """Ends that the parser would answer with codes, or a silence, that mean something else here."""
    try:
        is_json = any(getattr(value, "json", False) for value in given.values())
        with answer_alone() if is_json else contextlib.nullcontext():  # nothing else on stdout
            code = _called(function, given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        return hang_up()
    except KeyboardInterrupt:
        return interrupted()


def _called(function: Callable[..., Any], given: dict[str, Any]) -> int:
    """The exit code; an answer or a document that the function returns is shown."""
    output = next((value for value in given.values() if isinstance(value, Output)), None)
    if output is None:
        code: int = function(**given)
        return code
    from foretrain.cli.output import expect_files, give

    if not output.is_expected_later:
        expect_files(output)
    answer = function(**given)
    return answer if isinstance(answer, int) else give(answer, output)
