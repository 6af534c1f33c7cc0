"""Scaled dot-product attention: softmax(q·kᵀ)·v over grouped heads.

q `(batch, seq, heads, head_dim)`, k `(batch, kv_seq, kv_heads, head_dim)`, v `(batch, kv_seq, kv_heads, v)`
→ `(batch, seq, heads, v)` where v's width is `v_dim` if the op has one, else `head_dim`.

Attributes: `causal`, `window` (0: none), `dropout`, `kv_total` (the whole key length, so that a window keeps
its share of the work when `kv_seq` is split).

`unfused` materialises the scores and keeps what Korthikanti et al. 2022 (arXiv 2205.05198, section 4.1)
list; the fused ones (`flash`, FlashAttention-2 where the device has no other; `flash3`, FlashAttention-3 and later;
`flash1` and `triton`, before it; `cudnn`) keep q, k, v, the output and the log-sum-exp and recompute scores in backward, which makes five products
of forward's two (Dao et al. 2022, arXiv 2205.14135). They differ in speed alone, which is the cost model's
affair: the kind of kernel says which one it is.
"""

from __future__ import annotations

from foretrain.errors import ModelError, hint
from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, Kernel, KernelChoices, memory
from foretrain.model.ops.family import OpFamily
from foretrain.model.ops.linear import activation_gemm
from foretrain.model.precision import Precision

KINDS = {
    "flash": "attention",
    "flash1": "attention_flash1",
    "flash3": "attention_flash3",
    "triton": "attention_triton",
    "cudnn": "attention_cudnn",
}
"""Fused implementations and the kind of kernel each runs."""
IMPLEMENTATIONS = (*KINDS, "unfused")
FLASH_BACKWARD = 2.5  # five products in backward for two in forward
_SOFTMAX_FLOPS = 5.0  # max, subtract, exp, sum, divide


class Attention(OpFamily):
    name = "attention"
    makes = "transformer"
    is_layer = True
    goes_round = True
    runs_again_selectively = True
    keeps_result = True  # as in a plain checkpoint around it
    skips_work = True
    shares_bytes = True

    def divides(self, op: Op, dims: tuple[str, ...]) -> bool:
        return dims != ("kv_heads",)

    def head_widths(self, op: Op) -> tuple[int, int] | None:
        return op.size["head_dim"], _value_width(op)

    def flops(self, op: Op) -> float:
        window = int(op.attr.get("window", 0))
        return _dense_flops(op) * (min(1.0, window / _kv_total(op)) if window else 1.0)

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        if kind := _fused(choices):
            return (_flash(op, precision, FORWARD, kind),)
        return _unfused_forward(op, precision, choices)

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        if kind := _fused(choices):
            return (_flash(op, precision, INPUT_GRADIENT, kind),)
        return _unfused_backward(op, precision, choices)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        if _fused(choices):
            logsumexp = Tensor(f"{op.name}.logsumexp", ("batch", "seq", "heads"), "fp32")
            return (*op.inputs, *op.outputs, logsumexp)
        scores = ("batch", "heads", "seq", "kv_seq")
        kept = (*op.inputs, Tensor(f"{op.name}.probabilities", scores))
        if not op.attr.get("dropout", 0.0):
            return kept
        mask = Tensor(f"{op.name}.mask", scores, "mask")
        return (*kept, mask, Tensor(f"{op.name}.dropped", scores))


def _fused(choices: KernelChoices) -> str | None:
    """The kind of kernel of a fused implementation."""
    if choices.attention not in IMPLEMENTATIONS:
        raise ModelError(
            f"unknown attention implementation {choices.attention!r}.{hint(choices.attention, IMPLEMENTATIONS)}"
        )
    return KINDS.get(choices.attention)


def _value_width(op: Op) -> int:
    return op.size["v_dim"] if "v_dim" in op.size else op.size["head_dim"]


def _kv_total(op: Op) -> int:
    return int(op.attr.get("kv_total", op.size["kv_seq"]))


def _dense_flops(op: Op) -> float:
    """Both products over the full score matrix."""
    scores = op.extent(("batch", "heads", "seq", "kv_seq"))
    return 2.0 * scores * (op.size["head_dim"] + _value_width(op))


def _visible(op: Op) -> float:
    """Share of the score matrix that is not masked away."""
    window = min(int(op.attr.get("window", 0)) or _kv_total(op), _kv_total(op)) / _kv_total(op)
    if not op.attr.get("causal", False):
        return window
    return window - window * window / 2  # the triangle, cut off at the window


