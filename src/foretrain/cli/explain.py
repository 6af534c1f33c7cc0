"""`foretrain explain`."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrain.cli.options import Output


def explain(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A prediction written with -o FILE.json.")
    ],
    output: Output,
) -> int:
    """Explain where the step time goes and what would help most."""
    from foretrain.cli.documents import prediction_document
    from foretrain.cli.output import expect_files, give

    expect_files(output)
    document = prediction_document(file)
    import foretrain

    return give(foretrain.explain(document), output)
