"""`foretrain compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from foretrain.cli.options import Output


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A prediction written with -o A.json.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    output: Output,
) -> int:
    """The difference of two predictions, cause by cause."""
    from foretrain.cli.documents import prediction_document
    from foretrain.cli.output import expect_page, give_page

    expect_page(output)
    documents = prediction_document(a), prediction_document(b)
    import foretrain
    from foretrain.report.answers import compare_page

    return give_page(compare_page(foretrain.compare(*documents), (a, b)), output)
