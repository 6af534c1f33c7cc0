"""Distils public measurements of matrix products into the tables of `cost/compute/gemm.py`.

python tools/distil_gemm.py             writes src/foretrain/cost/calibration/compute/gemm/*.json
python tools/distil_gemm.py --only h100-sxm5-80gb.bf16

Sources: `tools/gemm_readings.py`. Each table is a penalised robust fit: log seconds at the knots and the shares of
whole waves are found together by iterated least squares (Huber), with the bend of the knots against a plain
physical model held small. Then knots are made to rise along every dim (isotonic, in the mean of both directions).
"""

from __future__ import annotations

import argparse
import hashlib
import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import compress

import gemm_readings as readings
import numpy as np
from gemm_readings import ROOT, Readings
from isotonic import rising
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import cg, splu

from foretrain.arrays import Floats
from foretrain.cost.compute.gemm import GemmTable, on_another

TARGET = ROOT / "src" / "foretrain" / "cost" / "calibration" / "compute" / "gemm"
DATE = "2026-11-16"
HUBER = 0.03
ROUNDS = 6
RIDGE = 1e-3
LEAST_WIDTH = (
    0.1  # between knots, as far as bends count: neighbours on two sides of a tile may lie apart
)
LEAST_SUPPORT = 0.01  # readings that a knot without any counts for
MOST_WAVED = 0.95  # shares of waves together; the rest must stay with the grid

BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "fp4": 4}
STARTS = {"fp32": 4e-6}
METHOD = (
    "log seconds on knots and wave shares, Huber fit with a bend penalty against a physical model, isotonic; "
    "the quickest reading of each shape; bursts at full clocks"
)

FINE = (1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192, 16384, 32768)  # fmt: skip
SIDES = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 65536)
SWEPT_ROWS = (
    1, 2, 4, 6, 8, 12, 16, 17, 32, 33, 48, 49, 64, 65, 80, 81, 96, 97, 112, 113, 128, 129, 160, 161, 192, 193, 224, 225,
    256, 257, 384, 512, 513, 768, 769, 1024, 1025, 1280, 1536, 1792, 2048, 2560, 3072, 4096, 6144, 8192, 16384, 32768,
)  # fmt: skip
SWEPT = (
    32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192, 10240, 12288, 16384,
    51200, 65536,
)  # fmt: skip
"""What the engines' sweeps measured; a row past a tile is a knot too, for the next tile is another kernel's."""
BATCHES = (1, 4, 16, 64, 256, 1024, 4096, 65536)
DRAWN = (4, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16384, 65536)
TILES = ((128, 256), (256, 128), (128, 128))
STEP = 1e-3  # of the logarithms in a file
DIRECT = 6000  # unknowns up to which the equations are solved by factors
TOLERANCE = 1e-5
MOST_STEPS = 1500


@dataclass(frozen=True)
class Recipe:
    """How a collection is fitted."""

    knots: tuple[
        Sequence[int], ...
    ]  # of m, n and k, and of the batch before them where it has its own axis
    stiffness: float
    tiles: Sequence[tuple[int, int]] = TILES
    alone: float = 1.0  # how much stiffer the readings without a batch are held
    levelling: float = 0.0  # how much slopes against what is expected are held small too
    like: str | None = None  # the table whose shape is taken where readings are few


RECIPES = {
    "engines": Recipe((SWEPT_ROWS, SWEPT, SWEPT), 0.1),
    "eager": Recipe(
        (BATCHES, DRAWN, DRAWN, DRAWN),
        0.004,
        ((128, 128), (64, 64)),
        alone=50.0,
    ),
    "layers": Recipe((FINE, SIDES, SIDES), 1.0, (), levelling=0.1, like="a100-sxm4-80gb.bf16"),
}


def half(rows: Readings) -> NDArray[np.bool_]:
    """Which rows a scoring fit may see: by a hash of the shape, so that no shape is in both halves."""
    return _hashed(rows)[:, 0] % 2 == 0


def _hashed(rows: Readings) -> NDArray[np.uint8]:
    words = [",".join(f"{int(value)}" for value in shape) for shape in rows.shape]
    digests = b"".join(hashlib.md5(word.encode()).digest() for word in words)
    return np.frombuffer(digests, dtype=np.uint8).reshape(len(words), -1)


def collections() -> Iterator[tuple[str, Readings]]:
    """Every set of readings and the recipe for it; 16-bit engines first, others may be like them."""
    for form in ("bf16", "fp8", "fp4"):
        for found in readings.aiconfigurator(form):
            yield "engines", found
    for found in readings.neusight():
        yield "eager", found
    for found in readings.profiled():
        if found.device != "a100-sxm4-40gb":  # a check: its chip is in the first collection
            yield "layers", found


