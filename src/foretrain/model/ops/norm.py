"""Normalisations: layer norm and RMS norm over the last dim, batch norm over all but the channel."""

from __future__ import annotations

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Choices,
    Kernel,
    largest,
    memory,
    tensor_bytes,
)
from foretrain.model.precision import Precision

_FLOPS = {"layernorm": 8.0, "rmsnorm": 5.0, "batchnorm": 8.0}


class Norm:
    """One fused kernel each way; attribute `norm`: layernorm | rmsnorm. Keeps its input.

    Statistics (one or two values per row) are left out: they are `1/hidden` of the input.
    """

    name = "norm"
    reads = 1  # passes over the input in forward, and over input and gradient in backward

    def flops(self, op: Op) -> float:
        return 0.0  # model FLOPs count contractions only

    def forward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        moved = self.reads * tensor_bytes(op, op.inputs, precision)
        moved += tensor_bytes(op, op.outputs, precision)
        return (memory(FORWARD, moved, largest(op), self._arithmetic(op)),)

    def backward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        inputs = tensor_bytes(op, op.inputs, precision)
        outputs = tensor_bytes(op, op.outputs, precision)
        moved = self.reads * (inputs + outputs) + inputs
        data = memory(INPUT_GRADIENT, moved, largest(op), 2 * self._arithmetic(op))
        if not op.weights:
            return (data,)
        written = op.parameters * precision.gradient_bytes
        return data, memory(WEIGHT_GRADIENT, written, op.parameters)

    def saved(self, op: Op, precision: Precision, choices: Choices) -> tuple[Tensor, ...]:
        return op.inputs

    def _arithmetic(self, op: Op) -> float:
        return _FLOPS[str(op.attr.get("norm", "layernorm"))]


class BatchNorm(Norm):
    """Statistics need a pass of their own before the normalising pass, forward and backward."""

    name = "batch_norm"
    reads = 2

    def _arithmetic(self, op: Op) -> float:
        return _FLOPS["batchnorm"]
