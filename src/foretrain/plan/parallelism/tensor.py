"""Tensor parallelism (Shoeybi et al. 2019): cut heads, feed-forward columns and the vocabulary.

Column- and row-parallel GEMMs, the all-reduces between them and the vocabulary-parallel loss all follow
from the names: a cut dim in an output shards it, a contracted one leaves a partial sum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import Cut, Node

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words

DIMS = (("heads", "kv_heads"), ("ffn",), ("vocab",))


def apply(words: Words, mesh: Mesh, root: Node) -> Node:
    if words.tp == 1:
        return root
    axes = mesh.expand("tp")
    return root.with_cuts(*(Cut(dims, axes) for dims in DIMS))
