"""Distils measured attention kernels into `cost/calibration/compute/attention/<device>.json`.

    python tools/distil_attention.py            (sources: see attention_rows.py)

Forward of the kernel a device's table was taken with: thousands of prefills, which also write keys and values to
a cache; the model of `cost/compute/attention.py` plus that traffic is fitted to them, then a smooth grid to what
is left. Other kernels and backward: the same model without a grid, fitted to charts and cited points, in which
boards with the same chip count together. What nobody measured (a head size, backward on Ada) takes the ratio of
its nearest kin, and says so.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from attention_rows import (
    FEWEST_WAVES,
    ROOT,
    SYSTEMS,
    Row,
    cache_bytes,
    charts,
    points,
    shapes,
    table,
    tables_folder,
)
from scipy.optimize import least_squares

from foretrain.arrays import Floats
from foretrain.cluster.catalog import devices
from foretrain.cost.compute.attention import PRODUCTS, ROWS, AttentionGrid, Speed, seconds
from foretrain.cost.compute.base import Hardware

TARGET = ROOT / "src" / "foretrain" / "cost" / "calibration" / "compute" / "attention"
DATE = "2026-11-15"
START = {"forward": 3e-6, "backward": 8e-6}  # one launch; three with the passes before and after
MEMORY = 0.85
TAIL = 0.5
STIFF = 0.3  # how much a bend of the grid counts against it, in readings
WAVES = np.arange(-1.0, 9.0)
KEYS = np.arange(8.0, 14.5)
SAME_CHIP = {
    "a100-sxm4-80gb": ("a100-sxm4-80gb",),
    "h100-sxm5-80gb": ("h100-sxm5-80gb", "h200-sxm5-141gb"),
    "h200-sxm5-141gb": ("h100-sxm5-80gb", "h200-sxm5-141gb"),
    "b200-sxm": ("b200-sxm",),  # its points and GB200's are a year of cuDNN apart
    "gb200-nvl72": ("gb200-nvl72",),
    "b300-sxm": ("gb300-nvl72",),
    "gb300-nvl72": ("gb300-nvl72",),
    "l40s": (),
}
HEADS = (64, 128, 192, 256)
RATIO = {64: 0.88, 192: 1.0, 256: 0.90}
"""Rate by head size against 128 where neither the device nor its kin was measured: FlashAttention-2 on H100."""
BACKWARD = 0.70
"""Rate of backward against forward where it was not measured: FlashAttention-2 on an RTX 4090, 0.66 with and 0.74
without a mask (apache/tvm, tl_doc/flash_perf.md)."""
FAR_FROM_MEASURED = 0.12


@dataclass(frozen=True)
class Fitted:
    """A speed, what a harness adds to it, and how well both say what was measured."""

    speed: Speed
    call: float = 0.0  # seconds a call takes besides
    cache: float = 0.0  # share of bandwidth at which it writes the cache; 0: it writes none


def hardware(device: str) -> Hardware:
    found = devices()[device]
    return Hardware(
        float(found.compute_units or 1), found.required_peak("bf16"), found.memory_bandwidth
    )


def predicted(fitted: Fitted, rows: Sequence[Row], direction: str = "forward") -> Floats:
    """Seconds of rows, with the harness they were measured in."""
    total = np.zeros(len(rows))
    for device in sorted({row.device for row in rows}):
        mine = [index for index, row in enumerate(rows) if row.device == device]
        chosen = [rows[index] for index in mine]
        board = hardware(device)
        took = seconds(shapes(chosen, direction), fitted.speed, board, PRODUCTS[direction])
        if fitted.cache:
            took = took + fitted.call + cache_bytes(chosen) / (board.bandwidth * fitted.cache)
        total[mine] = took
    return total


def errors(found: Floats, rows: Sequence[Row]) -> Floats:
    logs: Floats = np.log(found / np.array([row.seconds for row in rows]))
    return logs


def sigmoid(x: float) -> float:
    return float(1.0 / (1.0 + np.exp(-x)))


def fit_table(rows: Sequence[Row]) -> Fitted:
    """The kernel of a table: model, cache traffic and grid."""
    heads = sorted({row.head_dim for row in rows})

    def made(x: Floats) -> Fitted:
        speed = Speed(
            START["forward"], float(np.exp(x[0])), sigmoid(x[1]), MEMORY,
            np.array(heads, dtype=np.float64), np.exp(x[4:]), 0.1, True,
        )  # fmt: skip
        return Fitted(speed, float(np.exp(x[2])), float(np.exp(x[3])))

    first = [np.log(200.0), 0.0, np.log(5e-6), np.log(0.7), *np.full(len(heads), np.log(0.55))]
    x = robust(lambda x: errors(predicted(made(x), rows), rows), np.array(first))
    fitted = made(x)
    grid = fit_grid(fitted, rows)
    return replace(fitted, speed=replace(fitted.speed, grid=grid))


def robust(off: Callable[[Floats], Floats], first: Floats) -> Floats:
    found = least_squares(off, first, loss="soft_l1", f_scale=0.1, diff_step=1e-4, bounds=(-20, 20))
    return np.asarray(found.x, dtype=np.float64)


def fit_grid(fitted: Fitted, rows: Sequence[Row]) -> AttentionGrid:
    """What the model leaves, head size by head size, on knots over waves and keys that bend little."""
    heads = np.array(sorted({row.head_dim for row in rows}), dtype=np.float64)
    log = np.zeros((len(heads), len(WAVES), len(KEYS)))
    for place, width in enumerate(heads):
        mine = [row for row in rows if row.head_dim == width]
        log[place] = _surface(fitted, mine)
    return AttentionGrid(heads, WAVES, KEYS, np.clip(log, -0.5, 0.5))


def _surface(fitted: Fitted, rows: Sequence[Row]) -> Floats:
    whole = predicted(fitted, rows)
    harness = fitted.call + fitted.speed.start
    harness = harness + cache_bytes(rows) / (hardware(rows[0].device).bandwidth * fitted.cache)
    inner = np.maximum(whole - harness, 1e-9)
    measured = np.array([row.seconds for row in rows])
    wanted = np.log(np.maximum(measured - harness, 0.3 * inner) / inner)
    weight = inner / whole  # of a reading that is mostly harness little can be said
    basis = _hats(rows)
    smooth = _bends() * STIFF
    system = np.vstack([basis * weight[:, None], smooth, 0.1 * np.eye(basis.shape[1])])
    right = np.concatenate([wanted * weight, np.zeros(len(system) - len(rows))])
    for _ in range(5):  # outliers count less
        off = np.abs(basis @ np.linalg.lstsq(system, right, rcond=None)[0] - wanted)
        scale = np.sqrt(1.0 / np.maximum(1.0, off / 0.1)) * weight
        system[: len(rows)] = basis * scale[:, None]
        right[: len(rows)] = wanted * scale
    solved = np.linalg.lstsq(system, right, rcond=None)[0]
    return np.asarray(solved).reshape(len(WAVES), len(KEYS))


def waves_of(row: Row) -> float:
    return row.batch * row.heads * np.ceil(row.seq / ROWS) / hardware(row.device).units


def _hats(rows: Sequence[Row]) -> Floats:
    """Bilinear weights of every knot for every row."""
    waves = _hat(WAVES, np.log2([waves_of(row) for row in rows]))
    keys = _hat(KEYS, np.log2([row.seq for row in rows]))
    return np.einsum("ij,ik->ijk", waves, keys).reshape(len(rows), -1)


def _hat(knots: Floats, at: Floats) -> Floats:
    near = np.clip(at, knots[0], knots[-1])[:, None] - knots[None, :]
    return np.maximum(0.0, 1.0 - np.abs(near))


def _bends() -> Floats:
    """Second differences along both axes."""
    bends = []
    for axis, count in ((0, len(WAVES)), (1, len(KEYS))):
        for middle in range(1, count - 1):
            line = np.zeros(count)
            line[middle - 1 : middle + 2] = 1.0, -2.0, 1.0
            other = len(KEYS) if axis == 0 else len(WAVES)
            for along in range(other):
                bend = np.zeros((len(WAVES), len(KEYS)))
                if axis == 0:
                    bend[:, along] = line
                else:
                    bend[along, :] = line
                bends.append(bend.ravel())
    return np.array(bends)


def fit_points(rows: Sequence[Row], direction: str, forward: Speed | None = None) -> Speed:
    """A kernel known from few points; those of both directions together lean on `forward`."""
    heads = sorted({row.head_dim for row in rows})

    def made(x: Floats) -> Speed:
        return Speed(
            START[direction], float(np.exp(x[0])), TAIL, MEMORY,
            np.array(heads, dtype=np.float64), np.exp(x[1:]), 0.1, True,
        )  # fmt: skip

    def off(x: Floats) -> Floats:
        left = errors(both(made(x), forward, rows, direction), rows)
        return np.append(left, 0.2 * (x[0] - np.log(250.0)))

    first = np.array([np.log(250.0), *np.full(len(heads), np.log(0.5))])
    return made(robust(off, first))


def both(speed: Speed, forward: Speed | None, rows: Sequence[Row], direction: str) -> Floats:
    """Seconds of rows in `direction`, and of forward besides where they hold both."""
    total = predicted(Fitted(speed), rows, direction)
    joint = [index for index, row in enumerate(rows) if row.direction == "both"]
    if joint:
        assert forward is not None
        total[joint] += predicted(Fitted(forward), [rows[index] for index in joint])
    return total


def filled(speed: Speed, like: Speed | None) -> Speed:
    """The speed with a rate for every head size, from the kin's ratio where it has none of its own."""
    rates = []
    for width in HEADS:
        if width in speed.heads:
            rates.append(float(speed.rates[list(speed.heads).index(width)]))
            continue
        of_128 = float(np.interp(np.log2(128), np.log2(speed.heads), speed.rates))
        known = like is not None and width in like.heads and 128 in like.heads
        ratio = _ratio(like, width) if known and like is not None else RATIO[width]
        rates.append(of_128 * ratio)
    return replace(speed, heads=np.array(HEADS, dtype=np.float64), rates=np.array(rates))


