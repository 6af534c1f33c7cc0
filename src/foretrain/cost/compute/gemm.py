"""Products of matrices from measured tables.

A table holds, for one device and number format, the logarithm of seconds on a grid of knots in `(m, n, k)`, and in
the batch where batches were measured, less what whole waves of tiles explain:

    log seconds = H(m, n, k) + Σ over tiles of  share · log(waves)

`waves` counts how often all compute units take a tile (NVIDIA, "Matrix Multiplication Background User's Guide").
H is linear between knots in the logarithms of the dims and rises along every dim, as waves do, so more work is
never quicker. Beyond the table time grows with the work; below it stays at what starting a kernel takes.
`tools/distil_gemm.py` makes the tables, docs/kernels-gemm.md says how well they hold.

Tables are bursts at full clocks. Long runs near the power limit are slower by `sustained.yaml`, one number per
device and format.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from zlib import decompress

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.device import Device
from foretrain.cost.compute.base import TABLES, Estimate, Kin, kin_of, names, stored
from foretrain.loading import load_own_yaml
from foretrain.model.ops.base import Kernel

FAMILY = "gemm"
FORMS: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16", "fp16"),
    "fp16": ("fp16", "bf16"),
    "fp8": ("fp8",),
    "mxfp8": ("fp8",),
    "fp4": ("fp4",),
    "nvfp4": ("fp4",),
    "mxfp4": ("fp4",),
    "fp32": ("fp32",),
    "tf32": ("bf16", "fp16"),
}
"""Tables that serve a format, best first. The two 16-bit formats run alike on tensor units. A tf32 product reads
and multiplies as much as a 16-bit one of twice the depth."""
DEEPER = {"tf32": 2.0}


@dataclass(frozen=True, eq=False)
class GemmTable:
    """Measured products of one device in one format."""

    name: str
    form: str
    source: str
    peak: float  # FLOP/s and bytes/s of the device measured
    bandwidth: float
    units: float
    tiles: tuple[tuple[float, float, float], ...]  # rows, columns, share of the waves
    knots: tuple[
        Floats, ...
    ]  # logarithms of m, n and k; of the batch before them where it was measured
    grid: Floats  # H, an axis for each of the knots
    spread: float
    start: float = 0.0  # seconds of the smallest product

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> GemmTable:
        dims = [data[dim] for dim in ("batch", "m", "n", "k") if dim in data]
        knots = tuple(np.log(np.array(dim, dtype=np.float64)) for dim in dims)
        grid = data["low"] + data["step"] * risen(data["grid"], tuple(len(dim) for dim in dims))
        return cls(
            name=data["device"], form=data["form"], source=data["source"], peak=data["peak"],
            bandwidth=data["bandwidth"], units=data["units"],
            tiles=tuple((a, b, c) for a, b, c in data["tiles"]),
            knots=knots, grid=grid, spread=data["spread"], start=float(np.exp(grid.min())),
        )  # fmt: skip

    def seconds(self, batch: Floats, m: Floats, n: Floats, k: Floats) -> Floats:
        """Seconds at full clocks; dims are one or more."""
        if len(self.knots) == 4:
            found = self._smooth(np.log(batch), np.log(m), np.log(n), np.log(k))
        else:  # a batch is more tiles of the same product: rows of the longer side, which overhangs least
            tall = m >= n
            rows, columns = np.where(tall, batch * m, m), np.where(tall, n, batch * n)
            found = self._smooth(np.log(rows), np.log(columns), np.log(k))
        for tile_rows, tile_columns, share in self.tiles:
            tiles = batch * np.ceil(m / tile_rows) * np.ceil(n / tile_columns)
            found = found + share * np.log(np.maximum(np.ceil(tiles / self.units), 1.0))
        return np.asarray(np.exp(found))

    @property
    def waved(self) -> float:
        return sum(share for _, _, share in self.tiles)

    def _smooth(self, *logs: Floats) -> Floats:
        """H between knots; past the last knots time grows as the work does."""
        cells, parts, beyond = [], [], 0.0
        last = len(logs) - 1
        for axis, (value, knots) in enumerate(zip(logs, self.knots, strict=True)):
            inside = np.clip(value, knots[0], knots[-1])
            cell = np.clip(np.searchsorted(knots, inside, side="right") - 1, 0, len(knots) - 2)
            cells.append(cell)
            parts.append((inside - knots[cell]) / (knots[cell + 1] - knots[cell]))
            beyond = beyond + np.maximum(value - knots[-1], 0.0) * (
                1.0 if axis == last else 1.0 - self.waved
            )
        return np.asarray(_between(self.grid, cells, parts) + beyond)


def _between(grid: Floats, cells: list[Any], parts: list[Any], axis: int = 0) -> Floats:
    """Linear between the corners of the cells, along `axis` and those after it."""
    if axis == len(parts):
        return np.asarray(grid[tuple(cells)])
    above = [*cells[:axis], cells[axis] + 1, *cells[axis + 1 :]]
    low = _between(grid, cells, parts, axis + 1)
    return np.asarray(low + (_between(grid, above, parts, axis + 1) - low) * parts[axis])


def risen(text: str, shape: Sequence[int]) -> Floats:
    """Steps of a grid from how much it rises along its last axis: base64 of deflated two-byte counts.

    All low bytes come before all high ones, which are mostly zero.
    """
    planes = np.frombuffer(decompress(b64decode(text)), dtype=np.uint8).astype(np.uint32)
    low, high = planes.reshape(2, -1)
    return np.asarray(np.cumsum((low + 256 * high).reshape(shape), axis=-1).astype(np.float64))


def estimate(kernels: Sequence[Kernel], device: Device, dtype: str) -> Estimate | None:
    """Times of products on a device that somebody has measured, or whose kin somebody has."""
    found = table_of(device, dtype)
    if found is None:
        return None
    table, kin = found
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    added = np.array([kernel.added for kernel in kernels], dtype=np.float64)
    moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64) - added
    shape = np.array([_dims(kernel) for kernel in kernels], dtype=np.float64)
    batch, m, n, k = np.maximum(shape, 1.0).T
    seconds = table.seconds(batch, m, n, k * DEEPER.get(dtype, 1.0))
    # a kernel that does less or more than its dims say keeps their inefficiency
    ratio = flops / np.maximum(2.0 * shape.prod(axis=1), 1.0)
    seconds = table.start + np.maximum(seconds - table.start, 0.0) * ratio
    peak = device.required_peak(dtype)
    slower = table.peak / (peak * DEEPER.get(dtype, 1.0))
    narrower = table.bandwidth / device.memory_bandwidth
    reached = constants()["reached"]
    seconds = on_another(
        seconds,
        flops / (peak * slower * reached["arithmetic"]),
        moved / (table.bandwidth * reached["memory"]),
        slower,
        narrower,
    )
    seconds = seconds / _kept_up(device.identity, kin.name, dtype)
    seconds = sustained_seconds(seconds, flops / peak, sustained(device.identity, kin.name, dtype))
    seconds = np.maximum(np.maximum(seconds, table.start), streamed(moved, device))
    seconds = seconds + streamed(added, device)
    own = kin.is_measured and dtype not in DEEPER
    spread = table.spread if own else table.spread + constants()["stand_in_spread"]
    return Estimate(
        seconds=seconds,
        spread=np.full(len(kernels), spread),
        measured=np.full(len(kernels), own),
        source=f"{table.form} GEMMs measured on {table.name} ({table.source})",
        notes=()
        if kin.is_measured
        else (
            f"No GEMM measurements for {device.title}; using those of {table.name}, scaled by peak "
            "FLOP/s.",
        ),
    )


def streamed(moved: Floats, device: Device) -> Floats:
    """Seconds that a product's own traffic takes at best."""
    return moved / (float(constants()["streaming"]) * device.memory_bandwidth)


