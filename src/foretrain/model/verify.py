"""What a legal model graph is, as a check that names every fault."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isclose, prod

from foretrain.errors import did_you_mean
from foretrain.limits import DIMENSION, LAYERS, is_finite, shown
from foretrain.model.graph import Attr, Block, Model, Op, Tensor
from foretrain.model.ops import FAMILIES
from foretrain.model.ops.elementwise import ELEMENTWISE
from foretrain.model.ops.family import Check


def model_faults(model: Model) -> list[str]:
    """Everything wrong with the graph; empty for a legal one."""
    if not model.blocks:
        return ["blocks: empty."]
    faults = _repeated([block.name for block in model.blocks], "blocks")
    for block in model.blocks:
        faults += _block_faults(block)
    if faults:
        return faults
    faults += _carry_faults(model)
    paths = {f"{b.name}.{op.name}.{w.name}" for b, op in model.ops() for w in op.weights}
    for pair in model.tied:
        for path in pair:
            if path not in paths:
                faults.append(f"tied: {path} does not exist.{did_you_mean(path, sorted(paths))}")
    return faults


def _repeated(names: list[str], where: str) -> list[str]:
    return [f"{where}: {n!r} appears twice." for n in dict.fromkeys(names) if names.count(n) > 1]


def _block_faults(block: Block) -> list[str]:
    faults = _repeated([op.name for op in block.ops], block.name)
    if not LAYERS.allows(block.repeat):
        faults.append(f"{block.name}: repeat: {LAYERS.fault(block.repeat)}")
    for op in block.ops:
        faults += _op_faults(block, op)
    sizes = dict(block.sizes)
    for tensor in (*block.inputs, *block.outputs):
        missing = [dim for dim in tensor.dims if dim not in sizes]
        if missing:
            faults.append(
                f"{block.name}: sizes must include {', '.join(missing)} of {tensor.name}."
            )
    return faults or list(_wiring_faults(block))


def _op_faults(block: Block, op: Op) -> list[str]:
    where = f"{block.name}.{op.name}"
    faults = []
    if op.kind not in FAMILIES:
        faults.append(f"{where}: unknown kind {op.kind!r}.{did_you_mean(op.kind, FAMILIES)}")
    faults += [
        f"{where}: size of {dim}: {DIMENSION.fault(size)}"
        for dim, size in op.sizes
        if not DIMENSION.allows(size)
    ]
    faults += [f"{where}: {fault}" for fault in attribute_faults(op)]
    for tensor in (*op.inputs, *op.outputs, *op.weights):
        missing = [dim for dim in tensor.dims if dim not in op.size]
        if missing:
            faults.append(f"{where}: sizes must include {', '.join(missing)} of {tensor.name}.")
    if not op.outputs:
        faults.append(f"{where}: has no output.")
    return faults


def _wiring_faults(block: Block) -> Iterator[str]:
    """Every tensor is produced once, and consumers see as many elements as the producer made."""
    produced: dict[str, float | None] = {t.name: None for t in block.inputs}
    later = {t.name for op in block.ops for t in op.outputs}
    for op in block.ops:
        for tensor in op.inputs:
            elements = produced.get(tensor.name)
            if tensor.name in later and tensor.name not in produced:
                yield f"{block.name}.{op.name}: reads {tensor.name} before it is produced."
            elif elements is not None and not isclose(
                elements, op.input_elements(tensor), rel_tol=1e-9
            ):
                yield (
                    f"{block.name}.{op.name}: sees {op.input_elements(tensor):,.0f} elements of "
                    f"{tensor.name}, but {elements:,.0f} are produced."
                )
        for tensor in op.outputs:
            if tensor.name in produced:
                yield f"{block.name}.{op.name}: {tensor.name} is produced twice."
            produced[tensor.name] = float(op.elements(tensor))
    for tensor in block.outputs:
        if tensor.name not in produced:
            yield f"{block.name}: output {tensor.name} is not produced."


def _carry_faults(model: Model) -> list[str]:
    """What one block gives is what the next one takes."""
    faults = []
    pairs = [*zip(model.blocks, model.blocks[1:], strict=False)]
    pairs += [(block, block) for block in model.blocks if block.repeat > 1]
    for giver, taker in pairs:
        where = f"{giver.name} → {taker.name}"
        if len(giver.outputs) != len(taker.inputs):
            faults.append(f"{where}: {len(giver.outputs)} outputs, but {len(taker.inputs)} inputs.")
            continue
        for given, taken in zip(giver.outputs, taker.inputs, strict=True):
            faults += _match_faults(where, giver, given, taker, taken)
    return faults


def _match_faults(
    where: str, giver: Block, given: Tensor, taker: Block, taken: Tensor
) -> list[str]:
    if len(given.dims) != len(taken.dims):
        return [f"{where}: {given.name} {given.dims} does not match {taken.dims}."]
    elements = prod(dict(giver.sizes)[dim] for dim in given.dims)
    for op in taker.ops:
        for tensor in op.inputs:
            if tensor.name == taken.name and not isclose(
                elements, op.input_elements(tensor), rel_tol=1e-9
            ):
                needed = op.input_elements(tensor)
                return [
                    f"{where}: {elements:,} elements produced, but {op.name} reads {needed:,.0f}."
                ]
    return []


# --- attributes: what an op may say beside sizes and tensors ----------------------------------------------

_TABLES = re.compile(r"\d{1,12}x\d{1,6}(,\d{1,12}x\d{1,6})*")


def _is_number(value: Attr) -> bool:
    return not isinstance(value, bool | str) and is_finite(value)


def _one_of(*words: str) -> Check:
    return (lambda value: value in words), f"one of {', '.join(words)}"


_FLAG: Check = (lambda value: isinstance(value, bool)), "true or false"
_COUNT: Check = DIMENSION.allows, "a positive whole number"
_COUNT_OR_NONE: Check = (lambda value: value == 0 or DIMENSION.allows(value)), "a whole number"
_SHARE: Check = (lambda value: _is_number(value) and 0 <= float(value) < 1), "a share below 1"
_SKEW: Check = (
    (lambda value: _is_number(value) and 0 <= float(value) <= 10),
    "a number from 0 to 10",
)
_SCALE: Check = (
    (lambda value: _is_number(value) and 0 < float(value) <= 1e6),
    "a positive number up to a million",
)
_LISTED: Check = (
    (lambda value: isinstance(value, str) and _TABLES.fullmatch(value) is not None),
    "rows and look-ups of every table, as in 1000x1,50x3",
)

ATTRIBUTES: Mapping[str, Check] = {
    "causal": _FLAG,
    "dropout": _SHARE,
    "follows_norm": _FLAG,
    "follows_product": _FLAG,
    "groups": _COUNT,
    "halo_h": _COUNT_OR_NONE,
    "halo_w": _COUNT_OR_NONE,
    "input_gradient": _FLAG,
    "input_scale": _SCALE,
    "kernel_h": _COUNT,
    "kernel_w": _COUNT,
    "kv_total": _COUNT,
    "norm": _one_of("layernorm", "rmsnorm", "batchnorm"),
    "op": _one_of(*ELEMENTWISE),
    "pool": _one_of("max", "avg", "global"),
    "reduces": _FLAG,
    "skew": _SKEW,
    "sparse": _FLAG,
    "stride": _COUNT,
    "tables": _LISTED,
    "top_k": _COUNT,
    "wide": _FLAG,
    "window": _COUNT_OR_NONE,
}


def attribute_faults(op: Op) -> Iterator[str]:
    """What is wrong with an op's attributes."""
    formulas = FAMILIES.get(op.kind)
    known = {**ATTRIBUTES, **(formulas.attributes if formulas else {})}
    for name, value in op.attrs:
        if name not in known:
            yield f"unknown attribute {shown(name)}.{did_you_mean(name, known)}"
            continue
        is_allowed, allowed = known[name]
        if not is_allowed(value):
            yield f"{name}: {shown(value)} is not {allowed}."
