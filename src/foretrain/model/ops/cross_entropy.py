"""Cross entropy: logits `(…, vocab)` → loss `(…)`, computed in fp32.

The contracted dim is whatever the loss lacks, so a vocabulary split leaves partial sums of two values per
token (Megatron-LM, Shoeybi et al. 2019, section 3).
"""

from __future__ import annotations

from foretrain.model.graph import Op, Tensor
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, Kernel, KernelChoices, memory
from foretrain.model.ops.family import OpFamily
from foretrain.model.precision import Precision

FP32 = 4.0


class CrossEntropy(OpFamily):
    """Keeps fp32 probabilities. Frameworks cast the logits first, so one more fp32 copy is alive meanwhile."""

    name = "cross_entropy"
    is_loss = True
    is_outer = True
    # where the vocabulary is split: the largest logit, the sum of exponentials and the target's logit (Shoeybi et al.
    # 2019, section 3)
    settled_values = 3

    def forward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        n = op.elements(op.inputs[0])
        kernels = []
        if precision.activation_bytes != FP32:
            kernels.append(memory(FORWARD, n * (precision.activation_bytes + FP32), n))
        if _is_fused(choices):
            return (*kernels, memory(FORWARD, 2 * n * FP32, n, 5.0))
        # maximum; subtract and exponentiate; sum; divide
        passes = (1, 4, 1, 2)
        return (*kernels, *(memory(FORWARD, p * n * FP32, n) for p in passes))

    def backward(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Kernel, ...]:
        n = op.elements(op.inputs[0])
        if _is_fused(choices) or precision.activation_bytes == FP32:
            return (memory(INPUT_GRADIENT, n * (FP32 + precision.activation_bytes), n, 2.0),)
        cast = memory(INPUT_GRADIENT, n * (FP32 + precision.activation_bytes), n)
        return memory(INPUT_GRADIENT, 2 * n * FP32, n, 2.0), cast

    def saved(self, op: Op, precision: Precision, choices: KernelChoices) -> tuple[Tensor, ...]:
        return (Tensor(f"{op.name}.probabilities", op.inputs[0].dims, "fp32"),)

    def workspace(self, op: Op, precision: Precision, choices: KernelChoices) -> float:
        """Bytes alive only while the op runs: the fp32 copy of the logits, or their fp32 gradient."""
        return op.elements(op.inputs[0]) * FP32


def _is_fused(choices: KernelChoices) -> bool:
    return choices.fuses_elementwise and choices.fuses_loss
