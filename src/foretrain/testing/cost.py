"""Conformance kit for compute cost models: `check_compute_model(model)` raises `AssertionError` on a fault."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from foretrain.cluster.catalog import devices
from foretrain.cluster.device import Device
from foretrain.cost.compute.base import ComputeModel, KernelCosts
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Kernel

PHASES = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)


def check_compute_model(model: ComputeModel, on: Iterable[Device] = ()) -> int:
    """Run every check on every device (the whole catalog by default); the number of kernels timed."""
    timed = 0
    for device in tuple(on) or tuple(devices().values()):
        kernels = sample_kernels(_widest_dtype(device))
        costs = model.seconds(kernels, device)
        check_columns(costs, len(kernels), device)
        check_never_above_peak(costs, kernels, device)
        check_alone_as_in_company(model, kernels, device)
        check_monotone(model, kernels, device)
        timed += len(kernels)
    assert len(model.seconds([], next(iter(devices().values()))).seconds) == 0
    return timed


def gemm(m: int, n: int, k: int, dtype: str, batch: int = 1, phase: str = FORWARD) -> Kernel:
    """A product with 16-bit operands read and written once."""
    moved = 2.0 * batch * (m * k + k * n + m * n)
    return Kernel("gemm", phase, 2.0 * batch * m * n * k, moved, dtype, (batch, m, n, k))


def attention(
    batch: int, heads: int, seq: int, head_dim: int, dtype: str, phase: str = FORWARD
) -> Kernel:
    """Fused attention without a mask."""
    products = 2.0 if phase == FORWARD else 5.0
    flops = products * 2.0 * batch * heads * float(seq) ** 2 * head_dim
    moved = 8.0 * batch * heads * seq * head_dim
    return Kernel(
        "attention", phase, flops, moved, dtype, (batch, heads, heads, seq, seq, head_dim)
    )


def sample_kernels(dtype: str) -> list[Kernel]:
    """Every kind and phase; large, small, skinny, odd and empty."""
    sizes = ((4096, 4096, 4096), (1, 4096, 4096), (17, 33, 65), (128, 128, 65536), (8192, 3, 512))
    kernels = [gemm(*size, dtype, phase=phase) for size in sizes for phase in PHASES]
    kernels += [replace(gemm(*size, dtype, batch=8), kind="grouped_gemm") for size in sizes]
    for seq, head_dim in ((128, 64), (4096, 128)):
        kernels += [attention(2, 8, seq, head_dim, dtype, phase) for phase in PHASES[:2]]
    for phase in PHASES:
        shape = (32, 64, 256, 56, 56, 1, 1, 1, 1)
        kernels.append(Kernel("conv", phase, 3.3e9, 6.4e7, dtype, shape))
        kernels.append(Kernel("embedding", phase, 0.0, 3.3e7, "fp32", (1000, 128, 65536)))
        kernels.append(Kernel("memory", phase, 1e7, 8e7, "fp32", (10_000_000,)))
    kernels.append(Kernel("memory", FORWARD, 0.0, 0.0, "fp32"))
    kernels += [gemm(0, 64, 64, dtype), attention(0, 8, 128, 64, dtype)]
    kernels.append(Kernel("gemm", FORWARD, 1e12, 1e9, dtype))
    return kernels


def check_columns(costs: KernelCosts, count: int, device: Device) -> None:
    """Full columns of positive finite times, each with a spread and a source."""
    for name in ("seconds", "spread", "measured", "source"):
        assert len(getattr(costs, name)) == count, f"{device.name}: {name} has the wrong length"
    assert np.isfinite(costs.seconds).all(), f"{device.name}: times that are not finite"
    assert (costs.seconds > 0).all(), f"{device.name}: times that are not positive"
    assert ((costs.spread > 0) & (costs.spread < 2)).all(), f"{device.name}: odd spread"
    assert costs.measured.dtype == np.bool_
    assert all(costs.source), f"{device.name}: a time without a source"


def check_never_above_peak(costs: KernelCosts, kernels: Sequence[Kernel], device: Device) -> None:
    """No kernel beats the data sheet, in arithmetic or in memory traffic."""
    for kernel, seconds in zip(kernels, costs.seconds, strict=True):
        best = max(rate for _, rate in device.peak_flops)
        floor = max(
            kernel.flops / (device.peak(kernel.dtype) or best),
            kernel.bytes / device.memory_bandwidth,
        )
        assert seconds >= floor, (
            f"{device.name}: {kernel} takes {seconds}, the data sheet says {floor}"
        )


def check_alone_as_in_company(
    model: ComputeModel, kernels: Sequence[Kernel], device: Device
) -> None:
    """The same answer again, in another order, and one kernel at a time."""
    together = model.seconds(kernels, device)
    again = model.seconds(kernels, device)
    back = model.seconds(list(reversed(kernels)), device)
    alone = [model.seconds([kernel], device) for kernel in kernels]
    for name in ("seconds", "spread", "measured"):
        column = getattr(together, name)
        assert np.array_equal(column, getattr(again, name)), f"{device.name}: {name} not repeatable"
        assert np.array_equal(column, getattr(back, name)[::-1]), f"{device.name}: {name} by order"
        single = np.array([getattr(costs, name)[0] for costs in alone])
        assert np.array_equal(column, single), f"{device.name}: {name} differs for single calls"


def check_monotone(model: ComputeModel, kernels: Sequence[Kernel], device: Device) -> None:
    """More work is never quicker: more FLOPs, more bytes, longer dims of a product."""
    for factor in (1.001, 1.5, 8.0):
        more_flops = [replace(kernel, flops=kernel.flops * factor) for kernel in kernels]
        more_bytes = [replace(kernel, bytes=kernel.bytes * factor) for kernel in kernels]
        for more in (more_flops, more_bytes):
            _no_quicker(model, kernels, more, device)
    dtype = _widest_dtype(device)
    longer = range(96, 2720, 41)
    for products in (
        [gemm(size, 1024, 1024, dtype) for size in longer],
        [gemm(1024, size, 1024, dtype) for size in longer],
        [gemm(1024, 1024, size, dtype) for size in longer],
    ):
        _no_quicker(model, products[:-1], products[1:], device)


def _no_quicker(
    model: ComputeModel, less: Sequence[Kernel], more: Sequence[Kernel], device: Device
) -> None:
    before, after = (model.seconds(kernels, device).seconds for kernels in (less, more))
    for small, large, t_small, t_large in zip(less, more, before, after, strict=True):
        grew = t_large >= t_small * (1 - 1e-12)
        assert grew, f"{device.name}: {large} is quicker than {small}: {t_large} < {t_small}"


def _widest_dtype(device: Device) -> str:
    """A dtype that the device has: the usual training format if possible."""
    return next(d for d in ("bf16", "fp16", "fp32", *device.peaks) if device.peak(d) is not None)
