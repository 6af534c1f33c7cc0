"""How far off the difference of two plans may be: errors that both share cancel.

A predicted step is off mostly for reasons that all plans of a question have in common: the same kernels on the same
devices, the same libraries on the same links. What is left is the error of what the plans do not share. A step is split
into parts (`PARTS`), each off by a share of itself, independently of the others. Where two plans run a part alike, its
error is the same for both and only the difference of their times counts; where they do not, each has an error of its
own. `cost/calibration/differences.yaml` holds one relative deviation for each part, fitted to measured plans of one
workload and machine by `tools/fit_differences.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import log, sqrt
from pathlib import Path

from foretrain.analysis.prediction import Z80
from foretrain.cost import cost
from foretrain.loading import load_own_yaml
from foretrain.plan.constraints import value_in
from foretrain.plan.short_form import Words

PARTS: Mapping[str, tuple[str, ...]] = {
    "kernels": ("compute", "optimizer"),
    "interconnect": ("interconnect",),
    "network": ("network",),
    "pipeline": ("bubble", "imbalance"),
    "host": ("host", "prep", "fetch"),
}
"""Stalls by the part of a step that they belong to."""
_BLOCKS = ("tp", "cp", "ep", "etp", "sp", "micro", "recompute", "offload", "cp-exchange", "tables")
DECIDED_BY: Mapping[str, tuple[str, ...]] = {
    "kernels": _BLOCKS,
    "interconnect": _BLOCKS,
    "network": ("dp", "zero", "shard", "buckets", "order"),
    "pipeline": ("pp", "vpp", "schedule", "layers"),
    "host": _BLOCKS,
}
"""Choices of a plan that a part follows from: plans with the same ones run it alike."""


@dataclass(frozen=True, slots=True)
class StepParts:
    """A predicted step by its parts; `words`: of its plan, None where it has no short form."""

    seconds: float
    shares: Mapping[str, float]
    words: Words | None

    @classmethod
    def of(cls, stalls: Mapping[str, float], words: Words | None) -> StepParts:
        step = sum(stalls.values())
        shares = {
            part: sum(stalls[name] for name in names) / step if step else 0.0
            for part, names in PARTS.items()
        }
        return cls(step, shares, words)

    def is_alike(self, other: StepParts, part: str) -> bool:
        if self.words is None or other.words is None:
            return False
        return all(
            value_in(self.words, name) == value_in(other.words, name) for name in DECIDED_BY[part]
        )


@cache
def deviations() -> Mapping[str, float]:
    """Relative standard deviation of each part."""
    path = Path(cost.__file__).parent / "calibration" / "differences.yaml"
    table: Mapping[str, float] = load_own_yaml(path)["parts"]
    return table


def squares(one: StepParts, other: StepParts) -> dict[str, float]:
    """By part what its squared deviation is multiplied by in that of the logarithm of the ratio of two steps."""
    found = {}
    for part in PARTS:
        a, b = one.shares[part], other.shares[part]
        found[part] = (a - b) ** 2 if one.is_alike(other, part) else a * a + b * b
    return found


def spread(one: StepParts, other: StepParts) -> float:
    """Standard deviation of the logarithm of the ratio of two steps."""
    sizes = deviations()
    return sqrt(sum(sizes[part] ** 2 * value for part, value in squares(one, other).items()))


def is_within_noise(one: StepParts, other: StepParts) -> bool:
    """Whether the 80 % interval of the difference of two steps includes none."""
    if one.seconds <= 0.0 or other.seconds <= 0.0:
        return one.seconds == other.seconds
    return abs(log(one.seconds / other.seconds)) <= Z80 * spread(one, other)
