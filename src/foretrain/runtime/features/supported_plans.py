"""Which plans a stack can run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretrain.errors import InputError
from foretrain.limits import shown
from foretrain.runtime.features.option import Feature, of_presets, pairs, text

PER_LAYER = ("none", "recompute", "all")
"""What may differ from layer to layer: nothing, what is run again in backward, or any split as well."""


def _rules(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, Mapping | tuple):
        raise InputError(f"{shown(value)} is not a mapping of rules, each with its reason.")
    return pairs(value)


def _per_layer(value: Any) -> str:
    if value not in PER_LAYER:
        raise InputError(f"{shown(value)} is not one of {', '.join(PER_LAYER)}.")
    return text(value)


@dataclass(frozen=True, slots=True)
class SupportedPlans(Feature):
    """Rules that hold for every plan of a stack; without any, it is taken to run whatever can be predicted.

    A rule is written in the words of constraints, `schedule=1f1b|interleaved`, or after what it is about and a colon,
    `pp>1: zero<=1`; with it stands the reason. `foretrain.plan.supported` reads them.
    """

    rules: tuple[tuple[str, str], ...] = of_presets((), _rules)
    per_layer: str = of_presets("all", _per_layer)
