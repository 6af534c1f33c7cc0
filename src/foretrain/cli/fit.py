"""`foretrain fit`."""

from __future__ import annotations

from foretrain.cli.options import Output, Question


def fit(question: Question, output: Output) -> int:
    """Check whether a configuration fits in memory, and what would make it fit."""
    from foretrain.cli.output import expect_files, give

    expect_files(output)
    asked = question.asked()
    import foretrain

    return give(foretrain.fit(**asked), output)
