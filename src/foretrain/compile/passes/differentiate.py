"""Differentiate: forward and backward works of one local op, straight from its family's formulas."""

from __future__ import annotations

from dataclasses import replace

from foretrain.compile.execution import Compute
from foretrain.compile.passes.partition import LocalOp
from foretrain.model.graph import Op
from foretrain.model.ops import amount, family, kernels
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
    KernelChoices,
    kernel_kind,
    memory,
)
from foretrain.model.precision import Precision


def forward(local: LocalOp, precision: Precision, choices: KernelChoices) -> tuple[Compute, ...]:
    op = local.op
    made = kernels(op, "forward()", family(op).forward(op, precision, choices))
    return tuple(Compute(local.path, k) for k in (*_unpacked(op, precision, FORWARD), *made))


def backward(
    local: LocalOp, precision: Precision, choices: KernelChoices
) -> tuple[tuple[Compute, ...], tuple[Compute, ...]]:
    """Kernels of the input gradient, and those of the weight gradient that may run later; frozen weights have none."""
    op = local.op
    made = kernels(op, "backward()", family(op).backward(op, precision, choices))
    made = (*_unpacked(op, precision, INPUT_GRADIENT), *made)
    works = [Compute(local.path, kernel) for kernel in made]
    trained = () if op.is_frozen else tuple(works)
    return (
        tuple(w for w in works if w.kernel.phase != WEIGHT_GRADIENT),
        tuple(w for w in trained if w.kernel.phase == WEIGHT_GRADIENT),
    )


def _unpacked(op: Op, precision: Precision, phase: str) -> tuple[Kernel, ...]:
    """Frozen weights of products that are kept in fewer bytes than products read: brought into that format before
    each (QLoRA: Dettmers et al. 2023, arXiv 2305.14314, equation 5)."""
    stored = amount(op, "stored_bytes()", family(op).stored_bytes(op, precision))
    read = precision.gemm_input_bytes
    if not op.is_frozen or stored >= read:
        return ()
    return (memory(phase, op.parameters * (stored + read), op.parameters),)


def quantisation(
    local: LocalOp, precision: Precision, gathered: float
) -> tuple[tuple[Compute, ...], tuple[Compute, ...]]:
    """Casts around a low-precision product: of its input before forward, of its result's gradient in backward."""
    made = kernels(local.op, "casts()", family(local.op).casts(local.op, precision, gathered))
    works = tuple(Compute(local.path, k) for k in made)
    return works[:1], works[1:]


def added(
    works: tuple[Compute, ...], precision: Precision, buffer_bytes: float | None
) -> tuple[Compute, ...]:
    """Weight gradients that products add to the buffer themselves: it is read, and written as wide as it is."""
    kept = precision.gradient_bytes if buffer_bytes is None else buffer_bytes
    return tuple(_added(work, 2 * kept - precision.gradient_bytes) for work in works)


def _added(work: Compute, each: float) -> Compute:
    kernel = work.kernel
    if not kernel_kind(kernel).is_product or not kernel.shape:
        return work
    batch, m, n, _ = kernel.shape
    more = batch * m * n * each
    return replace(work, kernel=replace(kernel, bytes=kernel.bytes + more, added=more))


def accumulation(
    local: LocalOp, precision: Precision, buffer_bytes: float | None
) -> tuple[Compute, ...]:
    """The pass that adds a micro-batch's gradients of an op to those before: both are read, the sum is written."""
    count = 0 if local.op.is_frozen else local.op.parameters
    if not count:
        return ()
    kept = precision.gradient_bytes if buffer_bytes is None else buffer_bytes
    moved = count * (precision.gradient_bytes + 2 * kept)
    return (Compute(local.path, memory(WEIGHT_GRADIENT, moved, count)),)
