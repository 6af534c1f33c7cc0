"""`foretrain catalog list|show|add|check`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.cli.options import KINDS, Output
from foretrain.errors import InputError, hint

if TYPE_CHECKING:
    from foretrain.report.document import Document


def list_rows(output: Output, kind: str | None = None) -> Document:
    """List catalog entries by name."""
    from foretrain.report.catalog import list_document

    if kind is not None and kind not in KINDS:
        raise InputError(f"unknown kind {kind!r}.{hint(kind, KINDS)}")
    return list_document(KINDS if kind is None else (kind,))


def show(name: str, output: Output) -> Document:
    """Show a catalog entry with its sources."""
    from foretrain.report.catalog import entry_document

    return entry_document(name)


def add(file: str, output: Output, replace: bool = False) -> Document:
    """Add the entries of a file to your own catalog."""
    from foretrain.cli.catalog_files import add_file
    from foretrain.report.document import Document, Lines

    target, names = add_file(file, replace)
    added = {"added": names, "file": str(target)}
    use = (
        "Set the environment variable FORETRAIN_CATALOG to this directory for Foretrain to read it."
    )
    headline = f"Added {', '.join(names)} to {target}"
    return Document(headline, lambda: added, lambda: (Lines("Use", (use,)),))


def check(output: Output) -> Document:
    """Validate every catalog entry and list errors.

    Exit code 1 if there are any.
    """
    from foretrain.report.catalog import check_document

    return check_document()
