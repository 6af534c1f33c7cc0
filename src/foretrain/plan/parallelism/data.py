"""Data parallelism: cut the batch. Weight gradients become partial sums and are reduced in buckets."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import Cut, Node

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words


def apply(words: Words, mesh: Mesh, root: Node) -> Node:
    root = replace(root, bucket_bytes=words.buckets)
    if (words.dp or 1) == 1:
        return root
    return root.with_cuts(Cut(("batch",), mesh.expand("dp")))
