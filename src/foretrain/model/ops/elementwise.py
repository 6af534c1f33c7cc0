"""Ops without contraction: activations, dropout, residual adds, rotary positions, copies.

Attribute `op` names a row of `ELEMENTWISE`. Fused, an op is one pass: inputs read, outputs written. Unfused
it is several kernels, with the extra traffic of its intermediate results.
"""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.errors import ModelError, hint
from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    Kernel,
    KernelChoices,
    input_bytes,
    largest,
    memory,
    output_bytes,
    tensor_bytes,
)
from foretrain.model.ops.family import OpFamily
from foretrain.model.precision import Precision


@dataclass(frozen=True, slots=True)
class Row:
    """`extra_*`: passes over the output that only the unfused form makes."""

    flops: float  # vector arithmetic per element
    saves: str = ""  # "" | inputs | outputs | mask
    kernels: int = 1  # kernels of the unfused form, forward
    extra: float = 0.0
    extra_backward: float = 0.0
    kernels_backward: int = 1  # that make those passes
    keeps: int = 0  # results on the way that the unfused form keeps
    keeps_product: bool = False  # unfused gating keeps the activated half beside both inputs
    accumulates: bool = False  # backward only adds the two gradients that meet at the residual


ELEMENTWISE: dict[str, Row] = {
    # activations; unfused adds the bias in a pass of its own
    "gelu": Row(8, "inputs", kernels=2, extra=2),
    # GPT-2's x/2·(1 + tanh(c·(x + d·x³))) written out, as Hugging Face has it: eight kernels of 18 passes; backward
    # 22, and 6 that add up the three gradients of x
    "gelu-tanh": Row(
        8, "inputs", kernels=8, extra=16, extra_backward=25, kernels_backward=11, keeps=3
    ),
    "relu": Row(1, "outputs"),
    "squared-relu": Row(2, "inputs", kernels=2, extra=2, extra_backward=2),
    "silu": Row(5, "inputs"),
    "tanh": Row(5, "outputs"),
    "sigmoid": Row(5, "outputs"),
    "leaky-relu": Row(1, "outputs"),
    # act(gate)·up; unfused backward also joins the gradients of the two halves of one product
    "silu-gated": Row(6, "inputs", kernels=2, extra=2, extra_backward=7, keeps_product=True),
    "gelu-gated": Row(9, "inputs", kernels=2, extra=2, extra_backward=7, keeps_product=True),
    "relu-gated": Row(2, "inputs", kernels=2, extra=2, extra_backward=7, keeps_product=True),
    # dropout and residuals
    "dropout": Row(1, "mask"),
    "dropout-add": Row(2, "mask", kernels=2, extra=2),
    "add": Row(1, accumulates=True),
    "rope": Row(3),  # in one pass; unfused as `ROTARY` says
    # copies and small arithmetic
    "concat": Row(0),
    "copy": Row(0),
    "scale": Row(1),
    "multiply": Row(1, "inputs"),
    "multiply-add": Row(2, "inputs", kernels=2, extra=2, extra_backward=2),
    "loss": Row(5, "inputs"),
}

ROTARY: dict[str, Row] = {
    # Rotary positions of q and of k by single kernels, as autograd dispatches them; bytes per 16-bit element.
    # Hugging Face, x·cos + rotate(x)·sin: two products, negate, join, a sum: 20. Backward 30: two products, negate, both
    # halves laid into zeros, two sums
    "halves": Row(3, kernels=10, extra=8, extra_backward=13, kernels_backward=17),
    # Meta's and torchtitan's, of complex numbers: cast to fp32, one product, cast back: 20 each way
    "complex": Row(3, kernels=6, extra=8, extra_backward=8, kernels_backward=5),
    # Foundation Model Stack's, without complex numbers: cast to fp32, pairs times 2 x 2 matrices, which doubles them,
    # a sum over each, cast back: 36 each way
    "matrices": Row(3, kernels=8, extra=16, extra_backward=16, kernels_backward=7),
    # nanotron, FlashAttention's kernel behind copies: q, k and v to samples first, k and v joined and interleaved; 36 for
    # the three, told as 18 for each of q and k, and as much going back
    "copies": Row(3, kernels=7, extra=7, extra_backward=7, kernels_backward=6),
}


