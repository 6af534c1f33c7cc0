"""Products of two activations, batched over the dims both operands share with the output."""

from __future__ import annotations

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, Kernel, KernelChoices
from foretrain.model.ops.family import OpFamily
from foretrain.model.precision import Precision


def activation_gemm(phase: str, batch: int, m: int, n: int, k: int, precision: Precision) -> Kernel:
    """A batched GEMM of activations; low-precision recipes leave these in 16 bit."""
    moved = batch * (m * k + k * n + m * n) * precision.activation_bytes
    return Kernel(
        kind="gemm",
        phase=phase,
        flops=2.0 * batch * m * n * k,
        bytes=moved,
        dtype=precision.attention,
        shape=(batch, m, n, k),
    )


class Matmul(OpFamily):
    """`a[batch…, m…, k…] · b[batch…, k…, n…] → c[batch…, m…, n…]`."""

    name = "matmul"
    backward_products = 2.0
    is_called_apart = True

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        return True

    def _bmnk(self, op: Op) -> tuple[int, int, int, int]:
        left, right = (set(t.dims) for t in op.inputs[:2])
        out = set(op.outputs[0].dims)
        dims = op.dims
        batch = op.extent(d for d in dims if d in left and d in right and d in out)
        m = op.extent(d for d in dims if d in left and d not in right and d in out)
        n = op.extent(d for d in dims if d in right and d not in left and d in out)
        k = op.extent(d for d in dims if d in left and d in right and d not in out)
        return batch, m, n, k

    def flops(self, op: Op) -> float:
        batch, m, n, k = self._bmnk(op)
        return 2.0 * batch * m * n * k

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        return (activation_gemm(FORWARD, *self._bmnk(op), precision),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        batch, m, n, k = self._bmnk(op)
        return (
            activation_gemm(INPUT_GRADIENT, batch, m, k, n, precision),
            activation_gemm(INPUT_GRADIENT, batch, k, n, m, precision),
        )

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return op.inputs[:2]
