"""Ops that only stream over memory: norms, softmax (outside attention), and whatever moves bytes alone."""

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

_FLOPS = {"layernorm": 8.0, "rmsnorm": 5.0, "batchnorm": 8.0}


# RMS norm out of single ops in fp32, as PyTorch composes it: tensors of the input's size that each of its kernels
# moves, in fp32 and in the input's format. Forward: cast; square; mean; scale; cast back; weight. Backward, as autograd
# dispatches it: weight (its input's gradient, its own, summed up); cast; scale (both factors, the second summed up by
# row); the mean's gradient written out; square (x copied, doubled, times the gradient); add; cast back.
_PIECES = ((1, 1), (2, 0), (1, 0), (2, 0), (1, 1), (0, 2))
_PIECES_BACKWARD = (
    *((0, 2), (0, 3), (0, 1)), (1, 1), *((2, 0), (3, 0), (1, 0)), (1, 0), *((2, 0), (2, 0), (3, 0)), (3, 0), (1, 1),
)  # fmt: skip
_FP32 = 4.0


class Norm(OpFamily):
    """Over the last dim, one fused kernel each way; attribute `norm`: layernorm | rmsnorm. Keeps its input.

    Eager PyTorch has a kernel for layer norm; RMS norm may be made of single ops.

    Statistics (one or two values per row) are left out: they are `1/hidden` of the input.
    """

    name = "norm"
    reads = 1  # passes over the input in forward, and over input and gradient in backward

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        if self._is_composed(op, choices):
            return self._composed(op, precision, FORWARD, _PIECES)
        moved = self.reads * tensor_bytes(op, op.inputs, precision)
        moved += tensor_bytes(op, op.outputs, precision)
        return (memory(FORWARD, moved, largest(op), self._arithmetic(op), self._row(op)),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        inputs = tensor_bytes(op, op.inputs, precision)
        outputs = tensor_bytes(op, op.outputs, precision)
        moved = self.reads * (inputs + outputs) + inputs
        data = memory(INPUT_GRADIENT, moved, largest(op), 2 * self._arithmetic(op), self._row(op))
        if self._is_composed(op, choices):
            return self._composed(op, precision, INPUT_GRADIENT, _PIECES_BACKWARD)
        if not op.weights:
            return (data,)
        written = op.parameters * precision.gradient_bytes
        return data, memory(WEIGHT_GRADIENT, written, op.parameters)

    def _is_composed(self, op: Op, choices: KernelChoices) -> bool:
        return not choices.fuses_norms and op.attr.get("norm") == "rmsnorm"

    def _composed(
        self, op: Op, precision: Precision, phase: str, pieces: tuple[tuple[int, int], ...]
    ) -> tuple[Kernel, ...]:
        n, own = largest(op), precision.activation_bytes
        return tuple(memory(phase, n * (wide * _FP32 + plain * own), n) for wide, plain in pieces)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return op.inputs

    def _arithmetic(self, op: Op) -> float:
        return _FLOPS[str(op.attr.get("norm", "layernorm"))]

    def _row(self, op: Op) -> int:
        return op.size[op.inputs[0].dims[-1]]


class BatchNorm(Norm):
    """Over all but the channel. Statistics need a pass of their own before the normalising pass, forward and backward."""

    name = "batch_norm"
    reads = 2

    def _arithmetic(self, op: Op) -> float:
        return _FLOPS["batchnorm"]

    def _row(self, op: Op) -> int:
        return 0  # its passes are counted one by one, and stream


class Softmax(OpFamily):
    """Over the last dim, for instance of an expert router. Keeps its output."""

    name = "softmax"

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        moved = tensor_bytes(op, (*op.inputs, *op.outputs), precision)
        return (memory(FORWARD, moved, largest(op), 5.0),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        moved = tensor_bytes(op, (*op.inputs, *op.outputs, *op.outputs), precision)
        return (memory(INPUT_GRADIENT, moved, largest(op), 4.0),)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return op.outputs


class MemoryMove(OpFamily):
    """Anything that only moves bytes: inputs read, weights read, outputs written; nothing kept."""

    name = "memory"
    shares_bytes = True

    def _moved(self, op: Op, precision: Precision) -> float:
        return tensor_bytes(op, (*op.inputs, *op.weights, *op.outputs), precision)

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        return (memory(FORWARD, self._moved(op, precision), largest(op), 0.0),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        phase = WEIGHT_GRADIENT if op.weights and not op.inputs else INPUT_GRADIENT
        return (memory(phase, self._moved(op, precision), largest(op), 0.0),)
