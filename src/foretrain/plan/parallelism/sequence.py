"""Sequence parallelism (Korthikanti et al. 2022): ops that tensor parallelism leaves whole (norms, dropout,
residuals) cut the sequence over the same axis instead. It is the last cut, so it gets only what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import Cut, Node

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words

DIMS = ("seq", "slot")


def apply(words: Words, mesh: Mesh, root: Node) -> Node:
    if words.tp == 1 or not words.sp:
        return root
    return root.with_cuts(Cut(DIMS, mesh.expand("tp")))
