"""Accuracy of communication costs: measured collectives against our curves and two usual models.

python bench/collectives.py [--report FILE]    default docs/communication-accuracy.md

Every method sees the same half of the sizes and is scored on the other half. The measurements are not part of
the project; see tools/distil_collectives.py for where they are looked for.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import distil_collectives as distil  # noqa: E402
from distil_collectives import Campaign, Point  # noqa: E402

from foretrain.analysis.uncertainty import scales  # noqa: E402
from foretrain.arrays import Floats  # noqa: E402
from foretrain.cost import curves  # noqa: E402
from foretrain.cost.curves import MeasuredCurve, share  # noqa: E402

METHODS = ("curves", "alpha-beta", "NCCL tuner")
MEAN_TARGET, P95_TARGET, GEOMEAN_TARGET = 0.03, 0.12, 0.02


@dataclass(frozen=True)
class Scored:
    """One held-out point and what each method says of it."""

    point: Point
    measured: float
    predicted: Mapping[str, float]

    def error(self, method: str) -> float:
        return abs(self.predicted[method] / self.measured - 1.0)


# --- the methods --------------------------------------------------------------------------------


def score(campaign: Campaign) -> list[Scored]:
    """Fit on one half of the sizes, predict the other."""
    half = distil.fitted_half(campaign)
    ours = {key: MeasuredCurve(*knots) for key, knots in distil.completed(campaign, half).items()}
    lines = {key: alpha_beta(campaign, [p for p in half if p[:3] == key]) for key in ours}
    held = sorted(set(campaign.medians) - set(half))
    return [
        Scored(
            point,
            campaign.medians[point],
            {
                "curves": float(ours[point[:3]].at(point[3])),
                "alpha-beta": lines[point[:3]](point[3]),
                "NCCL tuner": tuner(*point),
            },
        )
        for point in held
    ]


def alpha_beta(campaign: Campaign, points: list[Point]) -> Callable[[float], float]:
    """Hockney's latency + bytes / bandwidth, by least sum of |log ratio|: the fit this score favours."""
    from scipy.optimize import minimize

    sizes = np.array([size for _, _, _, size in points], dtype=np.float64)
    seen = np.log([campaign.medians[point] for point in points])

    def loss(log_values: Floats) -> float:
        alpha, beta = np.exp(log_values)
        return float(np.abs(np.log(alpha + sizes * beta) - seen).sum())

    start = [seen.min(), seen[-1] - np.log(sizes[-1])]
    alpha, beta = np.exp(minimize(loss, start, method="Nelder-Mead").x)
    return lambda size: float(alpha + size * beta)


@cache
def constants() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((distil.FOLDER / "nccl_tuning_constants.json").read_text())
    return found


# Device → row of the tuner's tables, GB/s that its rings see on a switched or PCIe node (links x the tuner's
# GB/s per link; PCIe as its 12 GB/s of gen 3, doubled per generation).
MACHINES = {
    "a100-sxm4-80gb": ("Ampere_or_AMD", 12 * 20.0),
    "h100-sxm5-80gb": ("Hopper", 18 * 20.6),
    "h200-sxm5-141gb": ("Hopper", 18 * 20.6),
    "b200-sxm": ("Blackwell", 18 * 40.1),
    "b300-sxm": ("Blackwell", 18 * 40.1),
    "gb200-nvl72": ("Blackwell", 18 * 40.1),
    "gb300-nvl72": ("Blackwell", 18 * 40.1),
    "l40s": ("Ampere_or_AMD", 24.0),
    "rtx-pro-6000": ("Blackwell", 48.0),
    "v100-sxm2-32gb": ("Volta_or_Intel", 0.0),
}


def _bandwidth(device: str, ranks: int) -> float:
    if device != "v100-sxm2-32gb":
        return MACHINES[device][1]
    from foretrain.cluster.catalog import meshes

    lanes = np.asarray(meshes()["cube-nvlink2"])[:ranks, :ranks]
    return float(lanes.sum(axis=1).min()) * 20.0


