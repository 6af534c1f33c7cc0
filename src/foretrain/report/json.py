"""Documents as strict JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from foretrain.report.document import Document

_AS_THEY_ARE = frozenset((str, int, bool, type(None)))


def render(document: Document) -> str:
    return dumps(document.data) + "\n"


def render_line(document: Document) -> str:
    """One line of a JSON Lines file."""
    return dumps(document.data, indent=None) + "\n"


def dumps(document: Any, *, indent: int | None = 2) -> str:
    """Strict JSON text: no NaN, keys in their own order, one line when `indent` is None."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(
        strict(document), ensure_ascii=False, allow_nan=False, indent=indent, separators=separators
    )
    return text.encode("utf-8", "replace").decode("utf-8")  # half surrogates of users' names


def strict(value: Any) -> Any:
    """`value` as strict JSON can hold it; a number that is not finite becomes null."""
    kind = type(value)
    if kind in _AS_THEY_ARE:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        if _AS_THEY_ARE.issuperset(map(type, value)):  # long lists of numbers have no surprises
            return value
        return [strict(inner) for inner in value]
    if isinstance(value, np.ndarray | np.generic):
        return strict(value.tolist())
    return value if isinstance(value, int) else str(value)
