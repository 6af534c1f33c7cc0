"""Matrix products: against a weight, y = x·W (+ b), and of two activations.

Rows m are the dims shared by input and output, columns n the output's own dims, and k the contracted dims
of the input. Backward is two GEMMs: dX = dY·Wᵀ and dW = Xᵀ·dY.
"""

from __future__ import annotations

from dataclasses import replace

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
    KernelChoices,
    memory,
)
from foretrain.model.ops.family import OpFamily, meets
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


def activation_gemm(phase: str, batch: int, m: int, n: int, k: int, precision: Precision) -> Kernel:
    """A batched GEMM of activations; low-precision recipes leave these in 16 bit."""
    return gemm(phase, batch, m, n, k, precision.wide, precision.activation_bytes)


KEPT_WIDE = ("logits", "router")
"""Products that low-precision recipes leave in 16 bit: Transformer Engine, MaxText and torchao quantise the linear
layers of blocks, not the output projection; routers choose experts in 16 or 32 bit."""


def is_wide(op: Op) -> bool:
    """Whether its product stays in 16 bit: one of those, or marked so."""
    return op.name in KEPT_WIDE or bool(op.attr.get("wide"))


def product_precision(op: Op, precision: Precision) -> Precision:
    """The precision an op's product runs in."""
    return precision.wide if is_wide(op) else precision


class Product(OpFamily):
    """Products against weights, which low-precision recipes run in formats of fewer bits."""

    backward_products = 2.0

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        hits = [meets(out, dims) for out in op.outputs]
        return all(hits) or (not any(hits) and meets(op.inputs[0], dims))

    def stored_bytes(self, op: Op, precision: Precision) -> float:
        """Formats that save memory are for products that go lower than 16 bit; tables, norms and the head stay as they
        are (bitsandbytes, torchtune's QLoRA recipes and Transformer Engine quantise linear layers)."""
        return precision.weight_bytes if is_wide(op) else precision.frozen_weight_bytes

    def is_quantised(self, op: Op, precision: Precision) -> bool:
        return bool(op.weights) and product_precision(op, precision).quantises

    def casts(self, op: Op, precision: Precision, gathered: float = 1.0) -> tuple[Kernel, ...]:
        """Each is read once and written twice, as it is and transposed: one copy for the product along rows, one for
        the weight gradient (NVIDIA Transformer Engine user guide, FP8 and MXFP8: "cast and transpose"). An input that
        is gathered from `gathered` ranks is cast before and transposed after. Weights that are frozen have no gradient,
        so that nothing is transposed, and what comes back is cast for the input's gradient.
        """
        if not self.is_quantised(op, precision):
            return ()
        wide = precision.activation_bytes * precision.cast_reads
        narrow = precision.gemm_input_bytes
        source = op.elements(op.inputs[0])
        result = sum(op.elements(out) for out in op.outputs)
        if op.is_frozen:
            return (
                memory(FORWARD, source * (wide + narrow) / gathered, source),
                memory(INPUT_GRADIENT, result * (wide + narrow), result),
            )
        forward = (wide + narrow) / gathered + (2.0 * narrow if gathered > 1 else narrow)
        return (
            memory(FORWARD, source * forward, source),
            memory(WEIGHT_GRADIENT, result * (wide + 2.0 * narrow), result),
        )


class Linear(Product):
    """`x[rows…, in…] → y[rows…, out…]`; several outputs (q, k, v) are columns of one GEMM."""

    name = "linear"
    is_projection = True
    is_called_apart = True  # a bias gradient is a call of its own

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

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        m, n, k = self._mnk(op)
        precision = product_precision(op, precision)
        product = gemm(FORWARD, 1, m, n, k, precision, precision.activation_bytes)
        return (_where_it_runs(product, choices),)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        m, n, k = self._mnk(op)
        precision = product_precision(op, precision)
        kernels = [gemm(WEIGHT_GRADIENT, 1, k, n, m, precision, precision.gradient_bytes)]
        if op.attr.get("input_gradient", True):  # raw data needs none
            data = gemm(INPUT_GRADIENT, 1, m, k, n, precision, precision.activation_bytes)
            kernels.insert(0, data)
        kernels = [_where_it_runs(kernel, choices) for kernel in kernels]
        if _has_bias(op) and not choices.fuses_elementwise:
            # Without a GEMM epilogue for it, the bias gradient reads dY once more.
            kernels.append(memory(WEIGHT_GRADIENT, m * n * precision.activation_bytes, m * n))
        return tuple(kernels)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return () if op.is_frozen else (kept_input(op, choices),)


def _where_it_runs(product: Kernel, choices: KernelChoices) -> Kernel:
    """Matrix units, or, where dims do not suit them, vector units that multiply 16-bit operands as fp32."""
    is_narrow = product.dtype in ("fp16", "bf16")
    if is_narrow and any(dim % choices.aligned_to for dim in product.shape[1:]):
        return replace(product, dtype="fp32")
    return product


def kept_input(op: Op, choices: KernelChoices) -> Tensor:
    """The input for the weight gradient: as it came, or as the GEMM read it (Transformer Engine)."""
    source = op.inputs[0]
    if not choices.keeps_quantised or source.element != "activation" or is_wide(op):
        return source
    return Tensor(source.name, source.dims, "gemm_input")


def _has_bias(op: Op) -> bool:
    contracted = set(op.inputs[0].dims) - set(op.outputs[0].dims)
    return any(contracted.isdisjoint(weight.dims) for weight in op.weights)


class Matmul(OpFamily):
    """Products of two activations, batched over the dims both share with the output: `a[batch…, m…, k…] · b[batch…, k…, n…] → c[batch…, m…, n…]`."""

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
