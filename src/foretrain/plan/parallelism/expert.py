"""Expert parallelism: cut the experts over the inner data-parallel (and, without tensor parallel experts,
tensor-parallel) ranks. Tokens move from their batch cut to the expert cut: an all-to-all by inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.errors import PlanError
from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import Cut, Node

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words


def factor(words: Words, mesh: Mesh) -> Mesh:
    """Experts live on the innermost `ep` of the ranks that may hold them."""
    inner_tp = _tensor_degree(words)
    if words.ep == 1:
        return mesh
    names = ("dp", "cp") if inner_tp == words.tp else ("dp", "cp", "tp")
    mesh = mesh.named("expert_ranks", tuple(a for name in names for a in mesh.expand(name)))
    mesh = mesh.factored("expert_ranks", words.ep)
    return mesh.named("ep", mesh.inner("expert_ranks", words.ep))


def apply(words: Words, mesh: Mesh, root: Node) -> Node:
    if words.ep == 1:
        return root
    return root.with_cuts(Cut(("expert",), mesh.expand("ep")))


def _tensor_degree(words: Words) -> int:
    """The tensor parallel degree inside experts: all of tp, or none of it."""
    replicas = (words.dp or 1) * words.cp
    degree = words.etp if words.etp is not None else (words.tp if replicas % words.ep == 0 else 1)
    if degree not in (1, words.tp):
        raise PlanError(f"etp{degree}: must be tp ({words.tp}) or 1.")
    if (replicas * words.tp // degree) % words.ep:
        raise PlanError(
            f"the {replicas * words.tp // degree} ranks that hold experts (dp {words.dp} x cp "
            f"{words.cp} x tp {words.tp} / etp {degree}) must be divisible by ep {words.ep}."
        )
    return degree