def _flash(op: Op, precision: Precision, phase: str, kind: str) -> Kernel:
    size = op.size
    query = op.extent(("batch", "seq", "heads"))
    key = op.extent(("batch", "kv_seq", "kv_heads"))
    width = size["head_dim"] + _value_width(op)
    once = (query + key) * width * precision.activation_bytes  # q, out and k, v
    backward = phase == INPUT_GRADIENT
    return Kernel(
        kind=kind,
        phase=phase,
        flops=_dense_flops(op) * _visible(op) * (FLASH_BACKWARD if backward else 1.0),
        # backward reads q, k, v, out and the output's gradient and writes three gradients
        bytes=(2.0 if backward else 1.0) * once + query * 4.0,
        dtype=precision.attention,
        shape=(
            size["batch"], size["heads"], size["kv_heads"],
            size["seq"], size["kv_seq"], size["head_dim"],
        ),
    )  # fmt: skip


def _gemm_dims(op: Op) -> tuple[int, int, int, int, int]:
    size = op.size
    batch = size["batch"] * size["heads"]
    return batch, size["seq"], size["kv_seq"], size["head_dim"], _value_width(op)


def _softmax_kernels(op: Op, precision: Precision, choices: KernelChoices) -> int:
    """Scale, mask and softmax are a kernel each unless fused into one. Kernels fused with a causal mask are for 16-bit
    numbers (Megatron-LM, fused_softmax.py); wider ones have the scale alone in the product before."""
    if not choices.fuses_elementwise:
        return 3
    return 2 if op.attr.get("causal") and precision.activation_bytes > 2 else 1


def _layout_copies(
    op: Op, precision: Precision, choices: KernelChoices, phase: str
) -> tuple[Kernel, ...]:
    """q, k, v and the output, or their gradients, between tokens and heads one behind another. Eager frameworks copy
    them: `torch.matmul` folds the batch dims of what was permuted (PyTorch, native/LinearAlgebra.cpp); fused stacks
    hand strides to the products (Megatron-LM, transformer.py)."""
    if choices.fuses_elementwise:
        return ()
    elements = [op.elements(tensor) for tensor in (*op.inputs, *op.outputs)]
    return tuple(memory(phase, 2 * n * precision.activation_bytes, n) for n in elements)


def _unfused_forward(op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
    batch, m, n, width, value = _gemm_dims(op)
    scores = batch * m * n
    one_pass = scores * precision.activation_bytes
    passes = _softmax_kernels(op, precision, choices)
    copies = _layout_copies(op, precision, choices, FORWARD)
    kernels = [*copies, activation_gemm(FORWARD, batch, m, n, width, precision)]
    kernels += [memory(FORWARD, 2 * one_pass, scores, _SOFTMAX_FLOPS / passes)] * passes
    if op.attr.get("dropout", 0.0):
        if choices.fuses_score_dropout:  # written before and after; the mask is drawn and read
            kernels[-1] = memory(FORWARD, 3 * one_pass + 2 * scores, scores, _SOFTMAX_FLOPS)
        else:
            kernels.append(memory(FORWARD, 2 * one_pass + scores, scores))
    return (*kernels, activation_gemm(FORWARD, batch, m, value, n, precision))


def _unfused_backward(op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
    batch, m, n, width, value = _gemm_dims(op)
    scores = batch * m * n
    one_pass = scores * precision.activation_bytes
    kernels = [
        *_layout_copies(op, precision, choices, INPUT_GRADIENT),
        activation_gemm(INPUT_GRADIENT, batch, n, value, m, precision),  # dV = Pᵀ·dO
        activation_gemm(INPUT_GRADIENT, batch, m, n, value, precision),  # dP = dO·Vᵀ
    ]
    mask = scores if op.attr.get("dropout", 0.0) else 0
    if mask and not choices.fuses_score_dropout:
        kernels.append(memory(INPUT_GRADIENT, 2 * one_pass + mask, scores))
        mask = 0
    kernels.append(memory(INPUT_GRADIENT, 3 * one_pass + mask, scores, _SOFTMAX_FLOPS))
    if others := _softmax_kernels(op, precision, choices) - 1:
        # PyTorch's own softmax multiplies gradient and output in a kernel before (SoftMax.cu)
        kernels.append(memory(INPUT_GRADIENT, 3 * one_pass, scores))
    kernels += [memory(INPUT_GRADIENT, 2 * one_pass, scores)] * others
    return (
        *kernels,
        activation_gemm(INPUT_GRADIENT, batch, m, width, n, precision),  # dQ = dS·K
        activation_gemm(INPUT_GRADIENT, batch, n, width, m, precision),  # dK = dSᵀ·Q
    )
