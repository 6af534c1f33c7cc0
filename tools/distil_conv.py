"""Distil measured convolutions into `cost/calibration/compute/conv/<device>.json`.

    FORETRAIN_TRUTH=<folder of the tables> python tools/distil_conv.py

The physical model of `foretrain.cost.compute.conv` times every measured shape; what is left in log time is fitted:
factors by kind and phase (V100, WideResNet), a factor by FLOPs, and for 3x3 kernels a quadratic with hinges in
channels, pixels and image side (NeuSight). Matrix units have no per-kernel measurements at hand: their one share
per architecture is set from published ResNet-50 training throughput (`TENSOR`).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache

import numpy as np
from conv_rows import FOLDER, ROOT, Convolution, convolutions

from foretrain.arrays import Floats
from foretrain.cluster.catalog import devices
from foretrain.cost.calibration.efficiencies import Tile
from foretrain.cost.compute.conv import Constants, Window, base_seconds, features, kinds
from foretrain.cost.compute.tiles import Units
from foretrain.model.ops.base import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT

TARGET = ROOT / "src" / "foretrain" / "cost" / "calibration" / "compute" / "conv"
DATE = "2026-11-15"
PHASES = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT)
TILES = (Tile(128, 128, 1.0), Tile(128, 64, 0.95), Tile(64, 64, 0.85), Tile(32, 32, 0.6))
FP32 = Constants(0.95, 0.78, 32.0, TILES, (1, 2, 8), 1, 0.15, True)
LEAD = 0.5  # of a device's shortest call: the part that passes before the kernel starts
PROFILER_LEAD = 1.2e-5
FLOOR = 1.6  # readings nearer to a device's shortest time say little
FLOPS = np.arange(30.0, 37.5, 1.0)
STEEPEST = 0.5  # fall of the log factor per doubling: twice the work takes longer
REPEATED = 4  # times a profiled 3x3 counts as much as an eager one where both are fitted
PLAIN = {"p4": (5.5e12, 192e9, 20)}  # measured boards that the catalog does not hold
RIDGE = 0.02
SAME_CHIP = {"v100-pcie-32gb": "v100-sxm2-32gb", "a100-pcie-80gb": "a100-sxm4-80gb"}
"""Board measured -> the board whose name the table bears: shares of peak are the chip's."""
NEUSIGHT = (
    "NeuSight convolution latencies (Lee et al., ASPLOS 2025), FP32 eager forward, 3x3 stride 1"
)
PROFILER = "WideResNet op profiles of Aceso (EuroSys 2024), V100 FP32, forward and backward"


@dataclass(frozen=True)
class Board:
    name: str
    peak: float
    bandwidth: float
    count: int

    @property
    def units(self) -> Units:
        return Units(self.count, self.peak * FP32.rate, self.bandwidth * FP32.stream, FP32.fill)


def board(name: str) -> Board:
    if name in PLAIN:
        return Board(name, *PLAIN[name])
    device = devices()[name]
    return Board(name, device.required_peak("fp32"), device.memory_bandwidth, device.compute_units or 100)  # fmt: skip


def shapes(rows: Sequence[Convolution]) -> Floats:
    return np.array([row.shape for row in rows], dtype=np.float64)


def flops(shape: Floats) -> Floats:
    found: Floats = 2.0 * shape[:, :7].prod(axis=1)
    return found


def traffic(shape: Floats, on: Board) -> Floats:
    """Seconds of reading and writing once, in FP32."""
    batch, channels, filters, height, width, kernel_h, kernel_w, stride, _ = shape.T
    given = batch * height * width * stride**2 * channels
    total = given + batch * height * width * filters + channels * filters * kernel_h * kernel_w
    return 4.0 * total / (on.bandwidth * FP32.stream)


def log_base(rows: Sequence[Convolution], on: Board) -> Floats:
    """log of what the physical model says; backward readings hold both gradients."""
    shape = shapes(rows)
    least = traffic(shape, on)
    forward = np.maximum(base_seconds(shape, FORWARD, on.units, FP32), least)
    both = np.maximum(base_seconds(shape, WEIGHT_GRADIENT, on.units, FP32), least)
    data = np.maximum(base_seconds(shape, INPUT_GRADIENT, on.units, FP32), least)
    both = both + np.where(shape[:, 1] > 4, data, 0.0)  # images need no gradient
    is_forward = np.array([row.phase == "forward" for row in rows])
    return np.log(np.where(is_forward, forward, both))


@cache
def leads() -> dict[str, float]:
    """Seconds before a kernel starts after the benchmark's first event, by device."""
    shortest: dict[str, float] = {}
    for row in convolutions():
        if row.source == "neusight":
            shortest[row.device] = min(shortest.get(row.device, 1.0), row.seconds)
    return {name: LEAD * seconds for name, seconds in shortest.items()}


def lead(rows: Sequence[Convolution]) -> Floats:
    return np.array([leads()[r.device] if r.source == "neusight" else PROFILER_LEAD for r in rows])


