"""Matrix products as tiles on compute units.

A GEMM is cut into output tiles; a compute unit works on one tile at a time over the whole depth k, and all
units take their tiles in waves. Time is lost where tiles overhang the matrix, where the last wave is not
full, and where k is short against filling the pipeline and writing the result (NVIDIA, "Matrix
Multiplication Background User's Guide"). The library picks the tile that suits best, and cuts k into parts
where there are fewer tiles than units, adding the partial sums afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Floats
from foretrain.cost.calibration.efficiencies import Tile

FP32_BYTES = 4.0


@dataclass(frozen=True, slots=True)
class Units:
    """The device as a GEMM sees it; `flops` is its sustained rate in the GEMM's dtype."""

    count: int
    flops: float
    bandwidth: float
    fill: float  # extra k per tile


def gemm_seconds(
    shape: Floats, units: Units, tiles: Sequence[Tile], splits: Sequence[int]
) -> Floats:
    """Seconds of the arithmetic for rows `(batch, m, n, k)`, the best over tiles and splits of k."""
    best = np.full(len(shape), np.inf)
    for tile in tiles:
        for split in splits:
            np.minimum(best, _one_way(shape, units, tile, split), out=best)
    return best


def _one_way(shape: Floats, units: Units, tile: Tile, split: int) -> Floats:
    batch, m, n, k = (shape[:, column] for column in range(4))
    count = batch * np.ceil(m / tile.rows) * np.ceil(n / tile.columns) * split
    waves = np.ceil(count / units.count)
    depth = k / split + units.fill
    one_tile = 2.0 * tile.rows * tile.columns * depth / (units.flops / units.count * tile.rate)
    # each part writes its partial sums in fp32 and a last pass reads them
    partial = 2.0 * FP32_BYTES * split * batch * m * n if split > 1 else 0.0
    seconds: Floats = waves * one_tile + partial / units.bandwidth
    return seconds
