"""ZeRO (Rajbhandari et al. 2020): split the optimizer state, the gradient, the weight over replicas.

A tensor can only be split over ranks that hold copies of it, so the compiler keeps, per weight, those of the
named axes over which its gradient is reduced. Hybrid sharding splits over an inner group only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.errors import PlanError
from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import STATE_ROLES, Node

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words


def factor(words: Words, mesh: Mesh) -> Mesh:
    """Hybrid sharding needs an inner group of replicas."""
    if not words.shard:
        return mesh
    if not words.zero:
        raise PlanError(
            f"shard={words.shard} sets the ZeRO shard group size; add zero1, zero2 or zero3."
        )
    axes = (*mesh.expand("dp"), *mesh.expand("cp"))
    mesh = mesh.named("replicas", axes).factored("replicas", words.shard)
    return mesh.named("shards", mesh.inner("replicas", words.shard))


def apply(words: Words, mesh: Mesh, root: Node) -> Node:
    axes = mesh.expand("shards") if words.shard else (*mesh.expand("dp"), *mesh.expand("cp"))
    for role in STATE_ROLES[: words.zero]:
        root = root.with_state(role, axes)
    return root
