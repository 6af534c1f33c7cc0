"""Scope: whether everything a plan names exists in the model, so that a slip of the pen is not a silent no-op."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from foretrain.compile.passes.recompute import is_named
from foretrain.errors import PlanError, did_you_mean
from foretrain.model.graph import Model
from foretrain.plan.mesh import Mesh
from foretrain.plan.strategy import StrategyNode, listed_recomputed, matches, share_recomputed

MODES = ("none", "selective", "full")


def check_names(root: StrategyNode, model: Model) -> None:
    """Every select, dim and recompute list of the tree must mean something in the model."""
    faults: list[str] = []
    for node in _below(root):
        faults += _selected(node, model)
    for node in (root, *_below(root)):
        faults += _recomputed(node, model)
    for node in _below(root):
        faults += _cut(node, model)
    if faults:
        raise PlanError(f"the plan refers to parts that {model.name} does not have:", faults=faults)


def check_axes(mesh: Mesh, used: Iterable[str], model: Model) -> None:
    """Every axis must cut something: ranks that only repeat each other's work are a mistake."""
    used = frozenset((*used, "pp"))
    idle = [f"{name} {size}" for name, size in mesh.axes if size > 1 and name not in used]
    if idle:
        dims = ", ".join(dict.fromkeys(d for _, op in model.ops() for d in op.dims))
        raise PlanError(
            f"nothing in {model.name} is split over {', '.join(idle)}: these ranks would do "
            f"redundant work. Its dims: {dims}."
        )


def _below(node: StrategyNode) -> Iterator[StrategyNode]:
    for child in node.children:
        yield child
        yield from _below(child)


def _blocks(select: str, model: Model) -> Iterator[str]:
    """Blocks of which a select takes at least one whole repetition."""
    for block in model.blocks:
        if any(matches(select, block.name, index, None) for index in range(block.repeat)):
            yield block.name


def _selected(node: StrategyNode, model: Model) -> list[str]:
    if any(_blocks(node.select, model)):
        return []
    names = [f"{b.name}.{op.name}" for b, op in model.ops()]
    hits = any(
        matches(node.select, block.name, index, op)
        for block, op in model.ops()
        for index in range(block.repeat)
    )
    if not hits:
        known = [block.name for block in model.blocks]
        hint = did_you_mean(node.select.partition("[")[0], (*known, *names))
        return [f"{node.select}: matches no block or op.{hint} Blocks: {', '.join(known)}."]
    for key in ("recompute", "offload"):
        if getattr(node, key) is not None:
            return [
                f"{node.select}: {key} applies to a block, not to an op. Specify ops as in "
                "recompute: fc1,act."
            ]
    return []


def _recomputed(node: StrategyNode, model: Model) -> list[str]:
    if node.recompute is None or node.recompute in MODES:
        return []
    if share_recomputed(node.recompute) is not None or listed_recomputed(node.recompute):
        return []
    faults = []
    for name in (part.strip() for part in node.recompute.split(",")):
        if not any(is_named(name, f"{block.name}.{op.name}", op.kind) for block, op in model.ops()):
            known = [
                *MODES,
                *(op.name for _, op in model.ops()),
                *(op.kind for _, op in model.ops()),
            ]
            hint = did_you_mean(name, known)
            faults.append(f"recompute={name:.60}: must be none, selective, full or an op.{hint}")
    return faults


def _cut(node: StrategyNode, model: Model) -> list[str]:
    known = tuple(dict.fromkeys(dim for _, op in model.ops() for dim in op.dims))
    return [
        f"{node.select}: no op has a dim {' or '.join(cut.dims)}.{did_you_mean(cut.dims[0], known)}"
        for cut in node.split
        if cut.dims and not any(dim in known for dim in cut.dims)
    ]
