"""Low-rank adapters (LoRA: Hu et al. 2021, arXiv 2106.09685): a model whose weights are frozen, with small ones beside them.

Beside a product y = x·W stands a second one through a narrow waist, y + (x·A)·B, of which A and B alone are trained. All
that follows (no gradients, states, reductions or kept inputs of frozen weights) is said by the weights' element.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from foretrain.errors import ModelError, hint
from foretrain.model.graph import FROZEN, Model, Op, Tensor
from foretrain.model.ops import family
from foretrain.model.sketch import weight

WAIST = "rank"

# What adapters can stand beside, as Megatron Bridge, PEFT and torchtune name it: an op, and which of its results have an
# adapter of their own; all results of one product share one where none is named.
_QKV = ("q", "k", "v")
_HALVES = ("gate", "up")
_PROJECTIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "linear_qkv": (("qkv", ""),),
    "linear_proj": (("proj", ""),),
    "linear_fc1": (("fc1", ""),),
    "linear_fc2": (("fc2", ""),),
    "q_proj": (("qkv", "q"),),
    "k_proj": (("qkv", "k"),),
    "v_proj": (("qkv", "v"),),
    "o_proj": (("proj", ""),),
    "output_proj": (("proj", ""),),
    "gate_proj": (("fc1", "gate"),),
    "up_proj": (("fc1", "up"),),
    "down_proj": (("fc2", ""),),
    "mlp": (*(("fc1", half) for half in _HALVES), ("fc2", "")),
    "all-linear": (
        *(("qkv", part) for part in _QKV),
        ("proj", ""),
        *(("fc1", half) for half in _HALVES),
        ("fc2", ""),
    ),
}
TARGETS = tuple(_PROJECTIONS)


@dataclass(frozen=True, slots=True)
class Adapters:
    """Of so many values in the waist, beside those projections."""

    rank: int
    targets: tuple[str, ...]


def with_adapters(model: Model, adapters: Adapters) -> Model:
    """The model with all its weights frozen and adapters beside the targets of every layer."""
    unknown = [name for name in adapters.targets if name not in _PROJECTIONS]
    if unknown:
        raise ModelError(f"lora_targets: {unknown[0]!r} is not known.{hint(unknown[0], TARGETS)}")
    wanted = dict.fromkeys(pair for name in adapters.targets for pair in _PROJECTIONS[name])
    for name in adapters.targets:
        _expect_beside(model, name)
    blocks = tuple(
        replace(b, ops=tuple(new for op in b.ops for new in _beside(op, wanted, adapters.rank)))
        for b in model.blocks
    )
    return replace(model, blocks=blocks, shape=None)


def adapters_in(model: Model) -> Adapters | None:
    """The adapters of a model, under PEFT's names where these stand beside a part; None if it has none."""
    ops = {op.name: op for _, op in model.ops()}
    found: dict[str, None] = {}
    rank = 0
    for name, op in ops.items():
        match = _OUT.fullmatch(name)
        if match is None:
            continue
        rank = op.size[WAIST]
        outs = [t.name.removesuffix("_lora") for t in op.outputs]
        whole = [t.name.removesuffix("_base") for t in ops[match[1]].outputs]
        found |= dict.fromkeys(_named(match[1], outs, whole))
    return Adapters(rank, tuple(found)) if found else None


_OUT = re.compile(r"(.+)_lora\d*_b")


def _named(op: str, outs: list[str], whole: list[str]) -> Iterator[str]:
    """What PEFT calls the parts of a product that have an adapter; Megatron's name where one adapter is for all parts."""
    if outs == whole and len(whole) > 1:
        yield next(name for name, pairs in _PROJECTIONS.items() if pairs == ((op, ""),))
        return
    parts = {part for out in outs for part in out.split("_")}
    for name in _SINGLE:
        ((own, part),) = _PROJECTIONS[name]
        if own == op and (part in parts or not part or (len(whole) == 1 and part == "up")):
            yield name


