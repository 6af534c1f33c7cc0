"""Table look-ups: rows gathered at random, some of them found in the cache.

Of the rows that a kernel reads more than once all but the first reading may hit the L2 cache, as far as the
distinct rows fit into it; with rows drawn evenly, `lookups` draws of `rows` meet rows·(1 − exp(−lookups/rows))
distinct ones (Lin et al. 2024 use the same for cold caches). What is left goes to memory at the share of its
bandwidth that gathers were measured to reach. Kernels of skewed tables say themselves how many rows they meet and
how many of these come back; only the latter need room in the cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.device import Device
from foretrain.cost.compute.base import Estimate, Kin, kin_of, names, stored
from foretrain.model.ops.base import FORWARD, Kernel

FAMILY = "embedding"
INDEX_BYTES = 8.0
WIDEST_VALUE = 4.0  # bytes of a table's value; what a look-up moves beyond that is output
ELSEWHERE_SPREAD = 1.5


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """Shares of bandwidth; `wide_*` for rows of framework embeddings rather than of recommendation tables."""

    start_seconds: float
    forward: float
    backward: float
    wide: int  # values of a row from which it is a framework's embedding
    wide_forward: float
    wide_backward: float
    cache_rate: float  # L2 bandwidth over memory bandwidth
    cache_share: float  # of the L2 that rows can hold
    spread: float


@cache
def read(name: str) -> EmbeddingTable:
    row = stored(FAMILY, name)
    return EmbeddingTable(**{field: row[field] for field in EmbeddingTable.__slots__})


def estimate(kernels: Sequence[Kernel], device: Device, dtype: str) -> Estimate | None:
    kin = _kin(device)
    if kin is None or not all(len(kernel.shape) >= 3 for kernel in kernels):
        return None
    known = read(kin.name)
    is_forward = kernels[0].phase == FORWARD
    shape = np.array([met(kernel.shape) for kernel in kernels], dtype=np.float64)
    moved = np.array([kernel.bytes for kernel in kernels], dtype=np.float64)
    is_wide = shape[:, 1] >= known.wide
    narrow, wide = (
        (known.forward, known.wide_forward) if is_forward else (known.backward, known.wide_backward)
    )
    cached = hits(shape, moved, is_forward, device, known)
    slow = (moved - cached) / (device.memory_bandwidth * np.where(is_wide, wide, narrow))
    quick = cached / (device.memory_bandwidth * known.cache_rate)
    return Estimate(
        seconds=known.start_seconds + slow + quick,
        spread=np.full(len(kernels), known.spread * (1.0 if kin.is_measured else ELSEWHERE_SPREAD)),
        measured=np.full(len(kernels), kin.is_measured),
        source=f"embedding lookups measured on {kin.name}",
        notes=kin.notes(
            device, "embedding lookup measurements", "the bandwidth efficiency measured on"
        ),
    )


def hits(
    shape: Floats, moved: Floats, is_forward: bool, device: Device, known: EmbeddingTable
) -> Floats:
    """Bytes that come from the cache rather than from memory; rows of `shape` are as `met` says."""
    _, width, lookups, distinct, returning = (np.maximum(column, 1.0) for column in shape.T)
    passes = 1.0 if is_forward else 2.0  # rows are read, or read and written
    value = (moved / lookups - INDEX_BYTES) / (width * passes)
    row = width * np.clip(value, 0.0, WIDEST_VALUE)
    room = known.cache_share * (device.l2_bytes or 0.0)
    fits = np.minimum(room / np.maximum(returning * row, 1.0), 1.0)
    again = np.maximum(lookups - distinct, 0.0)
    found: Floats = np.minimum(again * row * passes * fits, 0.9 * moved)
    return found


def met(shape: tuple[int, ...]) -> tuple[float, ...]:
    """A kernel's shape with the rows it meets, and those of them that it wants to find in the cache again."""
    rows, width, lookups = (max(float(size), 1.0) for size in shape[:3])
    if len(shape) >= 5:
        return rows, width, lookups, float(shape[3]), float(shape[4])
    distinct = rows * -math.expm1(-lookups / rows)
    return rows, width, lookups, distinct, distinct


def _kin(device: Device) -> Kin | None:
    """Gathers are alike on all GPUs with caches of their kind, so the nearest measured one will do for any."""
    having = names(FAMILY)
    found = kin_of(device, having)
    if found is None and device.kind == "gpu" and having:
        return Kin(having[0], "generation")
    return found
