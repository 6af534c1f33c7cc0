"""Convolutions: the quickest of the ways libraries compute them, times what tables say beside it.

Three ways are timed from their shapes: the implicit GEMM (Chetlur et al. 2014, arXiv 1410.0759), Winograd's
F(4x4, 3x3) for 3x3 kernels of stride 1 in fp32 (Lavin and Gray 2016, arXiv 1509.09308: a quarter of the
multiplications, and the transformed tiles through memory), and plain vector arithmetic for depth-wise ones. A
correction distilled from measurements (`tools/distil_conv.py`) follows: a factor by kind of kernel and phase, one
for small convolutions, and for 3x3 kernels one by channels, pixels and image size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.catalog import devices
from foretrain.cluster.device import Device
from foretrain.cost.calibration.efficiencies import Tile, table
from foretrain.cost.compute.base import TABLES, Estimate, Kin, kin_of, names, stored
from foretrain.cost.compute.tiles import Units
from foretrain.loading import load_own_yaml
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Kernel

FAMILY = "conv"
WINOGRAD = 36.0  # products per 4x4 outputs of a 3x3 kernel
FP32_BYTES = 4.0
ELSEWHERE_SPREAD = 1.5  # shares taken from another generation
UNMEASURED_SPREAD = 0.25  # kinds of convolution or phases not measured on this device
DEPTHWISE_SPREAD = 0.5
UNITS = 100  # for devices that do not state theirs


@dataclass(frozen=True, slots=True)
class Constants:
    """What the timed ways need to know of a device and a number format; the data files say it."""

    rate: float  # share of peak of a long product
    stream: float  # share of bandwidth of transforms and of what is read and written
    fill: float  # depth that a tile's start and end cost
    tiles: tuple[Tile, ...]
    splits: tuple[int, ...]
    align: int  # channels are padded to a multiple of this
    vector: float  # share of the fp32 peak that depth-wise kernels reach
    has_winograd: bool


@dataclass(frozen=True, slots=True)
class Window:
    """Correction of 3x3 kernels in log time: a quadratic with hinges in `features`, flat outside them."""

    low: Floats
    high: Floats
    hinges: Floats  # (4, n)
    weights: Floats

    def terms(self, points: Floats) -> Floats:
        """Columns of the regression at `points`, clipped to the measured range."""
        inside = np.clip(points, self.low, self.high)
        middle = inside - 0.5 * (self.low + self.high)
        columns = [np.ones(len(points)), *middle.T]
        columns += [middle[:, i] * middle[:, j] for i in range(4) for j in range(i, 4)]
        columns += [
            np.maximum(inside[:, i] - knot, 0.0) for i in range(4) for knot in self.hinges[i]
        ]
        return np.stack(columns, axis=1)

    def at(self, points: Floats) -> Floats:
        found = np.zeros(len(points))
        # term by term: a matrix product's last bits depend on how many kernels are asked for
        for column, weight in zip(self.terms(points).T, self.weights.tolist(), strict=True):
            found += column * weight
        return found


@dataclass(frozen=True, slots=True)
class ConvTable:
    """One device and number format."""

    constants: Constants
    factors: Mapping[str, Mapping[str, float]]  # kind -> phase -> factor
    log2_flops: Floats
    small: Floats  # log of the factor at log2_flops
    window: Window | None
    measured: frozenset[tuple[str, str]]  # (kind, phase)
    spread: float
    start_seconds: float
    source: str


@cache
def read(name: str, form: str) -> ConvTable | None:
    """The table of a device for fp32, tf32 or `tensor` (matrix units, 16 bits and less); None without one."""
    row: Mapping[str, Any] | None = stored(FAMILY, name).get(form)
    if row is None:
        return None
    given = row["constants"]
    window = row.get("window")
    columns = ("low", "high", "hinges", "weights")
    return ConvTable(
        constants=Constants(
            **{
                **given,
                "tiles": tuple(Tile(*tile) for tile in given["tiles"]),
                "splits": tuple(given["splits"]),
            }
        ),
        factors=row["factors"],
        log2_flops=np.array(row["small"]["log2_flops"], dtype=np.float64),
        small=np.array(row["small"]["log_factor"], dtype=np.float64),
        window=Window(**{c: np.array(window[c], dtype=np.float64) for c in columns})
        if window
        else None,
        measured=frozenset((kind, phase) for kind, phase in row["measured"]),
        spread=row["spread"],
        start_seconds=row["start_seconds"],
        source=row["source"],
    )


def estimate(kernels: Sequence[Kernel], device: Device, dtype: str) -> Estimate | None:
    form = dtype if dtype in ("fp32", "tf32") else "tensor"
    having = [name for name in names(FAMILY) if read(name, form) is not None]
    kin = kin_of(device, having)
    known = read(kin.name, form) if kin else None
    if kin is None or known is None or not all(len(kernel.shape) == 9 for kernel in kernels):
        return None
    phase = kernels[0].phase
    shape = np.array([kernel.shape for kernel in kernels], dtype=np.float64)
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64)
    kind = kinds(shape)
    seconds = _arithmetic(shape, phase, device, dtype, known.constants)
    seconds *= np.exp(_correction(shape, flops, phase, kind, known)) * _slower(device, kin, dtype)
    seconds *= _listed("tried", device.identity, kin.name, form, 1.0)
    ideal = _nominal(shape) / device.required_peak(dtype)
    seconds = np.maximum(seconds, ideal / _listed("most", device.identity, kin.name, form, np.inf))
    # a kernel that does less or more than its dims say keeps their inefficiency
    seconds *= flops / np.maximum(_nominal(shape), 1.0)
    traffic = moved / (device.memory_bandwidth * known.constants.stream)
    is_measured = np.array([(k, phase) in known.measured for k in kind], dtype=np.bool_)
    spread = np.where(is_measured, known.spread, np.hypot(known.spread, UNMEASURED_SPREAD))
    spread = np.where(kind == "depthwise", DEPTHWISE_SPREAD, spread)
    return Estimate(
        seconds=known.start_seconds + np.maximum(seconds, traffic),
        spread=spread * (1.0 if kin.is_measured else ELSEWHERE_SPREAD),
        measured=is_measured & kin.is_measured,
        source=f"convolutions measured on {kin.name}",
        notes=kin.notes(device, "convolution measurements"),
    )


def _listed(what: str, name: str, kin: str, form: str, otherwise: float) -> float:
    """What conv.yaml says of a device, by its own name or that of its kin."""
    known = load_own_yaml(TABLES / "conv.yaml")[what]
    return float((known.get(name) or known.get(kin) or {}).get(form, otherwise))


def _slower(device: Device, kin: Kin, dtype: str) -> float:
    """Another generation reaches another share of its peak in products, and convolutions go with them."""
    if kin.is_measured:
        return 1.0
    here, there = (table().of(d)[0].gemm_share(dtype) for d in (device, devices()[kin.name]))
    return there / here


def kinds(shape: Floats) -> np.ndarray[Any, np.dtype[np.str_]]:
    """Which factor applies: by kernel size, stride and channels."""
    channels, side, stride, groups = shape[:, 1], shape[:, 5], shape[:, 7], shape[:, 8]
    return np.select(
        [groups > 1, channels <= 4, (side == 3) & (stride == 1), side == 1, stride > 1],
        ["depthwise", "stem", "3x3", "1x1", "strided"],
        "other",
    )


def features(shape: Floats, phase: str) -> Floats:
    """log2 of channels read, channels written, output pixels and image side, in the phase's own direction."""
    swap = phase == INPUT_GRADIENT
    read_, written = (shape[:, 2], shape[:, 1]) if swap else (shape[:, 1], shape[:, 2])
    pixels = shape[:, 0] * shape[:, 3] * shape[:, 4]
    columns = (read_, written, pixels, np.sqrt(shape[:, 3] * shape[:, 4]))
    found: Floats = np.log2(np.maximum(np.stack(columns, axis=1), 1.0))
    return found


