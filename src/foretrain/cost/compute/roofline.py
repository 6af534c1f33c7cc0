"""Roofline with the few corrections that matter for training kernels.

A kernel takes a fixed start-up plus the longer of its arithmetic and its memory traffic, each at the share of
the data-sheet rate that such kernels reach on such devices (`calibration/efficiencies.yaml`). GEMMs and
convolutions add tile and wave quantisation, attention adds short sequences and narrow heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.device import Device
from foretrain.cost.calibration.efficiencies import Efficiencies, EfficiencyTable, table
from foretrain.cost.compute.base import KernelCosts
from foretrain.cost.compute.tiles import Units, gemm_seconds
from foretrain.errors import ClusterError
from foretrain.model.ops.base import (
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Kernel,
    kernel_family,
)

FLASH_PRODUCTS = {FORWARD: 2.0, INPUT_GRADIENT: 5.0, WEIGHT_GRADIENT: 5.0}
"""Matrix products of fused attention: backward computes the scores again (Dao et al. 2022)."""

Dims = Callable[[Kernel], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Roofline:
    """The default model: needs a data sheet only."""

    efficiencies: EfficiencyTable | None = None  # None: the table that ships with the package

    def seconds(self, kernels: Sequence[Kernel], device: Device) -> KernelCosts:
        known = self.efficiencies or table()
        reached, is_own = known.of(device)
        seconds = np.zeros(len(kernels))
        spread = np.zeros(len(kernels))
        notes: dict[str, None] = {}
        for (kind, phase, wanted), rows in alike(kernels).items():
            dtype = dtype_on(wanted, device, known, notes)
            chosen = [kernels[row] for row in rows]
            case = _Case(device, reached, known, kind, phase, dtype)
            seconds[rows] = case.seconds(chosen)
            spread[rows] = known.spread.get(kernel_family(kind), known.spread["other"])
        if not is_own:
            spread *= known.unknown_device_spread
            notes[
                f"No measured efficiencies for {device.title}; using those of {reached.name}."
            ] = None
        return KernelCosts(
            seconds=seconds,
            spread=spread,
            measured=np.zeros(len(kernels), dtype=np.bool_),
            source=(f"roofline, efficiencies of {reached.name}",) * len(kernels),
            notes=tuple(notes),
        )


def alike(kernels: Sequence[Kernel]) -> dict[tuple[str, str, str], Ints]:
    """Rows that are computed together, in order of first appearance."""
    rows: dict[tuple[str, str, str], list[int]] = {}
    for row, kernel in enumerate(kernels):
        rows.setdefault((kernel.kind, kernel.phase, kernel.dtype), []).append(row)
    return {key: np.array(value, dtype=np.int64) for key, value in rows.items()}


def dtype_on(wanted: str, device: Device, known: EfficiencyTable, notes: dict[str, None]) -> str:
    """`wanted`, or what the software runs in where the device has no such units."""
    if device.peak(wanted) is not None:
        return wanted
    for other in known.substitutes.get(wanted, ()):
        if device.peak(other) is not None:
            notes[
                (
                    f"{device.title} has no {wanted} units; {wanted} kernels are assumed to "
                    f"run at the {other} rate."
                )
            ] = None
            return other
    have = ", ".join(name for name, _ in device.peak_flops)
    raise ClusterError(
        f"{device.title} does not support {wanted} and has no fallback for it; supported: {have}."
    )


@dataclass(frozen=True, slots=True)
class _Case:
    """Kernels of one kind, phase and dtype on one device."""

    device: Device
    reached: Efficiencies
    known: EfficiencyTable
    kind: str
    phase: str
    dtype: str

    def seconds(self, kernels: Sequence[Kernel]) -> Floats:
        flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
        moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64)
        row = _ROWS.get(kernel_family(self.kind), _VECTOR)
        traffic = moved / (self.device.memory_bandwidth * row.memory_share(self.reached))
        return self.reached.start_seconds + np.maximum(
            row.arithmetic(self, kernels, flops), traffic
        )

    def _peak(self) -> float:
        return self.device.required_peak(self.dtype)

    def product(self, kernels: Sequence[Kernel], flops: Floats) -> Floats:
        rate = self._peak() * self.reached.gemm_share(self.dtype)
        return self._tiled(kernels, flops, rate, _gemm_dims)

    def grouped(self, kernels: Sequence[Kernel], flops: Floats) -> Floats:
        rate = self._peak() * self.reached.gemm_share(self.dtype) * self.reached.grouped
        return self._tiled(kernels, flops, rate, _gemm_dims)

    def convolution(self, kernels: Sequence[Kernel], flops: Floats) -> Floats:
        rate = self._peak() * self.reached.conv_share(self.dtype)
        return self._tiled(kernels, flops, rate, _conv_dims) / self._gain(kernels)

    def vector(self, kernels: Sequence[Kernel], flops: Floats) -> Floats:
        return flops / (self._peak() * self.reached.vector)

    def _tiled(self, kernels: Sequence[Kernel], flops: Floats, rate: float, dims: Dims) -> Floats:
        ideal = flops / rate
        shaped = np.array([bool(kernel.shape) for kernel in kernels])
        if not shaped.any():
            return ideal
        shape = np.array([dims(k) for k in kernels if k.shape], dtype=np.float64)
        units = Units(
            count=self.device.compute_units or self.known.compute_units,
            flops=rate,
            bandwidth=self.device.memory_bandwidth * self.reached.memory,
            fill=self.reached.fill,
        )
        tiled = gemm_seconds(shape, units, self.known.tiles, self.known.splits)
        # a kernel that does less or more than its dims say (strides, masks) keeps their inefficiency
        nominal = np.maximum(2.0 * shape.prod(axis=1), 1.0)
        ideal[shaped] *= np.maximum(tiled * rate / nominal, 1.0)
        return ideal

    def _gain(self, kernels: Sequence[Kernel]) -> Floats:
        """How much faster a convolution's own algorithm is than the general one."""
        rule = self.known.special_convolutions
        if self.dtype not in rule.dtypes:
            return np.ones(len(kernels))
        pointwise = self.reached.gemm_share(self.dtype) / self.reached.conv_share(self.dtype)
        gains = {"winograd": rule.winograd, "pointwise": max(1.0, pointwise), "general": 1.0}
        return np.array([gains[_conv_form(kernel, rule.least_output)] for kernel in kernels])

    def attention(self, kernels: Sequence[Kernel], flops: Floats) -> Floats:
        shares = self.reached.attention_shares(self.kind.removeprefix("attention").lstrip("_"))
        share = shares.forward if self.phase == FORWARD else shares.backward
        ideal = flops / (self._peak() * share)
        shaped = np.array([bool(kernel.shape) for kernel in kernels])
        if not shaped.any():
            return ideal
        shape = np.array([kernel.shape for kernel in kernels if kernel.shape], dtype=np.float64)
        batch, heads, _, seq, kv_seq, head_dim = shape.T
        narrow = np.where(head_dim <= self.known.narrow_head, shares.narrow, 1.0)
        blocks = np.maximum(batch * heads * np.ceil(seq / self.known.attention_rows), 1.0)
        units = self.device.compute_units or self.known.compute_units
        idle = np.ceil(blocks / units) * units / blocks
        # Keys a query looks at: masks shorten the inner loop, and what surrounds it weighs more.
        dense = FLASH_PRODUCTS[self.phase] * 2.0 * batch * heads * seq * kv_seq * head_dim
        visible = kv_seq * np.minimum(flops[shaped] / np.maximum(dense, 1.0), 1.0)
        ideal[shaped] *= (1.0 + shares.half_length / np.maximum(visible, 1.0)) * idle / narrow
        return ideal