def _ratio(like: Speed, width: int) -> float:
    at = list(like.heads)
    return float(like.rates[at.index(width)] / like.rates[at.index(128)])


@dataclass(frozen=True)
class Sources:
    """All measurements: tables by device, and charts with points."""

    tables: Mapping[str, Sequence[Row]]
    cited: Sequence[Row]

    def half(self) -> Sources:
        """The half that scoring fits on."""
        tables = {device: [r for r in rows if r.is_fitted] for device, rows in self.tables.items()}
        return Sources(tables, [row for row in self.cited if row.is_fitted])

    def known(self, device: str, kernel: str, *directions: str) -> list[Row]:
        return [
            row
            for row in self.cited
            if row.device in SAME_CHIP[device]
            and row.kernel == kernel
            and row.direction in directions
            and row.visible >= 0.5
        ]


def read_sources() -> Sources:
    folder = tables_folder()
    if folder is None:
        raise SystemExit(
            "aiconfigurator-core is not installed and FORETRAIN_AICONFIGURATOR is not set."
        )
    tables = {}
    for device in SYSTEMS:
        rows = table(folder, device)
        tables[device] = [row for row in rows if waves_of(row) >= FEWEST_WAVES]
    return Sources(tables, [*charts(), *points()])


def fit_device(device: str, sources: Sources) -> tuple[dict[str, dict[str, Speed]], Fitted]:
    """Speeds of every implementation in both directions, and the table's fit with its harness."""
    fitted = fit_table(sources.tables[device])
    of_table = filled(fitted.speed, None)
    main = "flash3" if device.startswith(("h100", "h200")) else "flash"
    speeds: dict[str, dict[str, Speed]] = {main: {"forward": of_table}}
    for kernel in ("flash", "cudnn"):
        rows = sources.known(device, kernel, "forward")
        if kernel not in speeds and rows:
            speeds[kernel] = {"forward": filled(fit_points(rows, "forward"), of_table)}
    for kernel in sorted(speeds):  # cuDNN first: of its backward most head sizes were measured
        like = speeds.get("cudnn", {}).get("backward", speeds[kernel]["forward"])
        speeds[kernel]["backward"] = fit_backward(
            device, kernel, speeds[kernel]["forward"], like, sources
        )
    return speeds, fitted


