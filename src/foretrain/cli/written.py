"""`foretrain explain` and `foretrain compare`: of predictions that were written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.cli.options import Output

if TYPE_CHECKING:
    from foretrain.analysis.compare import Comparison
    from foretrain.analysis.explain import Explanation


def explain(file: str, output: Output) -> Explanation:
    """Explain where the step time goes and what would help most."""
    document = _prediction(file)
    import foretrain

    return foretrain.explain(document)


def compare(a: str, b: str, output: Output) -> Comparison:
    """Compare two predictions and attribute the difference to its causes.

    Times are per token or sample if the work differs. Exit code 1 if the two share no unit of work.
    """
    documents = _prediction(a), _prediction(b)
    import foretrain

    return foretrain.compare(*documents, names=(a, b))


def _prediction(path: str) -> Mapping[str, Any]:
    """The document in `path`, refused where it is something else."""
    from foretrain.analysis.document import expect_prediction
    from foretrain.loading import load_json

    what = "a prediction (write one with 'foretrain predict … -o FILE.json')"
    return expect_prediction(load_json(Path(path), what), path)
