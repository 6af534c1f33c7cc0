"""Kernels bound by memory: element-wise ops, norms, softmax, casts, optimizer updates.

A kernel takes a start-up plus its bytes at a share of the data-sheet bandwidth. The share depends on how many
bytes there are (a small tensor may still be in the cache), or, for norms over rows, on the length of a row:
those stop at every row to reduce it, and backward reads more often than it seems to. Tables are distilled by
`tools/distil_streaming.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.device import Device
from foretrain.cost.calibration.efficiencies import table
from foretrain.cost.compute.base import Estimate, kin_of, names, stored
from foretrain.model.ops.base import FORWARD, Kernel

FAMILY = "memory"
ELSEWHERE_SPREAD = 2.0  # a share taken from another generation is that much less certain
NORM_SPREAD = (
    0.15  # between implementations of norms; layer norm's held-apart error is 0.03 to 0.16
)
PASSES = {True: 2.0, False: 3.0}  # tensors a norm's kernel counts, forward and backward


@dataclass(frozen=True, slots=True)
class StreamingTable:
    """Shares of bandwidth of one device."""

    start_seconds: float
    log2_bytes: Floats
    stream: Floats
    log2_row_bytes: Floats
    norm_forward: Floats
    norm_backward: Floats
    spread: float


@cache
def read(name: str) -> StreamingTable:
    row = stored(FAMILY, name)
    columns = ("log2_bytes", "stream", "log2_row_bytes", "norm_forward", "norm_backward")
    return StreamingTable(
        start_seconds=row["start_seconds"],
        spread=row["spread"],
        **{column: np.array(row[column], dtype=np.float64) for column in columns},
    )


def estimate(kernels: Sequence[Kernel], device: Device, dtype: str) -> Estimate | None:
    kin = kin_of(device, names(FAMILY))
    if kin is None:
        return None
    known = read(kin.name)
    moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64)
    flops = np.array([kernel.flops for kernel in kernels], dtype=np.float64)
    rows = _row_bytes(kernels, moved)
    share = shares(known, moved, rows, kernels[0].phase == FORWARD)
    vector = device.required_peak(dtype) * table().of(device)[0].vector
    seconds = known.start_seconds + np.maximum(
        moved / (device.memory_bandwidth * share), flops / vector
    )
    spread = np.where(rows > 0, np.hypot(known.spread, NORM_SPREAD), known.spread)
    return Estimate(
        seconds=seconds,
        spread=spread * (1.0 if kin.is_measured else ELSEWHERE_SPREAD),
        measured=np.full(len(kernels), kin.is_measured),
        source=f"memory-bound kernels measured on {kin.name}",
        notes=kin.notes(
            device,
            "measurements of memory-bound kernels",
            "the bandwidth efficiency measured on",
        ),
    )


def shares(known: StreamingTable, moved: Floats, rows: Floats, is_forward: bool) -> Floats:
    """Share of the data-sheet bandwidth; `rows` are bytes of a reduced row, 0 where none is."""
    share = np.interp(np.log2(np.maximum(moved, 1.0)), known.log2_bytes, known.stream)
    if rows.any():
        norm = known.norm_forward if is_forward else known.norm_backward
        reduced = np.interp(np.log2(np.maximum(rows, 1.0)), known.log2_row_bytes, norm)
        share = np.where(rows > 0, reduced, share)
    return share


def _row_bytes(kernels: Sequence[Kernel], moved: Floats) -> Floats:
    """Norms say `(elements, row length)`, all others `(elements,)` or nothing."""
    width = [k.shape[1] / max(k.shape[0], 1) if len(k.shape) == 2 else 0.0 for k in kernels]
    return np.array(width) * moved / PASSES[kernels[0].phase == FORWARD]