def _nominal(shape: Floats) -> Floats:
    """FLOPs that the dims say."""
    found: Floats = 2.0 * shape[:, :7].prod(axis=1) / shape[:, 8]
    return found


def _correction(shape: Floats, flops: Floats, phase: str, kind: Any, known: ConvTable) -> Floats:
    """log of measured time over the timed ways."""
    factor = np.log([known.factors.get(k, known.factors["other"])[phase] for k in kind])
    small = np.interp(np.log2(np.maximum(flops, 1.0)), known.log2_flops, known.small)
    found: Floats = factor + small
    if known.window is not None and phase != WEIGHT_GRADIENT:
        inside = known.window.at(features(shape, phase))
        found = np.where(kind == "3x3", factor + inside, found)
    return found


def _arithmetic(shape: Floats, phase: str, device: Device, dtype: str, known: Constants) -> Floats:
    peak = device.required_peak(dtype)
    units = Units(
        count=device.compute_units or UNITS,
        flops=peak * known.rate,
        bandwidth=device.memory_bandwidth * known.stream,
        fill=known.fill,
    )
    found = base_seconds(shape, phase, units, known)
    plain = device.peak("fp32_vector") or device.peak("fp32") or peak
    vector = _nominal(shape) / (plain * known.vector)
    return np.where(shape[:, 8] > 1, np.minimum(found, vector), found)


