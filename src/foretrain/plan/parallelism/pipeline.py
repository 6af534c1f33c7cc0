"""Pipeline parallelism needs no cut: stages are ranks along `pp`, and the root's schedule says who runs what.

What belongs to whole subtrees, recompute and offload, is set here too: it decides what a stage holds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import Node

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words


def apply(words: Words, mesh: Mesh, root: Node) -> Node:
    root = replace(root, recompute=words.recompute or "none", offload=words.offload)
    return root