def fit_backward(device: str, kernel: str, forward: Speed, like: Speed, sources: Sources) -> Speed:
    """Backward of a kernel, or what stands in its place."""
    rows = sources.known(device, kernel, "backward", "both")
    if not rows and kernel == "flash":
        # Blackwell: FlashAttention-4 and cuDNN go backward alike (cudnn-frontend, GB200 and GB300)
        rows = sources.known(device, "cudnn", "backward")
    if rows:
        return filled(fit_points(rows, "backward", forward), like)
    slower = forward.rates * BACKWARD
    return replace(forward, start=START["backward"], rates=slower, grid=None, is_measured=False)


def with_spreads(device: str, speeds: dict[str, dict[str, Speed]], sources: Sources) -> None:
    """Each speed's spread: how far its own points are off, and not less than a floor."""
    for kernel, both_ways in speeds.items():
        for direction, speed in both_ways.items():
            rows = sources.known(device, kernel, direction)
            off = errors(predicted(Fitted(speed), rows, direction), rows) if rows else np.array([])
            if speed.grid is not None:
                spread = 0.05
            elif len(off):
                spread = max(0.04, float(np.sqrt(np.mean(off**2))))
            else:
                spread = FAR_FROM_MEASURED
            both_ways[direction] = replace(speed, spread=round(spread, 3))


