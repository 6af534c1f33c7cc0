"""Context parallelism: cut the sequence everywhere, attention included.

Attention sees its keys and values under the dim `kv_seq`, which stays whole: they are gathered
(`exchange: all-gather`) or passed round a ring beside the computation (`exchange: ring`; Liu et al. 2023).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import Cut, Node

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words

DIMS = ("seq", "slot")


def apply(words: Words, mesh: Mesh, root: Node) -> Node:
    if words.cp == 1:
        return root
    root = replace(root, exchange=words.exchange)
    return root.with_cuts(Cut(DIMS, mesh.expand("cp")))
