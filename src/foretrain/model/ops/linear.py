"""Matrix products against a weight: y = x·W (+ b).

Rows m are the dims shared by input and output, columns n the output's own dims, and k the contracted dims
of the input. Backward is two GEMMs: dX = dY·Wᵀ and dW = Xᵀ·dY.
"""

from __future__ import annotations

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Choices,
    Kernel,
    memory,
)
from foretrain.model.precision import Precision


def gemm(
    phase: str,
    batch: int,
    m: int,
    n: int,
    k: int,
    precision: Precision,
    out_bytes: float,
    kind: str = "gemm",
) -> Kernel:
    """A (batched) GEMM: operands read once in the GEMM's input format, the result written once."""
    operands = batch * (m * k + k * n) * precision.gemm_input_bytes
    return Kernel(
        kind=kind,
        phase=phase,
        flops=2.0 * batch * m * n * k,
        bytes=operands + batch * m * n * out_bytes,
        dtype=precision.matmul,
        shape=(batch, m, n, k),
    )


class Linear:
    """`x[rows…, in…] → y[rows…, out…]`; several outputs (q, k, v) are columns of one GEMM."""

    name = "linear"

    def _mnk(self, op: Op) -> tuple[int, int, int]:
        source = op.inputs[0]
        rows = [dim for dim in source.dims if dim in op.outputs[0].dims]
        contracted = [dim for dim in source.dims if dim not in op.outputs[0].dims]
        columns = sum(
            op.extent(dim for dim in out.dims if dim not in source.dims) for out in op.outputs
        )
        return op.extent(rows), columns, op.extent(contracted)

    def flops(self, op: Op) -> float:
        m, n, k = self._mnk(op)
        return 2.0 * m * n * k

    def forward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        m, n, k = self._mnk(op)
        return (gemm(FORWARD, 1, m, n, k, precision, precision.activation_bytes),)

    def backward(self, op: Op, precision: Precision, choices: Choices) -> tuple[Kernel, ...]:
        m, n, k = self._mnk(op)
        kernels = [gemm(WEIGHT_GRADIENT, 1, k, n, m, precision, precision.gradient_bytes)]
        if op.attr.get("input_gradient", True):  # raw data needs none
            data = gemm(INPUT_GRADIENT, 1, m, k, n, precision, precision.activation_bytes)
            kernels.insert(0, data)
        if _has_bias(op) and not choices.fuses_elementwise:
            # Without a GEMM epilogue for it, the bias gradient reads dY once more.
            kernels.append(memory(WEIGHT_GRADIENT, m * n * precision.activation_bytes, m * n))
        return tuple(kernels)

    def saved(self, op: Op, precision: Precision, choices: Choices) -> tuple[Tensor, ...]:
        return (op.inputs[0],)


def _has_bias(op: Op) -> bool:
    contracted = set(op.inputs[0].dims) - set(op.outputs[0].dims)
    return any(contracted.isdisjoint(weight.dims) for weight in op.weights)