@dataclass(frozen=True, slots=True)
class _Row:
    """How a kind of kernel computes, and which share of the memory's rate it reaches."""

    arithmetic: Callable[[_Case, Sequence[Kernel], Floats], Floats]
    memory_share: Callable[[Efficiencies], float] = attrgetter("memory")


_VECTOR = _Row(_Case.vector)
_ROWS = {
    "gemm": _Row(_Case.product),
    "grouped_gemm": _Row(_Case.grouped),
    "conv": _Row(_Case.convolution),
    "attention": _Row(_Case.attention),
    "embedding": _Row(_Case.vector, attrgetter("embedding")),
}


def _conv_form(kernel: Kernel, least_output: int) -> str:
    """winograd | pointwise (a matrix product) | general."""
    if not kernel.shape:
        return "general"
    _, _, _, height, width, kernel_h, kernel_w, stride, groups = kernel.shape
    if stride != 1 or groups != 1:
        return "general"
    if (kernel_h, kernel_w) == (3, 3) and min(height, width) >= least_output:
        return "winograd"
    return "pointwise" if (kernel_h, kernel_w) == (1, 1) else "general"


def _gemm_dims(kernel: Kernel) -> tuple[int, ...]:
    return kernel.shape


def _conv_dims(kernel: Kernel) -> tuple[int, ...]:
    """The implicit GEMM of a convolution (Chetlur et al. 2014, arXiv 1410.0759), per group."""
    batch, channels, filters, height, width, kernel_h, kernel_w, _, groups = kernel.shape
    pixels = batch * height * width
    window = channels // groups * kernel_h * kernel_w
    if kernel.phase == WEIGHT_GRADIENT:
        return groups, filters // groups, window, pixels
    if kernel.phase == FORWARD:
        return groups, pixels, filters // groups, window
    return groups, pixels, channels // groups, filters // groups * kernel_h * kernel_w
