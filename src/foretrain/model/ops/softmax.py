"""Softmax over the last dim (outside attention, for instance an expert router). Keeps its output."""

from __future__ import annotations

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    Kernel,
    KernelChoices,
    largest,
    memory,
    tensor_bytes,
)
from foretrain.model.ops.family import OpFamily
from foretrain.model.precision import Precision


class Softmax(OpFamily):
    name = "softmax"

    def flops(self, op: Op) -> float:
        return 0.0  # model FLOPs count contractions only

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        moved = tensor_bytes(op, (*op.inputs, *op.outputs), precision)
        return (memory(FORWARD, moved, largest(op), 5.0),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        moved = tensor_bytes(op, (*op.inputs, *op.outputs, *op.outputs), precision)
        return (memory(INPUT_GRADIENT, moved, largest(op), 4.0),)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return op.outputs
