"""Ops without contraction: activations, dropout, residual adds, rotary positions, copies.

Attribute `op` names a row of `ELEMENTWISE`. Fused, an op is one pass: inputs read, outputs written. Unfused
it is several kernels, with the extra traffic of its intermediate results.
"""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.errors import ModelError, did_you_mean
from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    Choices,
    Kernel,
    input_bytes,
    largest,
    memory,
    output_bytes,
    tensor_bytes,
)
from foretrain.model.precision import Precision


@dataclass(frozen=True, slots=True)
class Row:
    """`extra_*`: passes over the output that only the unfused form makes."""

    flops: float  # vector arithmetic per element
    saves: str = ""  # "" | inputs | outputs | mask
    kernels: int = 1  # kernels of the unfused form, forward
    extra: float = 0.0
    extra_backward: float = 0.0
    keeps_product: bool = False  # unfused gating keeps the activated half beside both inputs
    accumulates: bool = False  # backward only adds the two gradients that meet at the residual


ELEMENTWISE: dict[str, Row] = {
    # activations; unfused adds the bias in a pass of its own
    "gelu": Row(8, "inputs", kernels=2, extra=2),
    "relu": Row(1, "outputs"),
    "squared-relu": Row(2, "inputs", kernels=2, extra=2, extra_backward=2),
    "silu": Row(5, "inputs"),
    "tanh": Row(5, "outputs"),
    "sigmoid": Row(5, "outputs"),
    "leaky-relu": Row(1, "outputs"),
    # act(gate)·up
    "silu-gated": Row(6, "inputs", kernels=2, extra=2, extra_backward=4, keeps_product=True),
    "gelu-gated": Row(9, "inputs", kernels=2, extra=2, extra_backward=4, keeps_product=True),
    "relu-gated": Row(2, "inputs", kernels=2, extra=2, extra_backward=4, keeps_product=True),
    # dropout and residuals
    "dropout": Row(1, "mask"),
    "dropout-add": Row(2, "mask", kernels=2, extra=2),
    "add": Row(1, accumulates=True),
    # x·cos + rotate(x)·sin: negate-and-join, two products, a sum
    "rope": Row(3, kernels=4, extra=7, extra_backward=7),
    # copies and small arithmetic
    "concat": Row(0),
    "copy": Row(0),
    "scale": Row(1),
    "multiply": Row(1, "inputs"),
    "multiply-add": Row(2, "inputs", kernels=2, extra=2, extra_backward=2),
    "loss": Row(5, "inputs"),
}


class Elementwise:
    name = "elementwise"

    def flops(self, op: Op) -> float:
        return 0.0  # model FLOPs count contractions only

    def forward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        row = _row(op)
        outputs = output_bytes(op, precision)
        moved = input_bytes(op, precision) + outputs + tensor_bytes(op, _mask(op, row), precision)
        if choices.fuses_elementwise or row.kernels == 1:
            return (memory(FORWARD, moved, largest(op), row.flops),)
        share = (moved + row.extra * outputs) / row.kernels
        return (memory(FORWARD, share, largest(op), row.flops / row.kernels),) * row.kernels

    def backward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        row = _row(op)
        outputs = output_bytes(op, precision)
        if row.accumulates:
            return (memory(INPUT_GRADIENT, 3 * outputs, largest(op)),)
        moved = outputs + input_bytes(op, precision)
        moved += tensor_bytes(op, self.saved(op, precision, choices), precision)
        kernels = [memory(INPUT_GRADIENT, moved, largest(op), 2 * row.flops)]
        if str(op.attr.get("op")) == "dropout-add":  # the skip connection's gradient joins here
            kernels.append(memory(INPUT_GRADIENT, 3 * outputs, largest(op)))
        if not choices.fuses_elementwise and row.extra_backward:
            kernels.append(memory(INPUT_GRADIENT, row.extra_backward * outputs, largest(op)))
        return tuple(kernels)

    def saved(self, op: Op, precision: Precision, choices: Choices) -> tuple[Tensor, ...]:
        row = _row(op)
        match row.saves:
            case "inputs" if row.keeps_product and not choices.fuses_elementwise:
                return (*op.inputs, Tensor(f"{op.name}.activated", op.outputs[0].dims))
            case "inputs":
                return tuple(dict.fromkeys(op.inputs))
            case "outputs":
                return op.outputs
        return _mask(op, row)


def _mask(op: Op, row: Row) -> tuple[Tensor, ...]:
    if row.saves != "mask":
        return ()
    return (Tensor(f"{op.name}.mask", op.outputs[0].dims, "mask"),)


def _row(op: Op) -> Row:
    name = str(op.attr.get("op", ""))
    if name not in ELEMENTWISE:
        hint = did_you_mean(name, ELEMENTWISE)
        known = ", ".join(ELEMENTWISE)
        raise ModelError(f"op {op.name!r}: unknown elementwise op {name!r}.{hint} Known: {known}.")
    return ELEMENTWISE[name]