# --- the fit --------------------------------------------------------------------------------------


def physical(shape: Floats, rows: Readings) -> Floats:
    """Log seconds by data sheet: arithmetic with short dims and idle units, traffic, start-up."""
    device = readings.device(rows.device)
    batch, m, n, k = shape.T
    size = BITS[rows.form] / 8
    tiles = batch * np.maximum(m / 128, 0.25) * np.maximum(n / 128, 0.25)
    short = (1 + 96 / k) * (1 + 24 / m) * (1 + 24 / n) * (1 + units(rows) / tiles / 2)
    arithmetic = 2 * batch * m * n * k / (0.75 * device.required_peak(rows.form)) * short
    moved = batch * ((m * k + k * n) * size + m * n * max(size, 2.0))
    traffic = moved / (0.75 * device.memory_bandwidth)
    start = STARTS.get(rows.form, 2e-6)
    return np.asarray(np.log(start + np.cbrt(arithmetic**3 + traffic**3)))


def units(rows: Readings) -> int:
    return readings.device(rows.device).compute_units or 100


def merged(shape: Floats) -> Floats:
    """`(m, n, k)` as the table sees them: a batch lengthens the longer side."""
    batch, m, n, k = shape.T
    tall = m >= n
    return np.stack([np.where(tall, batch * m, m), np.where(tall, n, batch * n), k], axis=1)


def seen_as(shape: Floats, knots: Sequence[Floats]) -> Floats:
    """The dims that an axis of the table stands for."""
    return shape if len(knots) == 4 else merged(shape)


def interpolation(dims: Floats, knots: Sequence[Floats]) -> sparse.csr_matrix:
    """The matrix that takes values at knots to values at dims."""
    index, weight = np.zeros((len(dims), 1), dtype=np.int64), np.ones((len(dims), 1))
    for values, axis in zip(np.log(dims).T, knots, strict=True):
        inside = np.clip(values, axis[0], axis[-1])
        cell = np.clip(np.searchsorted(axis, inside, side="right") - 1, 0, len(axis) - 2)
        part = ((inside - axis[cell]) / (axis[cell + 1] - axis[cell]))[:, None]
        index = index * len(axis) + cell[:, None]
        index = np.concatenate([index, index + 1], axis=1)
        weight = np.concatenate([weight * (1.0 - part), weight * part], axis=1)
    rows = np.repeat(np.arange(len(dims)), index.shape[1])
    shape = (len(dims), int(np.prod([len(axis) for axis in knots])))
    return sparse.csr_matrix((weight.ravel(), (rows, index.ravel())), shape)


def beyond(dims: Floats, knots: Sequence[Floats]) -> tuple[Floats, Floats]:
    """By how much the sides together, and k, are past the last knots (logarithms)."""
    *sides, k = (
        np.maximum(values - axis[-1], 0.0)
        for values, axis in zip(np.log(dims).T, knots, strict=True)
    )
    return np.asarray(sum(sides)), k


def bends(knots: Sequence[Floats], alone: float) -> sparse.csr_matrix:
    """Change of slope at every inner knot along every axis; at the first of the first axis it counts `alone` times."""
    matrices = []
    for axis in knots:
        matrix = np.zeros((len(axis) - 2, len(axis)))
        for i in range(1, len(axis) - 1):
            before, after = (max(width, LEAST_WIDTH) for width in np.diff(axis[i - 1 : i + 2]))
            matrix[i - 1, i - 1 : i + 2] = 1 / before, -1 / before - 1 / after, 1 / after
        matrices.append(0.4 * matrix)
    return _along_axes(matrices, alone)


def slopes(knots: Sequence[Floats]) -> sparse.csr_matrix:
    """Slope between neighbouring knots along every axis."""
    return _along_axes([np.diff(np.eye(len(axis)), axis=0) for axis in knots])


def _along_axes(matrices: Sequence[Floats], alone: float = 1.0) -> sparse.csr_matrix:
    """Each matrix applied along its own axis, at all places of the others."""
    found = []
    for along, matrix in enumerate(matrices):
        product = sparse.identity(1)
        for axis, other in enumerate(matrices):
            counts = np.ones(other.shape[1])
            counts[0] = np.sqrt(alone) if axis == 0 else 1.0
            part = sparse.csr_matrix(matrix) if axis == along else sparse.diags(counts)
            product = sparse.kron(product, part)
        found.append(product)
    return sparse.csr_matrix(sparse.vstack(found))


