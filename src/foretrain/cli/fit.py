"""`foretrain fit`."""

from __future__ import annotations

from foretrain.cli.options import Output, Question


def fit(question: Question, output: Output) -> int:
    """Check whether a configuration fits in memory, and what would make it fit."""
    from foretrain.cli.output import expect_page, give_page

    expect_page(output)
    asked = question.asked()
    import foretrain
    from foretrain.report import page_of

    return give_page(page_of(foretrain.fit(**asked)), output)