def base_seconds(shape: Floats, phase: str, units: Units, known: Constants) -> Floats:
    """The quicker of the implicit GEMM and, where it can be used, Winograd's way."""
    best = _product(_implicit(shape, phase, known.align), units, known)
    fits = (shape[:, 5] == 3) & (shape[:, 6] == 3) & (shape[:, 7] == 1) & (shape[:, 8] == 1)
    if known.has_winograd and fits.any():
        best[fits] = np.minimum(best[fits], _winograd(shape[fits], phase, units, known))
    return best


def _product(shape: Floats, units: Units, known: Constants) -> Floats:
    """`tiles.gemm_seconds` over all tiles and splits at once: rows are ways, columns products."""
    ways = [(t.rows, t.columns, t.rate, split) for t in known.tiles for split in known.splits]
    rows, columns, rate, split = (np.array(column)[:, None] for column in zip(*ways, strict=True))
    batch, m, n, k = shape.T
    waves = np.ceil(batch * np.ceil(m / rows) * np.ceil(n / columns) * split / units.count)
    speed = units.flops / units.count * rate
    partial = np.where(split > 1, 2.0 * FP32_BYTES * split * batch * m * n / units.bandwidth, 0.0)
    ways_seconds = waves * 2.0 * rows * columns * (k / split + units.fill) / speed + partial
    found: Floats = ways_seconds.min(axis=0)
    return found


def _implicit(shape: Floats, phase: str, align: int) -> Floats:
    """(groups, m, n, k) per group. A strided input gradient has a kernel for each place within a stride."""
    batch, channels, filters, height, width, kernel_h, kernel_w, stride, groups = shape.T
    given = np.ceil(channels / groups / align) * align
    wanted = np.ceil(filters / groups / align) * align
    pixels, window = batch * height * width, kernel_h * kernel_w
    if phase == FORWARD:
        dims = (groups, pixels, wanted, given * window)
    elif phase == WEIGHT_GRADIENT:
        dims = (groups, wanted, given * window, pixels)
    else:
        places = np.minimum(stride * stride, window)
        dims = (groups, pixels * places, given, wanted * window / places)
    return np.stack(dims, axis=1)


def _winograd(shape: Floats, phase: str, units: Units, known: Constants) -> Floats:
    batch, channels, filters, height, width = shape[:, :5].T
    tiles = batch * np.ceil(height / 4) * np.ceil(width / 4)
    many = np.full(len(shape), WINOGRAD)
    dims = {
        FORWARD: (many, tiles, filters, channels),
        INPUT_GRADIENT: (many, tiles, channels, filters),
        WEIGHT_GRADIENT: (many, channels, filters, tiles),
    }[phase]
    product = _product(np.stack(dims, axis=1), units, known)
    both = channels + filters
    plain = batch * height * width * both
    moved = plain + 2.0 * WINOGRAD * (tiles * both + channels * filters)
    found: Floats = product + FP32_BYTES * moved / units.bandwidth
    return found
