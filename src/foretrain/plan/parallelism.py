"""Ways of being parallel: each is one function that adds cuts or state splits to the tree, and one row below.

The order of the table is the priority of cuts: experts first, then tensors, then batch and sequence, and
last the axes that an op's other dims left over (sequence parallelism).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from foretrain.errors import PlanError
from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import STATE_ROLES, Cut, StrategyNode

if TYPE_CHECKING:
    from foretrain.plan.short_form import Words

Parallelism = Callable[["Words", Mesh, StrategyNode], StrategyNode]
Factoring = Callable[["Words", Mesh], Mesh]

SEQUENCE = ("seq", "slot")
TENSOR = (("heads", "kv_heads"), ("ffn",), ("vocab",))
LARGE = "large_tables"


def expert(words: Words, mesh: Mesh, root: StrategyNode) -> StrategyNode:
    """Cut the experts over the inner data-parallel (and, without tensor parallel experts, tensor-parallel) ranks.
    Tokens move from their batch cut to the expert cut: an all-to-all by inference."""
    if words.ep == 1:
        return root
    return root.with_cuts(Cut(("expert",), mesh.expand("ep")))


def tensor(words: Words, mesh: Mesh, root: StrategyNode) -> StrategyNode:
    """Cut heads, feed-forward columns and the vocabulary (Shoeybi et al. 2019).

    Column- and row-parallel GEMMs, the all-reduces between them and the vocabulary-parallel loss all follow
    from the names: a cut dim in an output shards it, a contracted one leaves a partial sum.
    """
    if words.tp == 1:
        return root
    axes = mesh.expand("tp")
    return root.with_cuts(*(Cut(dims, axes) for dims in TENSOR))


def data(words: Words, mesh: Mesh, root: StrategyNode) -> StrategyNode:
    """Cut the batch. Weight gradients become partial sums and are reduced in buckets."""
    root = replace(root, bucket_bytes=words.buckets)
    if (words.dp or 1) == 1:
        return root
    return root.with_cuts(Cut(("batch",), mesh.expand("dp")))


def context(words: Words, mesh: Mesh, root: StrategyNode) -> StrategyNode:
    """Cut the sequence everywhere, attention included.

    Attention sees its keys and values under the dim `kv_seq`, which stays whole: they are gathered
    (`exchange: all-gather`) or passed round a ring beside the computation (`exchange: ring`; Liu et al. 2023).
    """
    if words.cp == 1:
        return root
    root = replace(root, exchange=words.exchange)
    return root.with_cuts(Cut(SEQUENCE, mesh.expand("cp")))


def sequence(words: Words, mesh: Mesh, root: StrategyNode) -> StrategyNode:
    """Ops that tensor parallelism leaves whole (norms, dropout, residuals) cut the sequence over the same axis instead
    (Korthikanti et al. 2022). It is the last cut, so it gets only what is left."""
    if words.tp == 1 or not words.sp:
        return root
    return root.with_cuts(Cut(SEQUENCE, mesh.expand("tp")))


def zero(words: Words, mesh: Mesh, root: StrategyNode) -> StrategyNode:
    """Split the optimizer state, the gradient, the weight over replicas (Rajbhandari et al. 2020).

    A tensor can only be split over ranks that hold copies of it, so the compiler keeps, per weight, those of the
    named axes over which its gradient is reduced. Hybrid sharding splits over an inner group only.
    """
    axes = mesh.expand("shards") if words.shard else (*mesh.expand("dp"), *mesh.expand("cp"))
    for role in STATE_ROLES[: words.zero]:
        root = root.with_state(role, axes)
    return root


def pipeline(words: Words, mesh: Mesh, root: StrategyNode) -> StrategyNode:
    """No cut: stages are ranks along `pp`, and the root's schedule says who runs what. What belongs to whole subtrees,
    recompute and offload, is set here too: it decides what a stage holds."""
    return replace(root, recompute=words.recompute or "none", offload=words.offload)


def embedding(words: Words, mesh: Mesh, root: StrategyNode) -> StrategyNode:
    """Cut the rows of large tables over all replicas.

    Every rank then looks up the rows it holds for the samples of all; the partial sums go back to the ranks that
    own the samples, a reduce-scatter by inference. Small tables stay replicated, as recommenders do.
    """
    if words.tables != "rows" or (words.dp or 1) == 1:
        return root
    return root.with_child(StrategyNode(select=LARGE, split=(Cut(("rows",), mesh.expand("dp")),)))


def expert_axes(words: Words, mesh: Mesh) -> Mesh:
    """Experts live on the innermost `ep` of the ranks that may hold them; `etp` neighbours share each of them."""
    if words.ep == 1:
        return mesh
    degree = _shared_by(words)
    holders = mesh.expand("tp")
    if 1 < degree < words.tp:
        mesh = mesh.factored("tp", degree)
        holders = tuple(a for a in mesh.expand("tp") if a not in mesh.inner("tp", degree))
    names = tuple(a for name in ("dp", "cp") for a in mesh.expand(name))
    mesh = mesh.named("expert_ranks", names if degree == words.tp else (*names, *holders))
    mesh = mesh.factored("expert_ranks", words.ep)
    return mesh.named("ep", mesh.inner("expert_ranks", words.ep))


def expert_tensor_degree(words: Words) -> int:
    """Tensor parallelism inside experts: as said, else as elsewhere if the replicas can hold all experts, else none."""
    if words.etp is not None:
        return words.etp
    return words.tp if (words.dp or 1) * words.cp % words.ep == 0 else 1


def _shared_by(words: Words) -> int:
    degree, replicas = expert_tensor_degree(words), (words.dp or 1) * words.cp
    if words.tp % degree:
        raise PlanError(f"etp{degree}: must divide tp ({words.tp}).")
    holders = replicas * words.tp // degree
    if holders % words.ep:
        raise PlanError(
            f"the {holders} ranks that hold experts (dp {words.dp} x cp {words.cp} x tp {words.tp} / etp "
            f"{degree}) must be divisible by ep {words.ep}."
        )
    if words.etp is not None and words.ep % (words.tp // degree):
        raise PlanError(
            f"etp{degree} leaves groups of {words.tp // degree} of the {words.tp} tensor-parallel ranks that hold "
            f"different experts: ep {words.ep} must be a multiple of that."
        )
    return degree


def shard_axes(words: Words, mesh: Mesh) -> Mesh:
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


# First the mesh gets the axes that experts and shards need, then the tree its cuts on those axes.
FACTORINGS: tuple[Factoring, ...] = (expert_axes, shard_axes)

PARALLELISMS: tuple[Parallelism, ...] = (
    expert,
    tensor,
    data,
    context,
    sequence,
    zero,
    pipeline,
    embedding,
)
