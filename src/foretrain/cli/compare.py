"""`foretrain compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrain.cli.options import Output


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A prediction written with -o A.json.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The prediction to compare it with.")],
    output: Output,
) -> int:
    """Compare two predictions and attribute the difference to its causes.

    Times are per token or sample if the work differs. Exit code 1 if the two share no unit of work.
    """
    from foretrain.cli.documents import prediction_document
    from foretrain.cli.output import expect_files, give

    expect_files(output)
    documents = prediction_document(a), prediction_document(b)
    import foretrain

    return give(foretrain.compare(*documents, names=(a, b)), output)
