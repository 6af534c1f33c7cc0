"""A machine whose kernels and links follow known laws, measured into a store: what calibrations are tested on."""

from __future__ import annotations

import numpy as np

from foretrain.measurement.machine import Machine
from foretrain.measurement.records import Measurement, data_key, host_key, link_key, op_key
from foretrain.model.ops.base import Kernel

MACHINE = Machine(
    cpu="a CPU",
    cores=4,
    memory_gib=16,
    devices=(),
    driver="",
    host="0123456789abcdef",
    system="Linux 6",
    software=(("python", "3.11.1"), ("torch", "2.13.0")),
)
START, BANDWIDTH = 4e-6, 9e9
PEAKS = {"gemm": 80e9, "memory": 20e9, "conv": 50e9}
PHASES = ("forward", "backward_input", "backward_weight")
AT = "2026-01-01T00:00:00.000000+00:00"


def gemm(m: int, n: int, k: int, phase: str = "forward") -> Kernel:
    moved = 4.0 * (m * n + m * k + n * k)
    return Kernel("gemm", phase, 2.0 * m * n * k, moved, "fp32", (1, m, n, k))


def streaming(elements: int, phase: str = "forward") -> Kernel:
    return Kernel("memory", phase, float(elements), 8.0 * elements, "fp32", (elements,))


def true_seconds(kernel: Kernel) -> float:
    """A roofline whose products lose speed where their depth is short."""
    lost = 1.0 + 32.0 / min(kernel.shape[-1], 512) if kernel.kind == "gemm" else 1.0
    arithmetic = kernel.flops / PEAKS[kernel.kind] * lost
    return START + max(arithmetic, kernel.bytes / BANDWIDTH)


def link_seconds(ranks: int, size: float) -> float:
    """60 us a step, and a ring at 1.5 GB/s."""
    return 60e-6 * 2 * (ranks - 1) + size * 2 * (ranks - 1) / ranks / 1.5e9


def kernels() -> list[Kernel]:
    sizes = (64, 256, 1024)
    products = [
        gemm(m, n, k, phase)
        for phase in PHASES
        for m in (32, 128, 512, 2048)
        for n in sizes
        for k in sizes
    ]
    return products + [streaming(10**p, phase) for phase in PHASES for p in range(3, 8)]


def measurements(threads: int = 1, machine: Machine = MACHINE) -> list[Measurement]:
    """With 2 % of noise, the same every time."""
    draw = np.random.default_rng(0)

    def noisy(seconds: float) -> list[float]:
        return [float(s) for s in seconds * np.exp(0.02 * draw.standard_normal(9))]

    found = [
        Measurement.of("op", op_key(k, threads=threads), noisy(true_seconds(k)), machine, at=AT)
        for k in kernels()
    ]
    for ranks in (2, 4):
        for power in range(10, 26, 2):
            key = link_key("all_reduce", ranks, 2**power)
            found.append(
                Measurement.of("link", key, [link_seconds(ranks, 2**power)] * 3, machine, at=AT)
            )
    for key, seconds in (
        (data_key("fetch", bytes=1e9, cache="cold"), 5.0),
        (data_key("fetch", bytes=1e9, cache="warm"), 0.5),
        (data_key("prep", samples=100, workers=2), 0.5),
    ):
        found.append(Measurement.of("data", key, [seconds], machine, at=AT))
    return [*found, Measurement.of("host", host_key("kernel"), [7e-6], machine, at=AT)]
