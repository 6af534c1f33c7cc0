"""Differentiate: forward and backward works of one local op, straight from its family's formulas."""

from __future__ import annotations

from foretrain.compile.execution import Compute
from foretrain.compile.passes.partition import LocalOp
from foretrain.model.ops import family
from foretrain.model.ops.base import WEIGHT_GRADIENT, Choices
from foretrain.model.precision import Precision


def forward(local: LocalOp, precision: Precision, choices: Choices) -> tuple[Compute, ...]:
    kernels = family(local.op).forward(local.op, precision, choices)
    return tuple(Compute(local.path, kernel) for kernel in kernels)


def backward(
    local: LocalOp, precision: Precision, choices: Choices
) -> tuple[tuple[Compute, ...], tuple[Compute, ...]]:
    """Kernels of the input gradient, and those of the weight gradient that may run later."""
    kernels = family(local.op).backward(local.op, precision, choices)
    works = [Compute(local.path, kernel) for kernel in kernels]
    return (
        tuple(w for w in works if w.kernel.phase != WEIGHT_GRADIENT),
        tuple(w for w in works if w.kernel.phase == WEIGHT_GRADIENT),
    )