def log_seconds(rows: Sequence[Convolution]) -> Floats:
    seconds = np.array([row.seconds for row in rows])
    return np.log(np.maximum(seconds - lead(rows), 0.3 * seconds))


def robust(columns: Floats, values: Floats, ridge: float = RIDGE) -> Floats:
    """Least absolute deviations by reweighting, lightly held to zero."""
    weight = np.ones(len(values))
    held = ridge * np.eye(columns.shape[1])
    for _ in range(20):
        scaled = columns * weight[:, None]
        found = np.linalg.solve(scaled.T @ columns + held, scaled.T @ values)
        weight = 1.0 / np.maximum(np.abs(columns @ found - values), 0.03)
    return np.asarray(found)


def left_over(rows: Sequence[Convolution], on: Board) -> Floats:
    """log of measured over physical; profiled rows are the SXM board's."""
    if not rows:
        return np.zeros(0)
    return log_seconds(rows) - log_base(rows, on)


def fit_window(rows: Sequence[Convolution], on: Board, profiled: Sequence[Convolution]) -> Window:
    more = [r for r in profiled if r.phase == "forward" and r.shape[5] == 3 and r.shape[7] == 1]
    more = more * REPEATED
    points = features(shapes([*rows, *more]), FORWARD)
    low, high = np.quantile(points, [0.01, 0.99], axis=0)
    hinges = np.quantile(points, [0.1, 0.25, 0.5, 0.75, 0.9], axis=0).T
    empty = Window(low, high, hinges, np.zeros(0))
    left = np.concatenate([left_over(rows, on), left_over(more, board("v100-sxm2-32gb"))])
    return Window(low, high, hinges, robust(empty.terms(points), left))


def fit_small(rows: Sequence[Convolution], on: Board) -> Floats:
    """log factor by log2 of FLOPs, falling towards none where convolutions are large."""
    left = log_seconds(rows) - log_base(rows, on)
    at = np.log2(flops(shapes(rows)))
    hats = np.stack([np.interp(at, FLOPS, row) for row in np.eye(len(FLOPS))], axis=1)
    found = robust(hats, left, 1.0)
    found = np.minimum.accumulate(np.maximum(found - found[-1], 0.0))
    for index in range(len(found) - 2, -1, -1):
        found[index] = min(found[index], found[index + 1] + STEEPEST)
    return found


def fit_factors(
    rows: Sequence[Convolution], on: Board, small: Floats
) -> dict[str, dict[str, float]]:
    """Medians by kind and phase; both gradients share one."""
    shape = shapes(rows)
    left = log_seconds(rows) - log_base(rows, on)
    left -= np.interp(np.log2(flops(shape)), FLOPS, small)
    kind = kinds(shape)
    phase = np.array([row.phase for row in rows])
    found = {}
    for name in ("1x1", "3x3", "strided", "stem"):
        forward, backward = (
            float(np.exp(np.median(left[(kind == name) & (phase == which)])))
            for which in ("forward", "backward")
        )
        found[name] = dict(zip(PHASES, (forward, backward, backward), strict=True))
    found["other"] = found["1x1"]
    found["depthwise"] = dict.fromkeys(PHASES, 1.0)
    return found


@dataclass(frozen=True)
class Fit:
    on: Board
    window: Window
    small: Floats
    factors: dict[str, dict[str, float]]

    def log_seconds(self, rows: Sequence[Convolution]) -> Floats:
        shape = shapes(rows)
        kind = kinds(shape)
        found = log_base(rows, self.on)
        is_forward = np.array([row.phase == "forward" for row in rows])
        is_window = (kind == "3x3") & is_forward
        small = np.interp(np.log2(flops(shape)), FLOPS, self.small)
        factor = np.log([self.factors[k][FORWARD if f else WEIGHT_GRADIENT] for k, f in zip(kind, is_forward, strict=True)])  # fmt: skip
        found += np.where(is_window, self.window.at(features(shape, FORWARD)), factor + small)
        return found


def fit(name: str, eager: Sequence[Convolution], profiled: Sequence[Convolution]) -> Fit:
    """`profiled` are the V100's: other devices borrow its factors by kind and phase."""
    v100, on = board("v100-sxm2-32gb"), board(name)
    small = fit_small(eager, on)
    factors = fit_factors(profiled, v100, small if "v100" in name else np.zeros(len(FLOPS)))
    window = fit_window(eager, on, profiled if "v100" in name else ())
    return Fit(on, window, small, factors)


def by_source() -> tuple[dict[str, list[Convolution]], list[Convolution]]:
    eager: dict[str, list[Convolution]] = {}
    profiled = []
    for row in convolutions():
        if row.source == "neusight":
            eager.setdefault(row.device, []).append(row)
        else:
            profiled.append(row)
    kept = {
        name: [r for r in rows if r.seconds > FLOOR * min(q.seconds for q in rows)]
        for name, rows in eager.items()
    }
    return kept, profiled


