"""What a stack makes of a plan, and of what a plan leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretrain.errors import InputError
from foretrain.limits import shown
from foretrain.runtime.features.option import (
    Feature,
    listed,
    number,
    of_presets,
    pairs,
    read_by,
    word,
)

_AXES = ("pp", "dp", "cp", "tp")


def _rank_order(value: Any) -> tuple[str, ...]:
    axes = listed(value, "-")
    if sorted(axis for axis in axes if axis != "ep") != sorted(_AXES) or axes.count("ep") > 1:
        raise InputError(
            f"{shown(value)} must contain each of pp, dp, cp and tp once, outermost first, such as "
            f"{'-'.join(_AXES)}."
        )
    return axes


def _words(value: Any) -> tuple[tuple[str, str], ...]:
    """Plan words by name, as texts: true and false are written small there."""
    if not isinstance(value, Mapping):
        raise InputError(f"{shown(value)} is not a mapping of plan words.")
    said = {name: str(one).lower() if isinstance(one, bool) else one for name, one in value.items()}
    return pairs(said)


@dataclass(frozen=True, slots=True)
class PlanHabits(Feature):
    """How plan words are meant, and those used where a case says nothing."""

    # what recompute=selective runs again
    selective: str = word(
        "attention", "attention", "products", "blocks", needs=("selective recomputation",)
    )
    pads_vocabulary_to: int = number(1, 1, 2**20)
    # outermost first
    rank_order: tuple[str, ...] = read_by(_AXES, _rank_order)
    # what a search tries to recompute beside the usual
    recomputes: tuple[str, ...] = of_presets((), tuple)
    # plan words used where a case says nothing
    defaults: tuple[tuple[str, str], ...] = of_presets((), _words)
