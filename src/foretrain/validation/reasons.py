"""Why a prediction may be far off: what stands out in its own document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

NOTABLE = 0.15
"""share of a step from which a stall is worth naming"""
RELIES = 0.5
"""share of kernels and communication from which a prediction rests on measured tables"""
DECIDING = (
    " in the plan)", "(--plan)", "(--micro-batch)", "(--batch)", "(--precision)", "(--runtime)", "(runtime)",
)  # fmt: skip
"""How assumptions end that can change a step by much; the others fill in details."""


def likely_reason(prediction: Mapping[str, Any], case: Mapping[str, Any], is_inside: bool) -> str:
    """Most telling first; never empty."""
    return "; ".join(_reasons(prediction, case, is_inside))


def _reasons(
    prediction: Mapping[str, Any], case: Mapping[str, Any], is_inside: bool
) -> Iterator[str]:
    if not prediction.get("fits", True):
        yield "predicted not to fit"
    missing = _missing(prediction.get("assumptions") or ())
    if missing:
        yield f"assumed: {missing}"
    yield _share(prediction)
    warnings: Sequence[str] = prediction.get("warnings") or ()
    if warnings:
        yield str(warnings[0]).rstrip(".")
    stated = [str(line).partition(":")[0] for line in case.get("assumed") or ()]
    if stated:
        yield f"inferred by the publisher: {', '.join(stated[:2])}"
    if not is_inside:
        yield "outside its interval"


def _missing(assumptions: Sequence[str]) -> str:
    names = [line.partition(":")[0] for line in assumptions if line.endswith(DECIDING)]
    return ", ".join(names[:3])


def _share(prediction: Mapping[str, Any]) -> str:
    """The greatest stall, or that it is kernels and how well those are known."""
    stalls: Mapping[str, float] = prediction.get("stalls") or {}
    step = float(prediction.get("step_seconds") or 0.0)
    others = {name: s / step for name, s in stalls.items() if name != "compute" and step > 0.0}
    if others:
        name = max(others, key=lambda key: others[key])
        if others[name] >= NOTABLE:
            return f"{name} is {100 * others[name]:.0f} % of the step"
    if float(prediction.get("measured_share") or 0.0) < RELIES:
        return "kernels, which are based on data sheets"
    return "kernels"
