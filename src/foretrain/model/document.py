"""Models as plain data: an explicit graph of blocks and ops that can be written down and read back.

A tensor is a text: `x[batch, seq, hidden]`, with its element type after it where it is not the usual one:
`ids[batch, seq] index`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from foretrain.errors import ModelError, did_you_mean, refuse
from foretrain.loading import Strict, validated
from foretrain.model.details import NAMES, Details
from foretrain.model.graph import Block, Model, Op, Tensor
from foretrain.model.verify import model_faults

ELEMENTS = ("activation", "weight", "fp32", "index", "mask")
_TENSOR = re.compile(r"\s*([\w.\-]+)\s*\[([\w\s,]*)\]\s*(\w*)\s*")


@dataclass(frozen=True, slots=True)
class OpDocument(Strict):
    name: str
    kind: str
    sizes: dict[str, int]
    outputs: list[str]
    inputs: list[str] = field(default_factory=list)
    weights: list[str] = field(default_factory=list)
    attrs: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BlockDocument(Strict):
    name: str
    ops: list[OpDocument]
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    repeat: int = 1
    sizes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelDocument(Strict):
    name: str
    blocks: list[BlockDocument]
    seq: int | None = None
    tied: list[tuple[str, str]] = field(default_factory=list)
    source: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def model_to_dict(model: Model) -> dict[str, Any]:
    """The whole graph as plain data; `model_from_document` gives an equal model back."""
    data: dict[str, Any] = {"name": model.name}
    if model.seq_len is not None:
        data["seq"] = model.seq_len
    if model.source:
        data["source"] = model.source
    if model.tied:
        data["tied"] = [list(pair) for pair in model.tied]
    if details := _without_none(asdict(model.details)):
        data["details"] = details
    data["blocks"] = [_block_to_dict(block) for block in model.blocks]
    return data


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_none(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None
    }


def _block_to_dict(block: Block) -> dict[str, Any]:
    return {
        "name": block.name,
        "repeat": block.repeat,
        "sizes": dict(block.sizes),
        "inputs": [_text(t) for t in block.inputs],
        "outputs": [_text(t) for t in block.outputs],
        "ops": [_op_to_dict(op) for op in block.ops],
    }


def _op_to_dict(op: Op) -> dict[str, Any]:
    data: dict[str, Any] = {"name": op.name, "kind": op.kind, "sizes": dict(op.sizes)}
    data["inputs"] = [_text(t) for t in op.inputs]
    data["outputs"] = [_text(t) for t in op.outputs]
    if op.weights:
        data["weights"] = [_text(t, "weight") for t in op.weights]
    if op.attrs:
        data["attrs"] = dict(op.attrs)
    return data


def _text(tensor: Tensor, usual: str = "activation") -> str:
    element = "" if tensor.element == usual else f" {tensor.element}"
    return f"{tensor.name}[{', '.join(tensor.dims)}]{element}"


def model_from_document(data: Mapping[str, Any], where: str = "the model") -> Model:
    """The graph that a document describes; every fault is reported with its place."""
    document = validated(ModelDocument, data, where, ModelError)
    blocks = tuple(_block(block) for block in document.blocks)
    tied = tuple((first, second) for first, second in document.tied)
    details = Details.of(_known(document.details, where), where)
    model = Model(document.name, blocks, document.seq, tied, document.source, details=details)
    faults = model_faults(model)
    refuse(f"{where} is not a valid graph:", faults, ModelError)
    return model


def _known(details: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    unknown = [name for name in details if name not in NAMES]
    faults = [f"details.{name}: unknown key.{did_you_mean(name, NAMES)}" for name in unknown]
    refuse(f"{where} is invalid:", faults, ModelError)
    return details


def _block(document: BlockDocument) -> Block:
    return Block(
        document.name,
        tuple(_op(op) for op in document.ops),
        _tensors(document.inputs),
        _tensors(document.outputs),
        document.repeat,
        tuple(document.sizes.items()),
    )


def _op(document: OpDocument) -> Op:
    return Op(
        document.name,
        document.kind,
        tuple(document.sizes.items()),
        _tensors(document.inputs),
        _tensors(document.outputs),
        _tensors(document.weights, "weight"),
        tuple(document.attrs.items()),
    )


def _tensors(texts: list[str], usual: str = "activation") -> tuple[Tensor, ...]:
    return tuple(_tensor(text, usual) for text in texts)


def _tensor(text: str, usual: str) -> Tensor:
    match = _TENSOR.fullmatch(text)
    if match is None:
        raise ModelError(f"{text!r} is not a tensor. Write for example 'x[batch, seq, hidden]'.")
    element = match[3] or usual
    if element not in ELEMENTS:
        raise ModelError(f"{text!r}: unknown element type {element!r}; use {', '.join(ELEMENTS)}.")
    dims = tuple(dim.strip() for dim in match[2].split(",") if dim.strip())
    return Tensor(match[1], dims, element)