class Elementwise(OpFamily):
    name = "elementwise"
    hands_on_kept = True

    def trait(self, op: Op) -> str:
        return "rotary positions" if op.attr.get("op") == "rope" else ""

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        row = _row(op, choices)
        if _is_in_the_product(op, choices):
            return ()
        outputs = output_bytes(op, precision)
        moved = input_bytes(op, precision) + outputs + tensor_bytes(op, _mask(op, row), precision)
        if _is_in_the_norm(op, choices):
            # the norm's pass does it: what is left to move is the other summand, or a bit per element
            moved = input_bytes(op, precision) - outputs if row.accumulates else _bits(op)
        if _is_fused(op, choices) or row.kernels == 1:
            return (memory(FORWARD, moved, largest(op), row.flops),)
        share = (moved + row.extra * outputs) / row.kernels
        return (memory(FORWARD, share, largest(op), row.flops / row.kernels),) * row.kernels

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        row = _row(op, choices)
        if _is_in_the_product(op, choices):
            return ()
        outputs = output_bytes(op, precision)
        if row.accumulates:
            return (memory(INPUT_GRADIENT, 3 * outputs, largest(op)),)
        if _is_in_the_norm(op, choices):
            return (memory(INPUT_GRADIENT, _bits(op), largest(op), 2 * row.flops),)
        moved = outputs + input_bytes(op, precision)
        kept = self.saved(op, precision, choices)[: len(op.inputs) if row.keeps else None]
        moved += tensor_bytes(op, kept, precision)
        kernels = [memory(INPUT_GRADIENT, moved, largest(op), 2 * row.flops)]
        if str(op.attr.get("op")) == "dropout-add":  # the skip connection's gradient joins here
            kernels.append(memory(INPUT_GRADIENT, 3 * outputs, largest(op)))
        if not _is_fused(op, choices) and row.extra_backward:
            share = row.extra_backward * outputs / row.kernels_backward
            kernels += [memory(INPUT_GRADIENT, share, largest(op))] * row.kernels_backward
        return tuple(kernels)

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        row = _row(op, choices)
        match row.saves:
            case "inputs" if row.keeps_product and not _is_fused(op, choices):
                return (*op.inputs, Tensor(f"{op.name}.activated", op.outputs[0].dims))
            case "inputs" if row.keeps and not choices.fuses_elementwise:
                ways = (Tensor(f"{op.name}.way{i}", op.outputs[0].dims) for i in range(row.keeps))
                return (*op.inputs, *ways)
            case "inputs":
                return tuple(dict.fromkeys(op.inputs))
            case "outputs":
                return op.outputs
        return _mask(op, row)


def _bits(op: Op) -> float:
    return sum(op.elements(tensor) for tensor in op.outputs) / 8.0


def _is_fused(op: Op, choices: KernelChoices) -> bool:
    """One pass; between products of experts that run one by one frameworks have no fused activation."""
    return choices.fuses_elementwise and (choices.groups_experts or "expert" not in op.size)


def _is_in_the_product(op: Op, choices: KernelChoices) -> bool:
    """GEMM epilogues add the bias and activate, or multiply by the activation's derivative going back."""
    return choices.fuses_epilogues and bool(op.attr.get("follows_product"))


def _is_in_the_norm(op: Op, choices: KernelChoices) -> bool:
    fuses = choices.fuses_elementwise or choices.fuses_behind_norms
    return fuses and bool(op.attr.get("follows_norm"))


def _mask(op: Op, row: Row) -> tuple[Tensor, ...]:
    if row.saves != "mask":
        return ()
    return (Tensor(f"{op.name}.mask", op.outputs[0].dims, "mask"),)


def _row(op: Op, choices: KernelChoices) -> Row:
    name = str(op.attr.get("op", ""))
    if name == "rope":
        return ROTARY[choices.rotary]
    if name not in ELEMENTWISE:
        raise ModelError(
            f"op {op.name!r}: unknown elementwise op {name!r}.{hint(name, ELEMENTWISE)}"
        )
    return ELEMENTWISE[name]
