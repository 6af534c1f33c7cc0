"""Sharded embedding tables: cut the rows of large tables over all replicas.

Every rank then looks up the rows it holds for the samples of all; the partial sums go back to the ranks that
own the samples, a reduce-scatter by inference. Small tables stay replicated, as recommenders do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import Cut, Node

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words

LARGE = "large_tables"


def apply(words: Words, mesh: Mesh, root: Node) -> Node:
    if words.tables != "rows" or (words.dp or 1) == 1:
        return root
    return root.with_child(Node(select=LARGE, split=(Cut(("rows",), mesh.expand("dp")),)))
