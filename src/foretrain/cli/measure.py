"""`foretrain measure …`: one row for each command; what it does is in the file the row names."""

from __future__ import annotations

from importlib import import_module

import typer

from foretrain.cli.options import HELP, command

# Command -> "module:function" under foretrain.cli, in the order help shows them.
MEASURES: dict[str, str] = {
    "ops": "measure_device:ops",
    "links": "measure_device:links",
    "data": "measure_device:data",
    "train": "measure_train:train",
    "whatif": "measure_train:whatif",
    "study": "measure_study:study",
    "export": "measure_store:export",
    "import": "measure_store:import_",
}

app = typer.Typer(
    help="Measure this machine, and move measurements between stores and files.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": list(HELP)},
)
for _name, _home in MEASURES.items():
    _module, _, _function = _home.partition(":")
    command(app, getattr(import_module(f"foretrain.cli.{_module}"), _function), name=_name)