_SINGLE = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def without_adapters(model: Model) -> Model:
    """The model before adapters were put beside its projections and its weights frozen."""
    blocks = tuple(
        replace(b, ops=tuple(_trained(op) for op in b.ops if "_lora" not in op.name))
        for b in model.blocks
    )
    return replace(model, blocks=blocks)


def _trained(op: Op) -> Op:
    outputs = tuple(replace(t, name=t.name.removesuffix("_base")) for t in op.outputs)
    weights = tuple(replace(w, element="weight") if w.element == FROZEN else w for w in op.weights)
    return replace(op, outputs=outputs, weights=weights)


def _expect_beside(model: Model, name: str) -> None:
    ops = {op.name for _, op in model.ops() if family(op).is_projection}
    lacking = {op for op, _ in _PROJECTIONS[name]} - ops
    if lacking:
        raise ModelError(
            f"lora_targets: {name} refers to {', '.join(sorted(lacking))}, which {model.name} "
            "does not have (adapters on experts and latent attention are not supported). "
            "Specify other projections."
        )


def _beside(op: Op, wanted: Collection[tuple[str, str]], rank: int) -> Iterator[Op]:
    frozen = replace(op, weights=tuple(replace(w, element=FROZEN) for w in op.weights))
    groups = list(_groups(op, wanted)) if family(op).is_projection else []
    if not groups:
        yield frozen
        return
    taken = {tensor.name for group in groups for tensor in group}
    yield replace(
        frozen,
        outputs=tuple(_renamed(t, "base") if t.name in taken else t for t in op.outputs),
    )
    for number, group in enumerate(groups, 1):
        label = f"{op.name}_lora{number if len(groups) > 1 else ''}"
        yield from _pair(op, label, group, rank)
    outs = tuple(t for t in op.outputs if t.name in taken)
    inputs = (*(_renamed(t, "base") for t in outs), *(_renamed(t, "lora") for t in outs))
    add = (("op", "add"),)
    yield Op(f"{op.name}_lora_add", "elementwise", _sizes(op, outs), inputs, outs, (), add)


def _groups(op: Op, wanted: Collection[tuple[str, str]]) -> Iterator[tuple[Tensor, ...]]:
    """Results that have an adapter together: all of the product, or those that are named one by one."""
    if (op.name, "") in wanted:
        yield op.outputs
        return
    for name, part in wanted:
        outputs = tuple(t for t in op.outputs if part in t.name.split("_"))
        if name == op.name and outputs:
            yield outputs
    if len(op.outputs) == 1 and any(name == op.name for name, _ in wanted):
        yield op.outputs  # an activation without a gate: one product, whatever its halves are called


def _pair(op: Op, label: str, outputs: tuple[Tensor, ...], rank: int) -> Iterator[Op]:
    """The product into the waist and the one out of it; both stay in 16 bit where others go lower."""
    source = op.inputs[0]
    rows = tuple(dim for dim in source.dims if dim in outputs[0].dims)
    inner = tuple(dim for dim in source.dims if dim not in outputs[0].dims)
    waist = Tensor(f"{label}_waist", (*rows, WAIST))
    wide = (("wide", True),)
    yield Op(
        f"{label}_a", "linear", (*_sizes(op, (source,)), (WAIST, rank)), (source,), (waist,),
        (weight("weight", *inner, WAIST),), wide,
    )  # fmt: skip
    weights = tuple(
        weight(f"{t.name}_weight", WAIST, *(d for d in t.dims if d not in rows)) for t in outputs
    )
    outs = tuple(_renamed(t, "lora") for t in outputs)
    sizes = (*_sizes(op, outputs), (WAIST, rank))
    yield Op(f"{label}_b", "linear", sizes, (waist,), outs, weights, wide)


def _renamed(tensor: Tensor, label: str) -> Tensor:
    return replace(tensor, name=f"{tensor.name}_{label}")


def _sizes(op: Op, tensors: tuple[Tensor, ...]) -> tuple[tuple[str, int], ...]:
    dims = dict.fromkeys(dim for tensor in tensors for dim in tensor.dims)
    return tuple((dim, op.size[dim]) for dim in dims)