def _dims(kernel: Kernel) -> tuple[float, ...]:
    """`(batch, m, n, k)`; a product that states none is taken for a cube."""
    if kernel.shape:
        return kernel.shape
    side = (kernel.flops / 2.0) ** (1.0 / 3.0)
    return 1.0, side, side, side


def on_another(
    seconds: Floats, arithmetic: Floats, traffic: Floats, slower: float, narrower: float
) -> Floats:
    """Seconds on a device `slower` in arithmetic and `narrower` in memory than the one measured.

    `arithmetic` and `traffic` are the seconds they take alone on the device measured, as products reach them. All
    of a product slows by the lesser of the two, and what bounds it by its own; both only rise with the work.
    """
    if slower > narrower:
        return np.maximum(narrower * seconds, slower * np.minimum(seconds, arithmetic))
    return np.maximum(slower * seconds, narrower * np.minimum(seconds, traffic))


def sustained_seconds(seconds: Floats, ideal: Floats, share: float) -> Floats:
    """Seconds when it goes on for long: clocks fall as far as the arithmetic units are busy."""
    low, high = (float(constants()["power"][end]) for end in ("from", "full"))
    busy = np.clip((ideal / seconds - low) / (high - low), 0.0, 1.0)
    return seconds * (1.0 + (1.0 / share - 1.0) * busy)


def sustained(name: str, kin: str, dtype: str) -> float:
    """Share of the burst rate that a device holds, by its own name or that of its kin."""
    return _listed("sustained", name, kin, dtype)


def _kept_up(name: str, kin: str, dtype: str) -> float:
    """Rate of products in a model's step over a table's, of boards that its sweep drove into their power limit."""
    inside = _listed("inside", name, kin, dtype)
    rented = _listed("boards", name, kin, dtype)
    return rented * (inside * float(constants()["kept_up"]) if inside != 1.0 else 1.0)


def _listed(factor: str, name: str, kin: str, dtype: str) -> float:
    known = constants()[factor]
    rates = known.get(name) or known.get(kin) or {}
    for form in (dtype, *FORMS.get(dtype, ())):
        if form in rates:
            return float(rates[form])
    return 1.0


@cache
def constants() -> Mapping[str, Any]:
    found: Mapping[str, Any] = load_own_yaml(TABLES / "gemm.yaml")
    return found


@cache
def _read(name: str) -> GemmTable:
    return GemmTable.read(stored(FAMILY, name))


@cache
def _measured() -> Mapping[str, tuple[str, ...]]:
    """Devices by format."""
    found: dict[str, list[str]] = {}
    for name in names(FAMILY):
        device, form = name.rsplit(".", 1)
        found.setdefault(form, []).append(device)
    return {form: tuple(devices) for form, devices in found.items()}


def table_of(device: Device, dtype: str) -> tuple[GemmTable, Kin] | None:
    """The nearest table: a near relative's in another form goes before a far one's in the best form."""
    best: tuple[int, str, Kin] | None = None
    order = ("own", "chip", "generation")
    for form in FORMS.get(dtype, ()):
        kin = kin_of(device, _measured().get(form, ()))
        if kin is not None and (best is None or order.index(kin.nearness) < best[0]):
            best = order.index(kin.nearness), form, kin
    if best is None:
        return None
    _, form, kin = best
    return _read(f"{kin.name}.{form}"), kin
