"""Distil measured streaming kernels into `cost/calibration/compute/memory/<device>.json`.

    FORETRAIN_TRUTH=<folder of the tables> python tools/distil_streaming.py

Model of a reading: the longer of the way of measuring's shortest time and its lead plus the kernel, where the
kernel takes its bytes at a share of the data-sheet bandwidth that depends on how many there are (a small
tensor may still be in the cache, a short kernel does not fill the device). Leads and shortest times are the
benchmark's own and are not shipped: in training a kernel is preceded by another one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares
from streaming_rows import FOLDER, ROOT, Reading, readings

from foretrain.arrays import Floats
from foretrain.cluster.catalog import devices

TARGET = ROOT / "src" / "foretrain" / "cost" / "calibration" / "compute" / "memory"
DATE = "2026-11-15"
BANDWIDTH = {"p4": 192e9}  # measured boards that the catalog does not hold
KNOTS = np.arange(24.0, 32.5, 1.0)  # log2 of bytes moved
ROWS = np.arange(10.0, 16.5, 1.0)  # log2 of the bytes of a reduced row
ABOVE_FLOOR = 1.3  # readings nearer to the shortest time say little about the kernel
MOST = 400  # readings of a group that are fitted
LEADS = {"neusight": (1.5e-5, 0.7), "model": (7.5e-6, 0.1), "profiler": (1.2e-5, 0.7)}
"""By source what to expect of its lead in seconds, and how far off in log that may be: NeuSight's calls without a
kernel (`size`, `getitem`) take 7 to 9 us inside models."""
STIFF = 0.4  # how much a bend of a curve counts against it, in spreads per log2
STREAM = 0.85  # share of bandwidth taken for what streams beside a norm
OP_SPREAD = 0.05  # between ops that move the same bytes: random numbers, transcendental functions
START = {
    "v100-sxm2-32gb": (
        2.0e-6,
        "profile of DLRM (Lin et al.): ReLU kernels of 2 to 17 MB 1.2 to 3.7 us over their traffic, SGD updates of small tensors 2.9",
    ),
    "": (2.0e-6, "assumed to be the V100's"),
}
SOURCES = (
    "NeuSight kernel latencies (Lee et al., ASPLOS 2025), FP32 eager; per-op profiles of Aceso (EuroSys 2024) and "
    "Mist (EuroSys 2025), 16-bit GPT and FP32 WideResNet ops"
)


def bandwidth(device: str) -> float:
    return BANDWIDTH.get(device) or devices()[device].memory_bandwidth


@dataclass(frozen=True)
class Harness:
    """What measuring adds, by group."""

    floor: Mapping[str, float]
    lead: Mapping[str, float]  # by source

    def over(self, readings: Sequence[Reading]) -> tuple[Floats, Floats]:
        floor = np.array([self.floor.get(r.group, 0.0) for r in readings])
        lead = [self.lead.get(source(r), LEADS[source(r)][0]) for r in readings]
        return floor, np.array(lead)


def source(reading: Reading) -> str:
    return reading.group.split()[0]


@dataclass(frozen=True)
class Stream:
    shares: Floats  # at KNOTS
    harness: Harness

    def kernel(self, readings: Sequence[Reading], rate: float) -> Floats:
        moved = np.array([r.moved for r in readings])
        return moved / (rate * np.interp(np.log2(moved), KNOTS, self.shares))


def floors(rows: Sequence[Reading]) -> dict[str, float]:
    """Per group the shortest tenth's upper end: what a call takes whatever it does."""
    found: dict[str, float] = {}
    for group in sorted({r.group for r in rows}):
        times = np.sort([r.seconds for r in rows if r.group == group])
        is_swept = group.startswith("neusight") and times[-1] > 5 * times[0]
        found[group] = float(times[len(times) // 20]) if is_swept else float(times[0] * 0.5)
    return found


def thinned(rows: Sequence[Reading]) -> list[Reading]:
    """At most MOST of every group, evenly over the sizes."""
    kept: list[Reading] = []
    for group in sorted({r.group for r in rows}):
        mine = sorted((r for r in rows if r.group == group), key=lambda r: (r.moved, r.key))
        step = max(1, len(mine) // MOST)
        kept += mine[::step]
    return kept


def fit_stream(rows: Sequence[Reading], rate: float) -> Stream:
    """Shares at the knots and the leads of the sources, robust in log time; every group weighs the same."""
    floor = floors(rows)
    used = thinned([r for r in rows if r.seconds > ABOVE_FLOOR * floor[r.group]])
    names = sorted({source(r) for r in used})
    counts = {g: sum(r.group == g for r in used) for g in floor}
    weight = np.sqrt(np.array([100.0 / counts[r.group] for r in used]))
    at = np.array([names.index(source(r)) for r in used])
    moved = np.array([r.moved for r in used])
    log_time = np.log([r.seconds for r in used])
    stiff = STIFF / 0.05 * 0.1 * np.sqrt(max(len(used), 1000))
    lead, tightness = np.array([LEADS[name] for name in names]).T
    first = np.concatenate([np.full(len(KNOTS), np.log(0.8)), np.log(lead)])

    def off(values: Floats) -> Floats:
        shares, leads = values[: len(KNOTS)], np.exp(values[len(KNOTS) :])
        kernel = moved / (rate * np.exp(np.interp(np.log2(moved), KNOTS, shares)))
        misses = weight * (np.log(leads[at] + kernel) - log_time) / 0.05
        bends = np.diff(shares, 2) * stiff
        ties = (values[len(KNOTS) :] - first[len(KNOTS) :]) / tightness
        return np.concatenate([misses, bends, ties])

    found = least_squares(off, first, loss="soft_l1").x
    shares = np.minimum(np.exp(found[: len(KNOTS)]), 0.97)
    leads = dict(zip(names, np.exp(found[len(KNOTS) :]).tolist(), strict=True))
    return Stream(shares, Harness(floor, {s: leads.get(s, LEADS[s][0]) for s in map(source, rows)}))


def norm_leads(rows: Sequence[Reading], harness: Harness, rate: float) -> Floats:
    """A norm's call prepares more than an element-wise one: its lead grows as its shortest time does."""
    mean = np.mean([t for g, t in harness.floor.items() if g.startswith("neusight")] or [1.0])
    own = floors(rows)
    grown = {g: max(own[g] / mean, 1.0) if g.startswith("neusight") else 1.0 for g in own}
    lead = [harness.lead.get(source(r), LEADS[source(r)][0]) * grown[r.group] for r in rows]
    return np.array(lead) + np.array([r.beside for r in rows]) / rate


def fit_norm(rows: Sequence[Reading], harness: Harness, rate: float) -> Floats | None:
    """Shares of row-wise normalisation by the bytes of a row; None without readings."""
    floor = floors(rows)
    used = thinned([r for r in rows if r.seconds > 2.0 * max(floor[r.group], 2e-5)])
    if len(used) < 5:
        return None
    counts = {g: sum(r.group == g for r in used) for g in floor}
    weight = np.sqrt(np.array([100.0 / counts[r.group] for r in used]))
    ideal = np.log([r.moved / rate for r in used])
    width = np.log2([r.row for r in used])
    seconds = np.array([r.seconds for r in used])
    net = np.log(np.maximum(seconds - norm_leads(used, harness, STREAM * rate), 0.2 * seconds))

    def off(shares: Floats) -> Floats:
        misses = weight * (ideal - np.interp(width, ROWS, shares) - net) / 0.1
        return np.concatenate([misses, np.diff(shares) * np.sqrt(len(used)) * 0.7])

    found = least_squares(off, np.full(len(ROWS), np.log(0.6)), loss="soft_l1").x
    return np.minimum(np.exp(found), 0.97)


@dataclass(frozen=True)
class Table:
    """What is shipped of a device, and the harness its readings were taken with."""

    stream: Stream
    forward: Floats
    backward: Floats
    is_backward_measured: bool


def fit(device: str, rows: Sequence[Reading]) -> Table:
    rate = bandwidth(device)
    stream = fit_stream([r for r in rows if not r.row], rate)
    norms = [r for r in rows if r.row]
    forward = fit_norm([r for r in norms if r.phase == "forward"], stream.harness, rate)
    backward = fit_norm([r for r in norms if r.phase == "backward"], stream.harness, rate)
    if forward is None:
        forward = np.full(len(ROWS), 0.65 * stream.shares[-3])
    # five passes where the model's kernels count three (weights' gradients read input and gradient again),
    # and column sums beside them: the median of the four devices measured both ways
    is_own = backward is not None
    return Table(stream, forward, backward if backward is not None else 0.55 * forward, is_own)


def norm_kernel(table: Table, rows: Sequence[Reading], rate: float) -> Floats:
    both = {"forward": table.forward, "backward": table.backward}
    share = np.array([np.interp(np.log2(r.row), ROWS, both[r.phase]) for r in rows])
    return np.array([r.moved for r in rows]) / (rate * share)


def by_device() -> dict[str, list[Reading]]:
    found: dict[str, list[Reading]] = {}
    for reading in readings():
        found.setdefault(reading.device, []).append(reading)
    return dict(sorted(found.items()))


# --- the held-apart half ------------------------------------------------------------------------


@dataclass(frozen=True)
class Score:
    device: str
    what: str
    errors: Floats
    baseline: Floats  # the plain roofline under the same harness


def scored(device: str, rows: Sequence[Reading], roofline_share: float) -> list[Score]:
    """Errors on the half that was not fitted, readings well above the shortest time."""
    table = fit(device, [r for r in rows if r.is_fitted])
    rate, harness = bandwidth(device), table.stream.harness
    found = []
    for what, is_norm in (("streaming", False), ("layer norm", True)):
        floor = floors([r for r in rows if bool(r.row) == is_norm])
        apart = [
            r for r in rows
            if bool(r.row) == is_norm and not r.is_fitted and r.seconds > ABOVE_FLOOR * floor[r.group]
        ]  # fmt: skip
        if len(apart) < 5:
            continue
        lead = norm_leads(apart, harness, STREAM * rate) if is_norm else harness.over(apart)[1]
        least = np.array([floor[r.group] for r in apart])
        kernel = norm_kernel(table, apart, rate) if is_norm else table.stream.kernel(apart, rate)
        plain = np.array([r.moved for r in apart]) / (rate * roofline_share)
        times = np.array([r.seconds for r in apart])
        errors = np.abs(np.maximum(least, lead + kernel) / times - 1.0)
        base = np.abs(np.maximum(least, lead + plain) / times - 1.0)
        found.append(Score(device, what, errors, base))
    return found


# --- writing ------------------------------------------------------------------------------------


def document(device: str, rows: Sequence[Reading]) -> dict[str, object]:
    table = fit(device, rows)
    rate, harness = bandwidth(device), table.stream.harness
    stream = [r for r in rows if not r.row and r.seconds > ABOVE_FLOOR * harness.floor[r.group]]
    floor, lead = harness.over(stream)
    said = np.maximum(floor, lead + table.stream.kernel(stream, rate))
    off = np.log(said / np.array([r.seconds for r in stream]))
    start, why = START.get(device, START[""])
    return {
        "about": "Written by tools/distil_streaming.py, do not edit.",
        "source": SOURCES,
        "method": "share of data-sheet bandwidth by bytes moved (streaming) and by bytes of a row (norms)",
        "date": DATE,
        "readings": len(stream),
        "start_seconds": start,
        "start_source": why,
        "log2_bytes": KNOTS.tolist(),
        "stream": _short(table.stream.shares),
        "log2_row_bytes": ROWS.tolist(),
        "norm_forward": _short(table.forward),
        "norm_backward": _short(table.backward),
        "is_norm_backward_measured": table.is_backward_measured,
        "spread": round(float(np.hypot(1.25 * np.abs(off).mean(), OP_SPREAD)), 3),
    }


def _short(values: Floats) -> list[float]:
    return [round(float(value), 4) for value in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.parse_args()
    if not FOLDER.is_dir():
        parser.error(f"no measurements in {FOLDER}; name their folder in FORETRAIN_TRUTH")
    TARGET.mkdir(parents=True, exist_ok=True)
    for device, rows in by_device().items():
        path = Path(TARGET / f"{device}.json")
        path.write_text(json.dumps(document(device, rows), indent=1) + "\n", encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
