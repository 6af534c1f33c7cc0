"""Mixture of experts: permute tokens to experts, expert GEMMs, and back.

Tokens are taken as balanced: each expert gets `slot` tokens per sample, top_k·seq/experts times a capacity
factor. `dispatch` and `combine` are permutations: a split leaves no partial sums (`reduces` is False).
"""

from __future__ import annotations

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
    KernelChoices,
    memory,
    tensor_bytes,
)
from foretrain.model.ops.family import OpFamily, meets
from foretrain.model.ops.linear import Product, gemm, kept_input
from foretrain.model.precision import Precision


class Dispatch(OpFamily):
    """x `(batch, seq, hidden)` → `(routed, batch, slot, hidden)`: each row read once per copy and written.

    Where they arrive copies are sorted by expert, which reads and writes them once more, and combining undoes both
    (Megatron Core's all-to-all dispatcher; the same passes follow and precede DeepEP's kernels).
    """

    name = "dispatch"
    passes = 4  # over the copies: out of the tokens' order, and into the experts'

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        return meets(self._copies(op), dims)

    def _copies(self, op: Op) -> Tensor:
        return op.outputs[0]

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        copies = self._copies(op)
        moved = self.passes * tensor_bytes(op, (copies,), precision)
        return (memory(FORWARD, moved, op.elements(copies), 0.0),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        copies = self._copies(op)
        moved = self.passes * tensor_bytes(op, (copies,), precision)
        return (memory(INPUT_GRADIENT, moved, op.elements(copies)),)


class Combine(Dispatch):
    """`(routed, batch, slot, hidden)` → `(batch, seq, hidden)`: weighted sum of each token's experts.

    The gradient of the routing weights needs the experts' outputs, unless the stack multiplies the weights
    into the activation before the second GEMM (Megatron-Core's weighted SwiGLU), as fused stacks do.
    """

    name = "combine"

    def _copies(self, op: Op) -> Tensor:
        return op.inputs[0]

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return () if choices.fuses_elementwise else op.inputs[:1]


class GroupedGemm(Product):
    """Expert products: `(expert, batch, slot, in)` · `(expert, in, out)` → `(expert, batch, slot, out)`."""

    name = "grouped_gemm"
    is_dispatched = True

    def _bmnk(self, op: Op) -> tuple[int, int, int, int]:
        source, out = op.inputs[0], op.outputs[0]
        rows = [d for d in source.dims if d in out.dims and d != "expert"]
        inner = [d for d in source.dims if d not in out.dims]
        columns = sum(op.extent(d for d in o.dims if d not in source.dims) for o in op.outputs)
        return op.size["expert"], op.extent(rows), columns, op.extent(inner)

    def flops(self, op: Op) -> float:
        experts, m, n, k = self._bmnk(op)
        return 2.0 * experts * m * n * k

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        e, m, n, k = self._bmnk(op)
        out = precision.activation_bytes
        return _products(choices, e, (FORWARD, m, n, k), precision, out)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        e, m, n, k = self._bmnk(op)
        out, grad = precision.activation_bytes, precision.gradient_bytes
        return (
            *_products(choices, e, (INPUT_GRADIENT, m, k, n), precision, out),
            *_products(choices, e, (WEIGHT_GRADIENT, k, n, m), precision, grad),
        )

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return () if op.is_frozen else (kept_input(op, choices), *op.inputs[1:])


def _products(
    choices: KernelChoices,
    experts: int,
    one: tuple[str, int, int, int],
    precision: Precision,
    out: float,
) -> tuple[Kernel, ...]:
    """The experts' products in one launch, or one after the other."""
    phase, m, n, k = one
    if choices.groups_experts:
        return (gemm(phase, experts, m, n, k, precision, out, "grouped_gemm"),)
    return (gemm(phase, 1, m, n, k, precision, out),) * experts
