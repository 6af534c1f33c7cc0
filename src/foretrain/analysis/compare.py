"""Compare: the difference of two predictions, attributed to causes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretrain.analysis.prediction import STALLS, Prediction
from foretrain.errors import InputError
from foretrain.units import show_seconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows (name, seconds of A, seconds of B, B - A): the step, then every cause, largest difference first."""

    rows: tuple[tuple[str, float, float, float], ...]
    summary: str


def compare(a: Prediction | Mapping[str, Any], b: Prediction | Mapping[str, Any]) -> Comparison:
    """What makes B slower or faster than A; differences of causes add up to that of the step."""
    first, second = _document(a, "A"), _document(b, "B")
    steps = float(first["step_seconds"]), float(second["step_seconds"])
    causes = [
        (name, float(first["stalls"].get(name, 0.0)), float(second["stalls"].get(name, 0.0)))
        for name in STALLS
    ]
    rows = sorted(((n, x, y, y - x) for n, x, y in causes if x or y), key=lambda r: -abs(r[3]))
    total = ("step", *steps, steps[1] - steps[0])
    return Comparison((total, *rows), _summary(steps, rows))


def _document(value: Prediction | Mapping[str, Any], name: str) -> Mapping[str, Any]:
    document = value.to_dict() if isinstance(value, Prediction) else value
    if "step_seconds" not in document or not isinstance(document.get("stalls"), Mapping):
        raise InputError(f"{name} is not a prediction: it has no step_seconds and stalls.")
    return document


def _summary(steps: tuple[float, float], rows: list[tuple[str, float, float, float]]) -> str:
    ratio = steps[1] / steps[0]
    if abs(ratio - 1.0) < 1e-9:
        return f"Both take {show_seconds(steps[0])} per step."
    words = "slower" if ratio > 1 else "faster"
    factor = ratio if ratio > 1 else 1 / ratio
    cause = rows[0][0] if rows else "nothing"
    return (
        f"B takes {show_seconds(steps[1])} per step instead of {show_seconds(steps[0])}:"
        f" {factor:.2f} times {words}, mostly by {cause}."
    )