def tuner(device: str, ranks: int, collective: str, size: int) -> float:
    """Seconds by NCCL 2.30's src/graph/tuning.cc for one node: the least over algorithms and protocols."""
    data, (row, _) = constants(), MACHINES[device]
    bus = "PCI" if device in ("l40s", "rtx-pro-6000") else "NVLINK"
    base, hop = data["baseLatencies_us"], data["hwLatencies_us"][bus]
    bandwidth, ceiling = _bandwidth(device, ranks), data["llMaxBws"][row][0]
    part = share(collective, ranks)
    steps = {"all_reduce": 2 * (ranks - 1), "reduce": ranks, "broadcast": ranks}.get(collective, ranks - 1)  # fmt: skip
    if collective.startswith("all_to_all"):  # grouped sends, which the tuner does not rank
        return float((base[1][2] + hop[1][2]) * 1e-6 + part * size / (bandwidth * 1e9))
    rates = (min(ceiling, 0.5 * bandwidth), 0.92 * bandwidth, bandwidth)
    found = [
        (base[1][p] + steps * hop[1][p]) * 1e-6 + part * size / (rates[p] * 1e9) for p in range(3)
    ]
    if collective == "all_reduce":
        found += _trees(data, ranks, size, bandwidth, ceiling, hop)
        efficiency = data["nvlsEfficiency"].get(row, 0.0)
        if bus == "NVLINK" and efficiency:
            found.append(hop[4][2] * 1e-6 + part * size / (efficiency * bandwidth * 1e9))
    return float(min(found))


def _trees(
    data: dict[str, Any], ranks: int, size: int, bandwidth: float, ceiling: float, hop: Any
) -> list[float]:
    tree = 0.92 * bandwidth
    rates = (min(tree / 3.8, ceiling), tree * 7 / 9, tree)
    index = min(max(int(np.log2(max(size, 64) / 64)), 0), 22)
    found = []
    for p, protocol in enumerate(("LL", "LL128", "Simple")):
        rate = 0.5 * rates[p] * data["treeCorrectionFactor"][protocol][index]
        latency = data["baseLatencies_us"][0][p] + 2 * (ranks - 1) * hop[0][p]
        found.append(latency * 1e-6 + size / (rate * 1e9))
    return found


# --- figures ------------------------------------------------------------------------------------


def figures(scored: Iterable[Scored], method: str) -> tuple[float, float, float]:
    """Mean and 95th percentile of |predicted / measured - 1|, and exp(mean |log ratio|) - 1."""
    rows = list(scored)
    errors = np.array([row.error(method) for row in rows])
    logs = np.array([abs(np.log(row.predicted[method] / row.measured)) for row in rows])
    return float(errors.mean()), float(np.percentile(errors, 95)), float(np.exp(logs.mean()) - 1.0)


def table(scored: list[Scored]) -> list[str]:
    """Markdown: per device and collective, per device, NVLink and PCIe, total."""
    groups: dict[tuple[str, str], list[Scored]] = {}
    order = list(dict.fromkeys(row.point[0] for row in scored))
    for device in order:
        mine = [row for row in scored if row.point[0] == device]
        for collective in sorted({row.point[2] for row in mine}):
            groups[device, collective] = [row for row in mine if row.point[2] == collective]
        groups[device, "**all**"] = mine
    if len(order) > 1:
        for name, bus in (("NVLink", 0), ("PCIe", 1)):
            groups[f"**{name}**", "**all**"] = [r for r in scored if distil.BUS[r.point[0]] == bus]
        groups["**total**", "**all**"] = scored
    lines = [
        "| device | collective | points | " + " | ".join(f"{m} mean | p95" for m in METHODS) + " |",
        "|---|---|---:|" + "---:|---:|" * len(METHODS),
    ]
    for (device, collective), rows in groups.items():
        cells = " | ".join(
            f"{mean:.1%} | {p95:.1%}" for mean, p95, _ in (figures(rows, m) for m in METHODS)
        )
        lines.append(f"| {device} | {collective} | {len(rows)} | {cells} |")
    return lines


