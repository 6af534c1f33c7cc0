"""Reading prediction documents back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def prediction_document(path: str) -> Mapping[str, Any]:
    """The document in `path`, refused where it is something else."""
    from foretrain.analysis.document import expect_prediction
    from foretrain.loading import load_json

    what = "a prediction (write one with 'foretrain predict … -o FILE.json')"
    return expect_prediction(load_json(Path(path), what), path)
