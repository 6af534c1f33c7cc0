"""Fused attention as blocks of queries on compute units, at measured rates.

A compute unit takes a block of queries of one head, walks over the keys they see and writes their output.
Blocks are handed out in waves, the longest first where a mask makes them unequal, so what is lost is what
overhangs: blocks that are not full, masked keys in the blocks the diagonal crosses, starting and finishing a
block (as long as `overhead` keys), and units without work at the end. Backward walks over queries for blocks of
keys, with the same losses (Dao 2023, arXiv 2307.08691). What a table of measurements adds is the rate of the
inner loop by head size and, where there are thousands of shapes, a smooth correction over waves and keys.

Speeds are per implementation: `flash` (FlashAttention-2, or what stands in its place on the device), `flash3`
(FlashAttention-3 and later) and `cudnn`, in `calibration/compute/attention`; older ones (`flash1`, `triton`) are times of
another in `attention.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.cluster.device import Device
from foretrain.cost.compute.base import TABLES, Estimate, Hardware, kin_of, names, stored
from foretrain.cost.compute.gemm import sustained, sustained_seconds
from foretrain.loading import load_own_yaml
from foretrain.model.ops.base import FORWARD, Kernel

FAMILY = "attention"
DTYPES = ("bf16", "fp16")
ROWS = 128.0
"""Queries of a block; kernels use 64 to 256, and what differs is in the fitted overhead."""
PADDED_HEAD = 32.0
"""Head sizes are filled up to a multiple of this."""
NARROWEST = 64.0
"""Below this head size the inner loop waits for the exponentials: the rate falls with the size."""
PRODUCTS = {"forward": 2.0, "backward": 5.0}
COARSE = 1.5  # how much wider the spread is where the rates are those of another device


@dataclass(frozen=True, slots=True)
class Shapes:
    """Kernels as columns."""

    batch: Floats
    heads: Floats
    seq: Floats
    keys: Floats
    head_dim: Floats
    flops: Floats
    moved: Floats

    @property
    def padded_head(self) -> Floats:
        return np.ceil(self.head_dim / PADDED_HEAD) * PADDED_HEAD

    def visible(self, products: float) -> Floats:
        """Share of the scores that is computed, from the FLOPs the kernel says it does."""
        scores = self.batch * self.heads * self.seq * self.keys
        dense = products * 2.0 * scores * self.head_dim
        return np.clip(self.flops / np.maximum(dense, 1.0), 1e-6, 1.0)


@dataclass(frozen=True, slots=True)
class AttentionGrid:
    """Natural logarithm of measured against modelled arithmetic, bilinear between knots, flat outside."""

    heads: Floats  # head sizes
    waves: Floats  # log2 of blocks per compute unit
    keys: Floats  # log2 of keys
    log: Floats  # [head, wave, key]

    def at(self, head_dim: Floats, waves: Floats, keys: Floats) -> Floats:
        nearest = np.abs(np.log2(head_dim)[:, None] - np.log2(self.heads)).argmin(axis=1)
        row, up = _between(self.waves, np.log2(np.maximum(waves, 1e-9)))
        column, right = _between(self.keys, np.log2(np.maximum(keys, 1.0)))
        table = self.log[nearest]
        index = np.arange(len(head_dim))
        low = table[index, row, column] * (1 - right) + table[index, row, column + 1] * right
        high = (
            table[index, row + 1, column] * (1 - right) + table[index, row + 1, column + 1] * right
        )
        blended: Floats = low * (1 - up) + high * up
        return blended


@dataclass(frozen=True, slots=True)
class Speed:
    """One implementation in one direction on one device."""

    start: float  # seconds of a kernel that does nothing
    overhead: float  # keys that starting and finishing a block costs
    tail: float  # share of the last wave that nothing else fills, 0 to 1
    memory: float  # share of memory bandwidth
    heads: Floats  # head sizes, ascending
    rates: Floats  # share of peak of the inner loop at those
    spread: float
    is_measured: bool
    grid: AttentionGrid | None = None

    def rate(self, shapes: Shapes) -> Floats:
        """Share of the data-sheet rate that the inner loop reaches."""
        known = np.interp(np.log2(shapes.head_dim), np.log2(self.heads), np.log(self.rates))
        found: Floats = np.exp(known) * np.minimum(shapes.head_dim / NARROWEST, 1.0)
        return found


def seconds(shapes: Shapes, speed: Speed, hardware: Hardware, products: float) -> Floats:
    """Seconds of kernels with `products` matrix products."""
    arithmetic = _arithmetic(shapes, speed, hardware, products)
    traffic = shapes.moved / (hardware.bandwidth * speed.memory)
    result: Floats = speed.start + np.maximum(arithmetic, traffic)
    return result


def _arithmetic(shapes: Shapes, speed: Speed, hardware: Hardware, products: float) -> Floats:
    visible = shapes.visible(products)
    blocks = shapes.batch * shapes.heads * np.ceil(shapes.seq / ROWS)
    keys = np.ceil(shapes.keys / ROWS) * ROWS
    # Of the blocks that a mask's edge crosses all keys are computed.
    walked = visible * keys + (1.0 - visible) * ROWS + speed.overhead
    longest = np.minimum(2.0 * visible, 1.0) * keys + speed.overhead
    waves = blocks / hardware.units
    filled = (1.0 - speed.tail) * waves + speed.tail * np.ceil(waves)
    one_key = 2.0 * products * ROWS * shapes.padded_head
    unit = hardware.peak * speed.rate(shapes) / hardware.units
    result: Floats = (
        np.maximum(filled * walked, np.where(blocks > 0, longest, 0.0)) * one_key / unit
    )
    # FLOPs beyond the dense product, which masks cannot explain, take their time too.
    dense = (
        products * 2.0 * shapes.batch * shapes.heads * shapes.seq * shapes.keys * shapes.head_dim
    )
    result *= np.maximum(shapes.flops / np.maximum(dense, 1.0), 1.0)
    if speed.grid is not None:
        result *= np.exp(speed.grid.at(shapes.head_dim, waves, shapes.keys))
    return result


def _between(knots: Floats, at: Floats) -> tuple[Ints, Floats]:
    """The knot below and how far towards the next, ends held."""
    place = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    share = (at - knots[place]) / (knots[place + 1] - knots[place])
    return place.astype(np.int64), np.clip(share, 0.0, 1.0)


def estimate(kernels: Sequence[Kernel], device: Device, dtype: str) -> Estimate | None:
    """Times of fused attention; None where no relative of the device was measured in `dtype`."""
    kin = kin_of(device, names(FAMILY)) if dtype in DTYPES and device.compute_units else None
    if kin is None:
        return None
    direction = "forward" if kernels[0].phase == FORWARD else "backward"
    wanted, times = _current(kernels[0].kind.removeprefix("attention").lstrip("_") or "flash")
    name, speed = speed_of(kin.name, wanted, direction)
    hardware = Hardware.of(device, dtype)
    shapes = _shapes(kernels, PRODUCTS[direction])
    burst = seconds(shapes, speed, hardware, PRODUCTS[direction]) * times
    measured = speed.is_measured and kin.is_measured and times == 1.0
    share = sustained(device.identity, kin.name, dtype)
    return Estimate(
        seconds=sustained_seconds(burst, shapes.flops / hardware.peak, share),
        spread=np.full(len(kernels), speed.spread * (1.0 if measured else COARSE)),
        measured=np.full(len(kernels), measured),
        source=f"{name} attention {direction} measured on {kin.name}"
        if speed.is_measured
        else f"{name} attention {direction}, ratio to forward as on devices related to {kin.name}",
        notes=kin.notes(device, "attention measurements"),
    )


@cache
def _current(wanted: str) -> tuple[str, float]:
    """The implementation that was measured in the place of an older one, and how much longer that takes."""
    older = load_own_yaml(TABLES / "attention.yaml")["older"].get(wanted)
    return (wanted, 1.0) if older is None else (older["like"], float(older["times"]))


def _shapes(kernels: Sequence[Kernel], products: float) -> Shapes:
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64)
    rows = [kernel.shape or _nominal(kernel.flops, products) for kernel in kernels]
    batch, heads, _, seq, keys, head_dim = np.array(rows, dtype=np.float64).T
    return Shapes(batch, heads, seq, np.maximum(keys, 1.0), np.maximum(head_dim, 1.0), flops, moved)


def _nominal(flops: float, products: float) -> tuple[int, ...]:
    """A long sequence of about as many FLOPs, for kernels that do not tell their shape."""
    length, width = 4096, 128
    heads = max(1, round(flops / (products * 2.0 * length * length * width)))
    return (1, heads, heads, length, length, width)


def speed_of(device: str, wanted: str, direction: str) -> tuple[str, Speed]:
    """The implementation asked for, or what takes its place on this device, and its speed."""
    known = stored(FAMILY, device)["implementations"]
    name = wanted if wanted in known else "flash"
    return name, _speed(device, name, direction)


@cache
def _speed(device: str, name: str, direction: str) -> Speed:
    table = stored(FAMILY, device)
    given: Mapping[str, Any] = table["implementations"][name][direction]
    return Speed(
        start=given["start"],
        overhead=given["overhead"],
        tail=given["tail"],
        memory=given["memory"],
        heads=np.array(given["heads"], dtype=np.float64),
        rates=np.array(given["rates"], dtype=np.float64),
        spread=given["spread"],
        is_measured=given["measured"],
        grid=_grid(given["grid"]) if "grid" in given else None,
    )


def _grid(given: Mapping[str, Any]) -> AttentionGrid:
    return AttentionGrid(
        *(np.array(given[key], dtype=np.float64) for key in ("heads", "waves", "keys", "log"))
    )
