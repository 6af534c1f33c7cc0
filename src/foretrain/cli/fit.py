"""`foretrain fit`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.cli.options import Output, Question

if TYPE_CHECKING:
    from foretrain.analysis.answers import FitAnswer


def fit(question: Question, output: Output) -> FitAnswer:
    """Check whether a configuration fits in memory, and what would make it fit."""
    asked = question.asked()
    import foretrain

    return foretrain.fit(**asked)
