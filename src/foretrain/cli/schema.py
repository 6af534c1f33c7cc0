"""`foretrain schema`."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrain.cli.options import Output

NAMES = ("cluster", "plan", "model", "case", "prediction", "search", "runtime", "calibration")


def schema(
    output: Output,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help=" | ".join(NAMES))] = None,
) -> int:
    """JSON Schema of a file format, for editors and tools.

    Without NAME, the list of them.
    """
    from foretrain.cli.output import expect_page, give_page, print_text
    from foretrain.report.json import dumps
    from foretrain.report.page import Page, Section, save_page

    expect_page(output)
    if name is None:
        rows = tuple((known,) for known in NAMES)
        return give_page(
            Page("Schemas", {"schemas": NAMES}, (Section("Known", ("name",), rows),)), output
        )
    import foretrain

    document = foretrain.schema(name)
    for path in output.files or ():
        save_page(Page(f"JSON Schema of {name}", document), path)
    if not output.files or output.json:
        print_text(dumps(document))
    return 0