# --- the held-apart half ------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    device: str
    what: str
    errors: Floats
    rows: list[Convolution]


def scored() -> list[Score]:
    eager, profiled = by_source()
    half = [row for row in profiled if row.is_fitted]
    found = []
    for name, rows in sorted(eager.items()):
        made = fit(name, [row for row in rows if row.is_fitted], half)
        apart = [row for row in rows if not row.is_fitted]
        found.append(_score(name, "3x3 forward", made, apart))
        if "v100" in name:
            for phase in ("forward", "backward"):
                others = [r for r in profiled if not r.is_fitted and r.phase == phase]
                sxm = Fit(board("v100-sxm2-32gb"), made.window, made.small, made.factors)
                found.append(_score("v100-sxm2-32gb", f"WideResNet {phase}", sxm, others))
    return found


def _score(name: str, what: str, made: Fit, apart: list[Convolution]) -> Score:
    said = np.exp(made.log_seconds(apart)) + lead(apart)
    errors = np.abs(said / np.array([row.seconds for row in apart]) - 1.0)
    return Score(name, what, errors, apart)


# --- matrix units -------------------------------------------------------------------------------

TENSOR = {
    "v100-sxm2-32gb": {"tensor": (0.55, 0.80, 64.0, 8)},
    "a100-sxm4-80gb": {"tensor": (0.55, 0.80, 96.0, 8), "tf32": (0.295, 0.80, 64.0, 4)},
}
"""Device -> number format -> share of peak, share of bandwidth, fill, channel alignment."""
TENSOR_SOURCE = (
    "share of peak set on whole ResNet-50 steps of the fitted half alone, log error zero: A100 16-bit on one DeepLearningExamples "
    "run (1 GPU, 2,470 images/s), tf32 on one (8 GPUs, 7,248 images/s), V100 on two of DLPerf (1 GPU, 1,394 and 887 images/s); "
    "no kernel was measured"
)


def tensor(rate: float, stream: float, fill: float, align: int) -> dict[str, object]:
    constants = Constants(rate, stream, fill, TILES, (1, 2, 8), align, 0.15, False)
    return {
        "source": TENSOR_SOURCE,
        "constants": _constants(constants),
        "factors": {kind: dict.fromkeys(PHASES, 1.0) for kind in ("other", "depthwise")},
        "small": {"log2_flops": [28.0, 36.0], "log_factor": [0.0, 0.0]},
        "measured": [],
        "spread": 0.2,
        "start_seconds": 2e-6,
    }


# --- writing ------------------------------------------------------------------------------------


def _constants(given: Constants) -> dict[str, object]:
    found = asdict(given)
    found["tiles"] = [[t.rows, t.columns, t.rate] for t in given.tiles]
    found["splits"] = list(given.splits)
    return found


def _short(values: Floats) -> list[object]:
    return np.round(values, 4).tolist()


def fp32(made: Fit, rows: Sequence[Convolution], is_v100: bool) -> dict[str, object]:
    off = made.log_seconds(rows) - log_seconds(rows)
    measured = [("3x3", FORWARD)]
    if is_v100:
        measured = [(k, p) for k in ("1x1", "3x3", "strided", "stem") for p in PHASES]
    window = made.window
    factors = {k: {p: round(v, 4) for p, v in row.items()} for k, row in made.factors.items()}
    factors["3x3"][FORWARD] = factors["3x3"][INPUT_GRADIENT] = 1.0  # the window says it
    return {
        "source": f"{NEUSIGHT}; {PROFILER}" + ("" if is_v100 else " (borrowed by kind and phase)"),
        "constants": _constants(FP32),
        "factors": factors,
        "small": {"log2_flops": FLOPS.tolist(), "log_factor": _short(made.small)},
        "window": {
            "low": _short(window.low),
            "high": _short(window.high),
            "hinges": _short(window.hinges),
            "weights": _short(window.weights),
        },
        "measured": measured,
        "readings": len(rows),
        "spread": round(float(np.abs(off).mean() * 1.25), 3),
        "start_seconds": 3e-6,
    }


def documents() -> dict[str, dict[str, object]]:
    eager, profiled = by_source()
    found: dict[str, dict[str, object]] = {}
    for name, rows in sorted(eager.items()):
        is_v100 = "v100" in name
        stored = SAME_CHIP.get(name, name)
        found[stored] = {
            "about": "Written by tools/distil_conv.py, do not edit.",
            "method": "quicker of implicit GEMM and Winograd, times a fitted correction",
            "date": DATE,
            "fp32": fp32(fit(name, rows, profiled), rows, is_v100),
        }
        for form, given in TENSOR.get(stored, {}).items():
            found[stored][form] = tensor(*given)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.parse_args()
    if not FOLDER.is_dir():
        parser.error(f"no measurements in {FOLDER}; name their folder in FORETRAIN_TRUTH")
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, data in documents().items():
        path = TARGET / f"{name}.json"
        path.write_text(json.dumps(data, indent=None, separators=(",", ":")) + "\n", "utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
