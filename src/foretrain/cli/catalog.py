"""`foretrain catalog list|show|add|check`."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrain.cli.completion import KINDS
from foretrain.cli.options import HELP, Output, command
from foretrain.errors import InputError, hint

app = typer.Typer(
    help="Devices, nodes, links, models, runtimes and measurements.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": list(HELP)},
)


def list_rows(
    output: Output,
    kind: Annotated[str | None, typer.Argument(metavar="KIND", help=" | ".join(KINDS))] = None,
) -> int:
    """List catalog entries by name."""
    from foretrain.cli.output import expect_files, give
    from foretrain.report.catalog import list_document

    expect_files(output)
    if kind is not None and kind not in KINDS:
        raise InputError(f"unknown kind {kind!r}.{hint(kind, KINDS)}")
    return give(list_document(KINDS if kind is None else (kind,)), output)


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A device, node, link, model or runtime; or a cluster to draw."
        ),
    ],
    output: Output,
) -> int:
    """Show a catalog entry with its sources."""
    from foretrain.cli.output import expect_files, give
    from foretrain.report.catalog import entry_document

    expect_files(output)
    return give(entry_document(name), output)


def add(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="YAML file with devices, nodes or links.")
    ],
    output: Output,
    replace: Annotated[
        bool, typer.Option("--replace", help="Overwrite entries already in your catalog.")
    ] = False,
) -> int:
    """Add the entries of a file to your own catalog."""
    from foretrain.cli.catalog_files import add_file
    from foretrain.cli.output import expect_files, give
    from foretrain.report.document import Document, Lines

    expect_files(output)
    target, names = add_file(file, replace)
    added = {"added": names, "file": str(target)}
    lines = (
        (
            "Set the environment variable FORETRAIN_CATALOG to this directory for Foretrain to "
            "read it."
        ),
    )
    headline = f"Added {', '.join(names)} to {target}"
    return give(Document(headline, lambda: added, lambda: (Lines("Use", lines),)), output)


def check(output: Output) -> int:
    """Validate every catalog entry and list errors.

    Exit code 1 if there are any.
    """
    from foretrain.cli.output import expect_files, give
    from foretrain.report.catalog import check_document

    expect_files(output)
    return give(check_document(), output)


command(app, list_rows, name="list")
command(app, show)
command(app, add)
command(app, check)
