"""The words of a plan: as it was said, or read back from its tree, with what no word says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from foretrain.errors import InputError
from foretrain.plan.mesh import Mesh
from foretrain.plan.parallelism import LARGE
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words, build, parse
from foretrain.plan.strategy import STATE_ROLES, StrategyNode, nodes
from foretrain.runtime import Runtime


@dataclass(frozen=True, slots=True)
class Said:
    """`order`: degrees above one, from neighbouring ranks outwards. `rest`: what only the tree says."""

    words: Words
    order: tuple[str, ...]
    rest: tuple[str, ...]


def said(plan: Plan, runtime: Runtime) -> Said:
    """Every choice of a plan, in words as far as there are any."""
    words, rest = _found(plan, runtime)
    return Said(replace(words, order=None), _order(plan), rest)


def words_of(plan: Plan, runtime: Runtime) -> Words:
    """The choices of a plan; of a tree all but the order of its ranks."""
    return _found(plan, runtime)[0]


def _found(plan: Plan, runtime: Runtime) -> tuple[Words, tuple[str, ...]]:
    """The words, and what only the tree says."""
    words = _spelled(plan, runtime)
    rest: tuple[str, ...] = ()
    if words is None:
        words = _read(plan)
        rest = tuple(_unsaid(plan, words, runtime))
    schedule = plan.schedule
    return _meant(replace(words, micro=schedule.micro_batch), schedule.kind), rest


def freedom(plan: Plan) -> str:
    """What differs in the parts of a model: `none`, `recompute` (what is run again) or `all` (how they are split)."""
    below = [node for child in plan.root.children if not _is_rows(child) for node in nodes(child)]
    if any(node.split or node.state or node.offload is not None or node.exchange for node in below):
        return "all"
    return "recompute" if any(node.recompute is not None for node in below) else "none"


def _meant(words: Words, kind: str) -> Words:
    """Without words that mean nothing beside the others."""
    return replace(
        words,
        schedule=kind if words.pp > 1 else None,
        sp=words.sp and words.tp > 1,
        exchange=words.exchange if words.cp > 1 else Words().exchange,
        etp=words.etp if words.ep > 1 and words.tp > 1 else None,
    )


def _spelled(plan: Plan, runtime: Runtime) -> Words | None:
    """The text the plan carries, if it still says all of it."""
    try:
        words = parse(plan.text).with_devices(plan.ranks)
        mesh, root = build(words, runtime)
    except InputError:
        return None
    schedule = replace(plan.schedule, micro_batch=1)
    is_same = replace(root, schedule=schedule) == replace(plan.root, schedule=schedule)
    built = root.schedule and replace(root.schedule, micro_batch=1)
    return words if is_same and built == schedule and mesh == plan.mesh else None


def _read(plan: Plan) -> Words:
    mesh, root, schedule = plan.mesh, plan.root, plan.schedule
    tensor, expert = _cut_over(root, "heads", "ffn"), _cut_over(root, "expert")
    along = [cut.axes for cut in root.split if "seq" in cut.dims]
    context = tuple(axis for axes in along for axis in axes if axis not in tensor)
    state = dict(root.state)
    zero = 0
    while zero < len(STATE_ROLES) and state.get(STATE_ROLES[zero]):
        zero += 1
    dp, cp = plan.replicas, mesh.size(*context)
    parts = mesh.size(*state[STATE_ROLES[0]]) if zero else 0
    return Words(
        tp=mesh.size(*tensor),
        pp=schedule.stages,
        vpp=schedule.chunks,
        cp=cp,
        ep=mesh.size(*expert),
        dp=dp,
        etp=_inside_experts(mesh, tensor, expert),
        zero=zero,
        shard=parts if zero and parts < dp * cp else None,
        sp=any(set(axes) & set(tensor) for axes in along),
        recompute=root.recompute,
        offload=root.offload or (),
        exchange=root.exchange or "all-gather",
        tables="rows" if any(_is_rows(child) for child in root.children) else "replicated",
        buckets=root.bucket_bytes,
        layers=schedule.layers,
    )


def _inside_experts(mesh: Mesh, tensor: tuple[str, ...], expert: tuple[str, ...]) -> int | None:
    """Tensor parallelism that experts leave of what others have; None: all of it."""
    both = mesh.size(*(axis for axis in expert if axis in tensor))
    return mesh.size(*tensor) // both if both > 1 else None


def _cut_over(root: StrategyNode, *dims: str) -> tuple[str, ...]:
    """The axes of the first cut of one of these dims."""
    for cut in root.split:
        if any(dim in cut.dims for dim in dims):
            return cut.axes
    return ()


def _is_rows(node: StrategyNode) -> bool:
    return node.select == LARGE and any("rows" in cut.dims for cut in node.split)


def _unsaid(plan: Plan, words: Words, runtime: Runtime) -> Iterator[str]:
    """What the tree holds beyond the words read from it."""
    try:
        mesh, root = build(words, runtime)
    except InputError:
        mesh, root = Mesh(()), StrategyNode()
    known = _cuts(mesh, root)
    for cut in plan.root.split:
        if (cut.dims, plan.mesh.size(*cut.axes)) not in known:
            yield f"split of {', '.join(cut.dims)} over {', '.join(cut.axes)}"
    sizes = {role: mesh.size(*axes) for role, axes in root.state}
    for role, axes in plan.root.state:
        if sizes.get(role) != plan.mesh.size(*axes):
            yield f"{role} split over {', '.join(axes)}"
    for child in plan.root.children:
        if not _is_rows(child):
            yield from _below(child)


def _cuts(mesh: Mesh, node: StrategyNode) -> set[tuple[tuple[str, ...], int]]:
    return {(cut.dims, mesh.size(*cut.axes)) for cut in node.split}


def _below(node: StrategyNode) -> Iterator[str]:
    """What a node says of its part of the model, and those under it."""
    says = [f"{', '.join(cut.dims)} over {', '.join(cut.axes)}" for cut in node.split]
    says += [f"{role} over {', '.join(axes)}" for role, axes in node.state]
    if node.recompute is not None:
        says.append(f"recompute={node.recompute}")
    if node.offload is not None:
        says.append(f"offload={'+'.join(node.offload) or 'nothing'}")
    if node.exchange is not None:
        says.append(f"exchange {node.exchange}")
    if says:
        yield f"{node.select}: {'; '.join(says)}"
    for child in node.children:
        yield from _below(child)


def _order(plan: Plan) -> tuple[str, ...]:
    root = plan.root
    tensor = _cut_over(root, "heads", "ffn")
    roles = dict.fromkeys(plan.batch_axes, "dp") | dict.fromkeys(tensor, "tp")
    for cut in root.split:
        if "seq" in cut.dims:
            roles |= {axis: "cp" for axis in cut.axes if axis not in roles}
    order = [roles.get(axis, axis) for axis, size in reversed(plan.mesh.axes) if size > 1]
    return tuple(role for i, role in enumerate(order) if i == 0 or order[i - 1] != role)
