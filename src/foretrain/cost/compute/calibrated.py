"""Measured kernels where there are measurements, the roofline where there are none.

Each family of kernels (`gemm.py`, `attention.py`, …) answers from tables distilled from public measurements
(DATA_SOURCES.md). What a family does not know goes to `Roofline`. No answer beats the data sheet, but for kinds
of kernels whose nominal work is not what is done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.device import Device
from foretrain.cost.calibration.efficiencies import table
from foretrain.cost.compute import attention, conv, embedding, gemm, grouped, memory
from foretrain.cost.compute.base import ComputeModel, Estimate, Family, KernelCosts
from foretrain.cost.compute.roofline import Roofline, alike, dtype_on
from foretrain.model.ops.base import Kernel, kernel_family

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "gemm": gemm.estimate,
        "grouped_gemm": grouped.estimate,
        "attention": attention.estimate,
        "conv": conv.estimate,
        "memory": memory.estimate,
        "embedding": embedding.estimate,
    }
)
"""Who times which kind of kernel; `attention_cudnn` is a kind of `attention`."""

WORTH_SAYING = 0.02
"""The share of kernel seconds from which it is said that a relative's table stands in."""
BEYOND_THE_DATA_SHEET = ("conv", "embedding")
"""Kinds whose nominal work is not what is done: Winograd multiplies less, look-ups hit the cache."""


@dataclass(frozen=True, slots=True)
class Calibrated:
    """The model that knows measurements."""

    families: Mapping[str, Family] = field(default_factory=lambda: FAMILIES)
    otherwise: ComputeModel = field(default_factory=Roofline)

    def seconds(self, kernels: Sequence[Kernel], device: Device) -> KernelCosts:
        count = len(kernels)
        seconds, spread = np.zeros(count), np.zeros(count)
        measured = np.zeros(count, dtype=np.bool_)
        source = [""] * count
        notes: dict[str, None] = {}
        told: dict[str, float] = {}  # what families say, and the seconds it is about
        rest: list[int] = []
        for (kind, _, wanted), rows in alike(kernels).items():
            dtype = dtype_on(wanted, device, table(), notes)
            chosen = [kernels[row] for row in rows]
            found = self._estimate(kind, chosen, device, dtype)
            if found is None:
                rest.extend(rows.tolist())
                continue
            seconds[rows] = found.seconds
            if kind not in BEYOND_THE_DATA_SHEET:
                seconds[rows] = np.maximum(found.seconds, _data_sheet(chosen, device, dtype))
            spread[rows], measured[rows] = found.spread, found.measured
            for row in rows:
                source[row] = found.source
            for note in found.notes:
                told[note] = told.get(note, 0.0) + float(seconds[rows].sum())
        if rest or not count:
            other = self.otherwise.seconds([kernels[row] for row in rest], device)
            seconds[rest], spread[rest], measured[rest] = (
                other.seconds,
                other.spread,
                other.measured,
            )
            for row, name in zip(rest, other.source, strict=True):
                source[row] = name
            notes.update(dict.fromkeys(other.notes))
        total = float(seconds.sum())
        notes.update({note: None for note, about in told.items() if about > WORTH_SAYING * total})
        return KernelCosts(seconds, spread, measured, tuple(source), tuple(notes))

    def _estimate(
        self, kind: str, kernels: Sequence[Kernel], device: Device, dtype: str
    ) -> Estimate | None:
        family = self.families.get(kernel_family(kind))
        return None if family is None else family(kernels, device, dtype)


def _data_sheet(kernels: Sequence[Kernel], device: Device, dtype: str) -> Floats:
    """Seconds that no kernel can do without."""
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64)
    return np.maximum(flops / device.required_peak(dtype), moved / device.memory_bandwidth)