def waves(shape: Floats, tile: tuple[int, int], count: int) -> Floats:
    batch, m, n, _ = shape.T
    tiles = batch * np.ceil(m / tile[0]) * np.ceil(n / tile[1])
    return np.asarray(np.log(np.maximum(np.ceil(tiles / count), 1.0)))


def broken_waves(shape: Floats, tile: tuple[int, int], count: int) -> Floats:
    batch, m, n, _ = shape.T
    return np.asarray(np.log(np.maximum(batch * m * n / (tile[0] * tile[1] * count), 1.0)))


def fitted(rows: Readings, recipe: Recipe, known: Mapping[str, GemmTable]) -> dict[str, Any]:
    """The table of `rows` as it goes into a file; its spread is that of a quarter fitted without it."""
    apart = _hashed(rows)[:, 1] % 4 == 0
    without = GemmTable.read(_fitted(rows.chosen(~apart), recipe, known))
    return {**_fitted(rows, recipe, known), "spread": _spread(without, rows.chosen(apart))}


def _fitted(rows: Readings, recipe: Recipe, known: Mapping[str, GemmTable]) -> dict[str, Any]:
    trusted = rows.chosen(rows.seconds > 2.0 * rows.floor) if rows.floor else rows
    knots = [np.log(np.array(axis, dtype=np.float64)) for axis in recipe.knots]
    at_knots = np.stack([x.ravel() for x in np.meshgrid(*knots, indexing="ij")], axis=1)
    if len(knots) == 3:
        at_knots = np.concatenate([np.zeros((len(at_knots), 1)), at_knots], axis=1)
    corners = np.exp(at_knots)
    expected = physical(corners, rows)
    shares = [(float(a), float(b), 0.0) for a, b in recipe.tiles]
    if recipe.like is not None:
        expected = _scaled(known[recipe.like], corners, rows)
    tiles, values = _solve(trusted, recipe, knots, expected, corners)
    shares = [(a, b, share) for (a, b, _), share in zip(shares, tiles, strict=True) if share > 0]
    sizes = [len(axis) for axis in knots]
    support = LEAST_SUPPORT + interpolation(seen_as(trusted.shape, knots), knots).sum(axis=0)
    grid = rising(values.reshape(sizes), np.asarray(support).reshape(sizes))
    return _document(rows, recipe, shares, grid)


def _scaled(table: GemmTable, shape: Floats, rows: Readings) -> Floats:
    """Log seconds of another device at this one's rates."""
    device = readings.device(rows.device)
    peak = device.required_peak(rows.form)
    batch, m, n, k = shape.T
    arithmetic = 2.0 * shape.prod(axis=1) / (0.7 * table.peak)
    traffic = 2.0 * batch * (m * k + k * n + m * n) / (0.8 * table.bandwidth)
    slower, narrower = table.peak / peak, table.bandwidth / device.memory_bandwidth
    return np.log(on_another(table.seconds(*shape.T), arithmetic, traffic, slower, narrower))


def _solve(
    rows: Readings, recipe: Recipe, knots: Sequence[Floats], expected: Floats, corners: Floats
) -> tuple[list[float], Floats]:
    """Shares of waves, and values at knots.

    What a share explains is whole waves against broken ones; the smooth part of it comes off the knots.
    """
    dims = seen_as(rows.shape, knots)
    matrix = interpolation(dims, knots)
    smooth = [broken_waves(corners, tile, units(rows)) for tile in recipe.tiles]
    wide, deep = beyond(dims, knots)
    waved = [
        waves(rows.shape, tile, units(rows)) - matrix @ part - wide
        for tile, part in zip(recipe.tiles, smooth, strict=True)
    ]
    wanted = np.log(rows.seconds) - matrix @ expected - wide - deep
    bend = bends(knots, recipe.alone) * np.sqrt(recipe.stiffness)
    if recipe.levelling:
        bend = sparse.vstack([bend, slopes(knots) * np.sqrt(recipe.levelling)]).tocsr()
    used = list(range(len(waved)))
    importance = np.where((rows.shape[:, 1:] >= 512).all(axis=1), 3.0, 1.0)
    while True:
        extra = np.stack([waved[i] for i in used], axis=1) if used else np.zeros((len(rows), 0))
        whole = sparse.hstack([matrix, sparse.csr_matrix(extra)]).tocsr()
        stiff = sparse.hstack([bend, sparse.csr_matrix((bend.shape[0], len(used)))]).tocsr()
        found = _robust(whole, wanted, importance, stiff)
        shares = found[matrix.shape[1] :]
        if not used or (shares > 0.01).all():
            break
        used.remove(used[int(np.argmin(shares))])
    all_shares = [0.0] * len(waved)
    for i, share in zip(used, shares, strict=True):
        all_shares[i] = round(float(share), 3)
    if sum(all_shares) > MOST_WAVED:  # then as much as may be, and the grid fitted to the rest
        all_shares = [share * MOST_WAVED / sum(all_shares) for share in all_shares]
        wanted = wanted - sum(s * w for s, w in zip(all_shares, waved, strict=True))
        found = _robust(matrix, wanted, importance, bend)
    off = sum(share * part for share, part in zip(all_shares, smooth, strict=True))
    return all_shares, expected + found[: matrix.shape[1]] - off


