"""Differentiate: forward and backward works of one local op, straight from its family's formulas."""

from __future__ import annotations

from dataclasses import replace

from foretrain.compile.execution import Compute
from foretrain.compile.passes.partition import LocalOp
from foretrain.model.ops import family
from foretrain.model.ops.base import WEIGHT_GRADIENT, Choices, memory
from foretrain.model.ops.linear import casts
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


def quantisation(
    local: LocalOp, precision: Precision, gathered: float
) -> tuple[tuple[Compute, ...], tuple[Compute, ...]]:
    """Casts around a low-precision product: of its input before forward, of its result's gradient in backward."""
    works = tuple(Compute(local.path, k) for k in casts(local.op, precision, gathered))
    return works[:1], works[1:]


def added(
    works: tuple[Compute, ...], precision: Precision, buffer_bytes: float | None
) -> tuple[Compute, ...]:
    """Weight gradients that products add to the buffer themselves: it is read, and written as wide as it is."""
    kept = precision.gradient_bytes if buffer_bytes is None else buffer_bytes
    return tuple(_added(work, 2 * kept - precision.gradient_bytes) for work in works)


def _added(work: Compute, each: float) -> Compute:
    kernel = work.kernel
    if kernel.kind not in ("gemm", "grouped_gemm") or len(kernel.shape) != 4:
        return work
    batch, m, n, _ = kernel.shape
    more = batch * m * n * each
    return replace(work, kernel=replace(kernel, bytes=kernel.bytes + more, added=more))


def accumulation(
    local: LocalOp, precision: Precision, buffer_bytes: float | None
) -> tuple[Compute, ...]:
    """The pass that adds a micro-batch's gradients of an op to those before: both are read, the sum is written."""
    count = sum(local.op.elements(weight) for weight in local.op.weights)
    if not count:
        return ()
    kept = precision.gradient_bytes if buffer_bytes is None else buffer_bytes
    moved = count * (precision.gradient_bytes + 2 * kept)
    return (Compute(local.path, memory(WEIGHT_GRADIENT, moved, count)),)