def document(device: str, speeds: Mapping[str, Mapping[str, Speed]], count: int) -> dict[str, Any]:
    return {
        "device": device,
        "source": f"aiconfigurator-core 0.12.0 ({count} prefills of {SYSTEMS[device]}, sglang); "
        "FlashAttention benchmark charts; points cited in tools/attention_points.yaml",
        "method": "tools/distil_attention.py: blocks of queries on compute units, fitted in log time, "
        "grid over waves and keys; head sizes and directions nobody measured by the ratio of kin",
        "date": DATE,
        "implementations": {
            kernel: {direction: _plain(speed) for direction, speed in both_ways.items()}
            for kernel, both_ways in speeds.items()
        },
    }


def _plain(speed: Speed) -> dict[str, Any]:
    plain = {
        "start": speed.start,
        "overhead": round(speed.overhead, 1),
        "tail": round(speed.tail, 3),
        "memory": speed.memory,
        "heads": [int(width) for width in speed.heads],
        "rates": [round(float(rate), 4) for rate in speed.rates],
        "spread": speed.spread,
        "measured": speed.is_measured,
    }
    if speed.grid is not None:
        plain["grid"] = {
            "heads": [int(width) for width in speed.grid.heads],
            "waves": [float(knot) for knot in speed.grid.waves],
            "keys": [float(knot) for knot in speed.grid.keys],
            "log": np.round(speed.grid.log, 3).tolist(),
        }
    return plain


def main() -> None:
    argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "").parse_args()
    sources = read_sources()
    TARGET.mkdir(parents=True, exist_ok=True)
    for device in SYSTEMS:
        speeds, _ = fit_device(device, sources)
        with_spreads(device, speeds, sources)
        text = json.dumps(document(device, speeds, len(sources.tables[device])))
        Path(TARGET / f"{device}.json").write_text(text + "\n")
        print(f"{device}: {', '.join(speeds)}; {len(text) / 1000:.1f} kB")


if __name__ == "__main__":
    main()
