"""What a stack makes of a plan, and of what a plan leaves open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrain.errors import InputError
from foretrain.limits import shown
from foretrain.runtime.features.option import Feature, listed, number, read_by, word

_AXES = ("pp", "dp", "cp", "tp")


def _rank_order(value: Any) -> tuple[str, ...]:
    axes = listed(value, "-")
    if sorted(axis for axis in axes if axis != "ep") != sorted(_AXES) or axes.count("ep") > 1:
        raise InputError(
            f"{shown(value)} must contain each of pp, dp, cp and tp once, outermost first, such as "
            f"{'-'.join(_AXES)}."
        )
    return axes


@dataclass(frozen=True, slots=True)
class PlanHabits(Feature):
    """How plan words are meant, and those used where a case says nothing."""

    # what recompute=selective runs again
    selective: str = word("attention", "attention", "products", "blocks")
    pads_vocabulary_to: int = number(1, 1, 2**20)
    # outermost first
    rank_order: tuple[str, ...] = read_by(_AXES, _rank_order)
    # plan words used where a case says nothing
    defaults: tuple[tuple[str, str], ...] = ()
