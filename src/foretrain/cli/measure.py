"""`foretrain measure …`: one row for each command; what it does is in the file the row names."""

from __future__ import annotations

import typer

from foretrain.cli.options import HELP, command
from foretrain.named import named

# Command -> "module:function" under foretrain.cli, in the order help shows them.
MEASURES: dict[str, str] = {
    "ops": "measure_device:ops",
    "links": "measure_device:links",
    "data": "measure_device:data",
    "train": "measure_train:train",
    "whatif": "measure_train:whatif",
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
    command(app, named(f"foretrain.cli.{_home}"), name=_name)
