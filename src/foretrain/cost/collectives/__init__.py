"""Collective algorithms, one file each; which one runs is the selector's choice."""

from __future__ import annotations

from functools import cache

from foretrain.cost.collectives.base import Algorithm, Flows, Steps
from foretrain.cost.collectives.direct import Direct
from foretrain.cost.collectives.neighbours import Neighbours
from foretrain.cost.collectives.ring import Ring
from foretrain.cost.collectives.send import Send
from foretrain.cost.collectives.tree import Tree

ALGORITHMS: tuple[Algorithm, ...] = (Ring(), Tree(), Direct(), Neighbours(), Send())

__all__ = ["ALGORITHMS", "Algorithm", "Flows", "Steps", "algorithms_for"]


@cache
def algorithms_for(collective: str) -> tuple[Algorithm, ...]:
    return tuple(a for a in ALGORITHMS if collective in a.collectives)
