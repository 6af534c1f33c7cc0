"""The prediction document as strict JSON."""

from __future__ import annotations

import json
from typing import Any

from foretrain.analysis.prediction import Prediction
from foretrain.report.words import plain


def dumps(document: Any, *, indent: int | None = 2) -> str:
    """Strict JSON text: no NaN, keys in their own order, one line when `indent` is None."""
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(
        plain(document), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )


def render(prediction: Prediction) -> str:
    return dumps(prediction.to_dict()) + "\n"


def render_line(prediction: Prediction) -> str:
    """One line of a JSON Lines file."""
    return dumps(prediction.to_dict(), indent=None) + "\n"
