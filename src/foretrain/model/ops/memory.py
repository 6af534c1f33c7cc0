"""Anything that only moves bytes: inputs read, weights read, outputs written; nothing kept."""

from __future__ import annotations

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
    KernelChoices,
    largest,
    memory,
    tensor_bytes,
)
from foretrain.model.ops.family import OpFamily
from foretrain.model.precision import Precision


class Memory(OpFamily):
    name = "memory"
    shares_bytes = True

    def flops(self, op: Op) -> float:
        return 0.0

    def _moved(self, op: Op, precision: Precision) -> float:
        return tensor_bytes(op, (*op.inputs, *op.weights, *op.outputs), precision)

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        return (memory(FORWARD, self._moved(op, precision), largest(op), 0.0),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        phase = WEIGHT_GRADIENT if op.weights and not op.inputs else INPUT_GRADIENT
        return (memory(phase, self._moved(op, precision), largest(op), 0.0),)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return ()