def reading_spread(campaign: Campaign) -> tuple[float, float]:
    """Mean and p95 of how far single readings lie from the median of their size, where there are several."""
    off = np.array([
        abs(campaign.medians[point] / reading - 1.0)
        for point, readings in campaign.readings.items()
        if len(readings) > 1
        for reading in readings
    ])  # fmt: skip
    return float(off.mean()), float(np.percentile(off, 95))


# Measurements by others on other machines, of which nothing was used: name in the file, device, ranks.
OTHERS = (
    ("A100-SXM (NVLink3)", "a100-sxm4-80gb", 8),
    ("H100-80GB (DGX H100)", "h100-sxm5-80gb", 8),
    ("H200-SXM (NVLink4)", "h200-sxm5-141gb", 8),
    ("B200-SXM (AWS p6-b200)", "b200-sxm", 8),
    ("GB200 NVL72 (1 rack, 72 GPUs)", "gb200-nvl72", 72),
)
LARGE = 16 * 2**20


def second_opinions() -> list[str]:
    """Markdown rows: what ships against measurements that were not used."""
    found: list[tuple[str, int, list[tuple[float, float]]]] = []
    with (distil.FOLDER / "collectives_busbw_misc.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for name, device, ranks in OTHERS:
        pairs = [
            (float(row["bytes"]), _measured(row, ranks))
            for row in rows
            if row["gpu"] == name and row["gpus"] == str(ranks)
        ]
        found.append((device, ranks, pairs))
    older = distil.all_reduce("a100")
    for ranks in range(2, 9):
        pairs = [(float(p[3]), t) for p, t in older.medians.items() if p[1] == ranks]
        found.append(("a100-sxm4-80gb", ranks, pairs))
    return [_opinion(*row) for row in found]


def _measured(row: Mapping[str, str], ranks: int) -> float:
    if row["time_us"]:
        return float(row["time_us"]) * 1e-6
    return share(row["op"], ranks) * float(row["bytes"]) / (float(row["busbw_GBps"]) * 1e9)


def _opinion(device: str, ranks: int, pairs: list[tuple[float, float]]) -> str:
    sizes, times = (np.array(column) for column in zip(*pairs, strict=True))
    said = curves.shipped().seconds_of(device, ranks, "all_reduce", sizes)
    assert said is not None
    ratio = said / times
    large = sizes >= LARGE
    small = f"{np.median(ratio[~large]):.2f}" if (~large).any() else ""
    return f"| {device} | {ranks} | {len(sizes)} | {small} | {np.median(ratio[large]):.2f} |"


# --- the page -----------------------------------------------------------------------------------

PAGE = """# Accuracy of communication times

Written by `bench/collectives.py`; do not edit. Within one node (one NVLink domain), the time of a collective is
taken from a measured curve if available. This page shows the accuracy of the curves, compared with the two models that
are commonly used instead.

## Method

- A point is the median of all measurements of (device, ranks, collective, size). Single measurements of one size differ
  by {spread_mean:.1%} on average ({spread_p95:.1%} at the 95th percentile) from that median: library versions, data types, runs.
- For collectives that reduce, only half-precision measurements are used: int8 takes longer there (4 to 9 % in long messages, up
  to a quarter where NVSwitch reduces floats), and training does not reduce int8.
- Split: of every curve, the half of its sizes with the smallest SHA-256 of (device, ranks, collective, size) is fitted; the
  other half is scored. Sizes are a factor of two apart, so gaps of a factor of 8 and more, with a protocol switch inside, are
  common.
- **curves**: all curves of one campaign are completed together as a Gaussian process (`tools/fields.py`), and again NVLink and PCIe
  machines separately; the mean of the two is made monotonic, limited such that twice the bytes take at most twice the
  time, and reduced to at most {knots} knots, interpolated in log-log space. Hyperparameters see the fitted half only. The form of the
  process (components, priors) was chosen among half a dozen by held-out scores on another split of the same data, so these figures
  may be slightly optimistic; the two later steps by cross-validation inside the fitted half (six folds, mean and p95):
  process alone {inner[0]}, with the means {inner[1]}, with the limit too {inner[2]}.
- **alpha-beta**: latency + bytes / bandwidth, fitted to the same half of each curve by least |log ratio|.
- **NCCL tuner**: NCCL 2.30's own estimate (src/graph/tuning.cc: latencies, protocol shares, tree corrections, NVLS),
  at the link rates it assumes; nothing is fitted. It is designed to rank algorithms, not to predict time.
- Errors are |predicted / measured - 1|.

## NCCL in one node: {devices} devices, 2, 4 and 8 ranks, 512 B to 512 MB

{intranode}

| figure | target | curves | met |
|---|---:|---:|---|
{verdicts}

{comment}

## All-reduce on 2 to 8 V100 (nccl-tests, 1 MB to 1 GB)

{v100}

Nearly all of these sizes are long messages, where time is linear in size: {v100_verdict}

## Seven collectives on 4 V100 as a framework calls them (PARAM, 4 B to 8 GB)

The points were read off plots (about 1.5 %). They include the host time of each call, so they are kept separate from the
device times above.

{param}

## Built-in curves

Distilled from all sizes by the same steps: {shipped} curves, {bytes:,} bytes. Against the points they were made of they are off by
{shipped_mean:.1%} on average ({shipped_p95:.1%} at the 95th percentile). Each point predicted from all others (leave one out):
{loo_mean:.1%} on average, {loo_p95:.1%} at the 95th percentile, which is the expected error for a size between measured ones.

Counts of ranks between measured ones are interpolated; beyond the largest, the floor grows by the measured cost of a
step and the rest with the fraction of the buffer that crosses a port (`Table.seconds_of` in `cost/curves.py`).

## Where curves apply

A curve is looked up by the measured device (including devices that are `like:` it), the family and topology of its links, and the
number of ranks. On links with other rates, in a what-if or a file, the part above its floor is scaled with the bandwidth and the
floor with the latency. For other devices or links, the network model is used instead: the prediction has a warning, and its
interval is wider by the term `left_curve`, a standard deviation of log seconds of {left:.3g}. That is how far the model
alone is from the curves below, from 1 MB to 512 MB (`tools/left_curve.py`: 0.18 to 0.50 on most devices, 1.0 on the V100's mesh, 1.6 and
2.4 on L4 and A10G, whose traffic goes through the host). No published run tests that width yet.

A curve whose bus bandwidth at the longest message is below a third of what fewer ranks of its device reach reflects its machine, not its links. It is
used only for that machine (`measured_as` in a node's row). More ranks may halve the bandwidth for good reasons: five V100 of a
cube mesh reach 0.44 of four. Of all built-in curves, these are marked:

| device | ranks | collective | bus bandwidth, GB/s | best of fewer ranks | machine |
|---|---:|---|---:|---:|---|
{marked}

## Independent measurements

All-reduce measured by others on other machines, not used for fitting. (One choice was prompted by them: with int8
measurements included, long messages on H100 and H200 were predicted 11 and 13 % too slow.) Median of predicted / measured, below
16 MB and from 16 MB on. H200 and B200 were timed from PyTorch (short messages include host time), the others with
nccl-tests. A100 with 3, 5, 6 and 7 ranks and GB200 with 72 ranks are not in our tables: those rows
test interpolation over ranks and extrapolation beyond the largest count.

| device | ranks | points | below 16 MB | from 16 MB |
|---|---:|---:|---:|---:|
{opinions}

## Sources

{sources}
- NCCL tuner: NVIDIA/nccl v2.30.7 src/graph/tuning.cc
- Second opinions: stas00/ml-engineering@744d01e network/README.md (A100, H200, B200), NVIDIA/dgxc-benchmarking@841f546
  nccl/README.md (H100), coreweave/nccl-tests@cb86553 README.md (GB200 NVL72), nccl-tests all-reduce on 2 to 8 A100
"""

COMMENT = """Over all devices the mean target is {total}. On NVLink it is {nvlink}: the PCIe machines cause the difference, above
all 8 x L40S, {worst:.0%} of all error in {share:.0%} of the points; without it the figures are {rest[0]:.1%} and {rest[1]:.1%}. With
8 ranks its times jump and even fall with size (all-gather of 512 KB takes {gather[0]:.0f} us, of 1 MB {gather[1]:.0f} us; all-to-all
of 128 MB takes {exchange[0]:.0f} ms, of 256 MB {exchange[1]:.0f} ms), and two readings of one size differ by up to {twice:.1f} times.

What remains has two causes. **Noise**: by the spread of repeated readings the true curve itself would be off by {noise[0]:.1%} on NVLink,
{noise[1]:.1%} on PCIe and {noise[2]:.1%} on 8 x L40S (mean); it is in the fitted points as well. **Switches of protocol**: a time grows up to
threefold between neighbouring sizes; where the sizes on both sides are held out, in related curves too, the location is unknown. With
every other point given (leave one out, below) the error is a third smaller, so more points would help rather than a better curve.

Tried for the PCIe machines, worse or hardly better (mean in cross-validation inside the fitted half, hyperparameters found again for each fold;
the process of PCIe machines alone has 6.6 %): rougher and smoother kernels 6.5 and 6.6 %, narrower priors 6.8 to 7.7 %, sizes aligned by
bend instead of bytes 6.8 to 7.1 %, averages over hyperparameters of subsets 6.5 %, over two forms of the process 6.3 %, a latency and bandwidth of each curve as the mean 8.4 % (9.3 % if
read off its ends, 7.8 % if uncertain). Interpolating each curve by itself, linear in bytes: 8.3 %. The held-out scores of these were
seen too, but not chosen by (PCIe 6.4 to 11 %): with NVLink as it is the target would need {needed:.1%} there."""


def page() -> str:
    main, older, param = distil.campaigns()
    scored, on_v100, as_called = score(main), score(older), score(param)
    nvlink = [row for row in scored if not distil.BUS[row.point[0]]]
    total, fast = figures(scored, "curves"), figures(nvlink, "curves")
    geomeans = {method: figures(as_called, method)[2] for method in METHODS}
    rows = (
        ("all devices, mean", MEAN_TARGET, total[0]),
        ("all devices, 95th percentile", P95_TARGET, total[1]),
        ("NVLink devices, mean", MEAN_TARGET, fast[0]),
        ("NVLink devices, 95th percentile", P95_TARGET, fast[1]),
        ("PARAM on 4 V100, geometric mean", GEOMEAN_TARGET, geomeans["curves"]),
    )
    verdicts = [f"| {n} | {t:.1%} | {f:.1%} | {'yes' if f <= t else 'no'} |" for n, t, f in rows]
    spread = reading_spread(main)
    ships = _shipped_errors(main)
    loo = distil.left_out_errors(main)
    return PAGE.format(
        spread_mean=spread[0], spread_p95=spread[1], knots=distil.MOST_KNOTS,
        devices=len({row.point[0] for row in scored}),
        intranode="\n".join(table(scored)), verdicts="\n".join(verdicts),
        comment=_comment(main, scored), inner=[_inner(main, *way) for way in WAYS],
        v100="\n".join(table(on_v100)), v100_verdict=_better(on_v100),
        param="\n".join(table(as_called)) + "\n\nGeometric means: "
        + ", ".join(f"{method} {value:.1%}" for method, value in geomeans.items()) + ".",
        shipped=sum(len(curves.shipped(via).curves) for via in ("nccl-tests", "param")),
        marked=_marked(), left=scales()["left_curve"], bytes=distil.TARGET.stat().st_size, shipped_mean=ships.mean(),
        shipped_p95=np.percentile(ships, 95), loo_mean=loo.mean(), loo_p95=np.percentile(loo, 95),
        opinions="\n".join(second_opinions()),
        sources="\n".join(f"- {name}: {text}" for name, text in distil.SOURCES.items()),
    )  # fmt: skip


WAYS = ((0.0, False), (distil.APART, False), (distil.APART, True))


def _inner(campaign: Campaign, apart: float, is_limited: bool) -> str:
    errors = distil.inner_errors(campaign, apart, is_limited)
    return f"{errors.mean():.2%} and {np.percentile(errors, 95):.1%}"


def _comment(main: Campaign, scored: list[Scored]) -> str:
    kinds = [[r for r in scored if distil.BUS[r.point[0]] == bus] for bus in (0, 1)]
    worst = [row for row in scored if row.point[:2] == ("l40s", 8)]
    rest = figures([row for row in scored if row.point[:2] != ("l40s", 8)], "curves")
    total, fast = figures(scored, "curves"), figures(kinds[0], "curves")
    return COMMENT.format(
        total=_met(total[0], MEAN_TARGET), nvlink=_met(fast[0], MEAN_TARGET), rest=rest,
        needed=(MEAN_TARGET * len(scored) - fast[0] * len(kinds[0])) / len(kinds[1]),
        worst=figures(worst, "curves")[0] * len(worst) / (total[0] * len(scored)),
        share=len(worst) / len(scored),
        gather=[main.medians["l40s", 8, "all_gather", 2**k] * 1e6 for k in (19, 20)],
        exchange=[main.medians["l40s", 8, "all_to_all", 2**k] * 1e3 for k in (27, 28)],
        twice=max(max(t) / min(t) for p, t in main.readings.items() if p[:2] == ("l40s", 8)),
        noise=[distil.noise(main, [r.point for r in rows]).mean() for rows in (*kinds, worst)],
    )  # fmt: skip


def _better(scored: list[Scored]) -> str:
    ours, line = (figures(scored, method)[0] for method in ("curves", "alpha-beta"))
    if ours < line:
        return f"the curves are nearer all the same ({ours:.1%} against {line:.1%})."
    return f"alpha-beta is as good or better here ({line:.1%} against {ours:.1%})."


def _met(value: float, target: float) -> str:
    return f"met ({value:.1%})" if value <= target else f"missed ({value:.1%} for {target:.0%})"


def _marked() -> str:
    """Curves that hold for one machine alone."""
    known = curves.shipped().curves
    bus = {
        key: float(one.sizes[-1] * share(key[2], key[1]) / one.seconds[-1] / 1e9)
        for key, one in known.items()
    }
    rows = []
    for (device, ranks, collective), one in known.items():
        if one.only_on:
            fewer = max(rate for (d, n, c), rate in bus.items() if (d, c) == (device, collective) and n < ranks)  # fmt: skip
            rows.append(
                f"| {device} | {ranks} | {collective} | {bus[device, ranks, collective]:.1f} | {fewer:.1f} | {one.only_on} |"
            )
    return "\n".join(rows)


def _shipped_errors(campaign: Campaign) -> Floats:
    table = curves.shipped(campaign.via)
    said = [table.seconds(*point) for point in campaign.medians]
    measured = np.array(list(campaign.medians.values()))
    off = np.array(said, dtype=np.float64) / measured - 1.0
    return np.asarray(np.abs(off), dtype=np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--report", metavar="FILE", default=str(ROOT / "docs" / "communication-accuracy.md"))  # fmt: skip
    options = parser.parse_args()
    if not distil.FOLDER.is_dir():
        parser.error(f"no measurements in {distil.FOLDER}; name their folder in FORETRAIN_TRUTH")
    Path(options.report).write_text(text := page(), encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
