"""Products of many experts in one launch, at measured rates.

Every expert's product is cut into output tiles and the tiles of all experts share the compute units, in waves. The
kernel is as good as the best of a few tile sizes: time is lost where tiles overhang an expert's few tokens,
where the last wave is not full, and where depth is short against filling a tile. Arithmetic and memory traffic
overlap, less well the nearer they are to each other (`BLEND`). Rates are fitted to whole expert layers of
aiconfigurator-core, tokens spread evenly (`tools/distil_grouped.py`, docs/kernels-attention.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.device import Device
from foretrain.cost.compute import gemm
from foretrain.cost.compute.base import Estimate, Hardware, kin_of, names, stored
from foretrain.cost.compute.gemm import sustained, sustained_seconds
from foretrain.model.ops.base import Kernel

FAMILY = "grouped"
FORMS = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8", "mxfp8": "fp8", "fp4": "fp4", "nvfp4": "fp4", "mxfp4": "fp4"}  # fmt: skip
TILES = ((128.0, 256.0), (128.0, 128.0), (64.0, 128.0))
BLEND = 4.0
COARSE = 1.5  # how much wider the spread is where the rates are those of another device


@dataclass(frozen=True, slots=True)
class Grouped:
    """Grouped products of one device in one number format."""

    rate: float  # share of peak inside the best tile
    smaller: tuple[float, float]  # rate of the smaller tiles against it
    fill: float  # depth that filling and draining a tile costs
    tail: float  # share of the last wave that nothing else fills, 0 to 1
    memory: float  # share of memory bandwidth
    start: float  # seconds of a launch
    spread: float


def products_seconds(
    shape: Floats, flops: Floats, moved: Floats, speed: Grouped, hardware: Hardware
) -> Floats:
    """Seconds for rows `(experts, m, n, k)`, without starting the kernel."""
    experts, m, n, k = np.maximum(shape, 1.0).T
    best = np.full(len(shape), np.inf)
    for (rows, columns), slower in zip(TILES, (1.0, *speed.smaller), strict=True):
        waves = experts * np.ceil(m / rows) * np.ceil(n / columns) / hardware.units
        filled = (1.0 - speed.tail) * np.maximum(waves, 1.0) + speed.tail * np.ceil(waves)
        one = 2.0 * rows * columns * (k + speed.fill)
        unit = hardware.peak * speed.rate * slower / hardware.units
        np.minimum(best, filled * one / unit, out=best)
    # a kernel that does less or more than its dims say keeps their inefficiency
    arithmetic = best * flops / (2.0 * experts * m * n * k)
    traffic = moved / (hardware.bandwidth * speed.memory)
    blended: Floats = (arithmetic**BLEND + traffic**BLEND) ** (1.0 / BLEND)
    return blended


def estimate(kernels: Sequence[Kernel], device: Device, dtype: str) -> Estimate | None:
    """Times of grouped products; None where no relative of the device was measured in `dtype`."""
    form = FORMS.get(dtype)
    kin = kin_of(device, _measured().get(form, ())) if form and device.compute_units else None
    if form is None or kin is None:
        return None
    speed = _speed(kin.name, form)
    hardware = Hardware.of(device, dtype)
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    added = np.array([kernel.added for kernel in kernels], dtype=np.float64)
    moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64) - added
    shape = np.array([_dims(kernel) for kernel in kernels], dtype=np.float64)
    took = speed.start + products_seconds(shape, flops, moved, speed, hardware)
    own = kin.is_measured
    seconds = sustained_seconds(
        took, flops / hardware.peak, sustained(device.identity, kin.name, dtype)
    )
    seconds = seconds + gemm.streamed(added, device)
    # the experts' tiles are those of a batched product: no launch that shares them out beats it
    plain = gemm.estimate(kernels, device, dtype)
    if plain is not None:
        seconds = np.maximum(seconds, plain.seconds)
    return Estimate(
        seconds=seconds,
        spread=np.full(len(kernels), speed.spread * (1.0 if own else COARSE)),
        measured=np.full(len(kernels), own),
        source=f"{form} expert layers measured on {kin.name}",
        notes=kin.notes(device, "grouped GEMM measurements"),
    )


def _dims(kernel: Kernel) -> tuple[float, ...]:
    """`(experts, m, n, k)`; a kernel that states none is taken for eight cubes."""
    if kernel.shape:
        return kernel.shape
    side = (kernel.flops / 16.0) ** (1.0 / 3.0)
    return 8.0, side, side, side


@cache
def _measured() -> Mapping[str, tuple[str, ...]]:
    """Devices by format."""
    found: dict[str, list[str]] = {}
    for name in names(FAMILY):
        for form in stored(FAMILY, name)["forms"]:
            found.setdefault(form, []).append(name)
    return {form: tuple(devices) for form, devices in found.items()}


@cache
def _speed(device: str, form: str) -> Grouped:
    given: Mapping[str, Any] = stored(FAMILY, device)["forms"][form]
    small, smallest = given["smaller"]
    return Grouped(**{**given, "smaller": (small, smallest)})