def _robust(
    matrix: sparse.csr_matrix, wanted: Floats, importance: Floats, stiff: sparse.csr_matrix
) -> Floats:
    penalty = stiff.T @ stiff + RIDGE * sparse.identity(matrix.shape[1])
    weight, found = importance, np.zeros(matrix.shape[1])
    for _ in range(ROUNDS):
        normal = (matrix.T @ sparse.diags(weight) @ matrix + penalty).tocsc()
        found = _solved(normal, matrix.T @ (weight * wanted), found)
        over = np.clip(matrix @ found - wanted, -1.0, 1.0)
        # what counts is the relative error: too much by a factor counts for more than too little by it
        lean = np.where(np.abs(over) > 1e-6, np.expm1(over) / np.where(over == 0.0, 1.0, over), 1.0)
        weight = importance * lean * HUBER / np.maximum(np.abs(over), HUBER)
    return found


def _solved(normal: sparse.csc_matrix, right: Floats, start: Floats) -> Floats:
    """By factors, or by conjugate gradients where they would fill up."""
    if normal.shape[0] <= DIRECT:
        return np.asarray(splu(normal, permc_spec="MMD_AT_PLUS_A").solve(right))
    scale = sparse.diags(1.0 / normal.diagonal())
    found, _ = cg(normal.tocsr(), right, x0=start, rtol=TOLERANCE, maxiter=MOST_STEPS, M=scale)
    return np.asarray(found)


def _document(
    rows: Readings, recipe: Recipe, tiles: Sequence[tuple[float, float, float]], grid: Floats
) -> dict[str, Any]:
    low = float(grid.min())
    dims = ("batch", "m", "n", "k")[-len(recipe.knots) :]
    device = readings.device(rows.device)
    found = {
        "device": rows.device,
        "form": rows.form,
        "source": rows.source,
        "method": METHOD,
        "date": DATE,
        "readings": len(rows),
        "peak": device.required_peak(rows.form),
        "bandwidth": device.memory_bandwidth,
        "units": units(rows),
        "tiles": tiles,
        **{dim: list(axis) for dim, axis in zip(dims, recipe.knots, strict=True)},
        "low": low,
        "step": STEP,
        "grid": _packed(np.round((grid - low) / STEP)),
        "spread": 0.05,
    }
    return found


def _packed(steps: Floats) -> str:
    """What `foretrain.cost.compute.gemm.risen` reads."""
    rises = np.diff(steps, axis=-1, prepend=0.0).astype("<u2")
    planes = rises.reshape(-1, 1).view(np.uint8).T
    return b64encode(compress(planes.tobytes(), 9)).decode("ascii")


def _spread(table: GemmTable, rows: Readings) -> float:
    """Standard deviation of the logarithm, by the median so that outliers do not count."""
    big = (rows.shape[:, 1:] >= 512).all(axis=1) & (rows.seconds > 2.0 * rows.floor)
    rest = np.log(table.seconds(*rows.shape[big].T) / rows.seconds[big])
    return round(max(1.48 * float(np.median(np.abs(rest))), 0.03), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="device.form of the one table to make")
    only = parser.parse_args().only
    known: dict[str, GemmTable] = {}
    for kind, rows in collections():
        name = f"{rows.device}.{rows.form}"
        recipe = RECIPES[kind]
        if only and name not in (only, recipe.like, RECIPES["layers"].like):
            continue
        found = fitted(rows, recipe, known)
        known[name] = GemmTable.read(found)
        (TARGET / f"{name}.json").write_text(json.dumps(found) + "\n", encoding="utf-8")
        print(f"{name}: {len(rows)} readings, tiles {found['tiles']}, spread {found['spread']}")


if __name__ == "__main__":
    main()
