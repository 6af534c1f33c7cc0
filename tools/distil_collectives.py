"""Distils public measurements of collectives into the few knots per curve that ship with the package.

python tools/distil_collectives.py            writes src/foretrain/cost/calibration/curves/curves.json
python tools/distil_collectives.py --refit    first finds the hyperparameters again (five minutes)

The measurements are not part of the project. They are looked for in the folder FORETRAIN_TRUTH names, or
beside the checkout in `shared/truth`. Hyperparameters (`tools/fields.json`) are found on the half of the sizes
that scoring fits on, never on the other half, so that `bench/collectives.py` stays honest.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from fields import Field, Points, Shape, fit
from numpy.typing import NDArray

from foretrain.arrays import Floats
from foretrain.cluster.catalog import links
from foretrain.cost.curves import share

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("FORETRAIN_TRUTH", ROOT.parent / "shared" / "truth"))
TARGET = ROOT / "src" / "foretrain" / "cost" / "calibration" / "curves" / "curves.json"
HYPERPARAMETERS = Path(__file__).with_name("fields.json")
REDUCTIONS = ("all_reduce", "reduce_scatter")
"""Summing int8 is slower (4 to 9 % in long messages, up to a quarter where switches sum) and no training does it,
so of these only the half-precision readings are taken. Where bytes are only moved the two are alike."""
MOST_KNOTS = 16
CLOSE_ENOUGH = 0.002  # a knot that moves no point by more than this share is left out
APART = 0.5  # weight of what NVLink and PCIe machines say when each kind is completed by itself

Curve = tuple[str, int, str]  # device, ranks, collective
Point = tuple[str, int, str, int]  # … and bytes
Readings = Mapping[Point, list[float]]
Row = dict[str, Any]  # a curve as it is written

# Devices measured: the system's name in the tables, its interconnect, one-direction bandwidth and kin.
SYSTEMS = {
    "a100_sxm": ("a100-sxm4-80gb", "nvlink3-nvswitch", 300e9, 0),
    "h100_sxm": ("h100-sxm5-80gb", "nvlink4-nvswitch", 450e9, 1),
    "h200_sxm": ("h200-sxm5-141gb", "nvlink4-nvswitch", 450e9, 1),
    "b200_sxm": ("b200-sxm", "nvlink5-nvswitch", 900e9, 2),
    "b300_sxm": ("b300-sxm", "nvlink5-nvswitch", 900e9, 2),
    "gb200": ("gb200-nvl72", "nvlink5-nvl72", 900e9, 3),
    "gb300": ("gb300-nvl72", "nvlink5-nvl72", 900e9, 3),
    "l40s": ("l40s", "pcie4", 31.5e9, 4),
    "rtx_pro_6000_server": ("rtx-pro-6000", "pcie5", 63e9, 5),
    "v100": ("v100-sxm2-32gb", "nvlink2", 150e9, 6),
}
LIKE = {
    "a100-sxm4-40gb": "a100-sxm4-80gb",
    "h100-sxm5-96gb": "h100-sxm5-80gb",
    "h20-sxm5-96gb": "h200-sxm5-141gb",
    "v100-sxm2-16gb": "v100-sxm2-32gb",
}
STAGED = {"l4": ("pcie4", 31.5e9), "a10g": ("pcie4", 31.5e9)}
"""Cloud machines whose devices do not reach each other's memory: NCCL goes through the host's."""
STAGED_FROM = 1 << 16, 50e-6
"""Messages below 8 MiB were not measured: down to this size time is taken as that latency and the first rate."""
FAR_BELOW = 1.0 / 3.0
"""Of the bus bandwidth that fewer ranks of a device reach. More ranks may halve it for good reasons: five V100 of a
cube mesh have half the lanes of four on their ring (0.44), and what goes through the memory of the host crosses it
twice. A curve below a third tells of its machine (a slow path between sockets, a switch that is shared), not of the
links that its device has, and is used for that machine only."""
FAMILY = {name: family for name, _, _, family in SYSTEMS.values()}
KINDS = ("nvlink", "pcie")
BUS = {name: int(kind.startswith("pcie")) for name, kind, _, _ in SYSTEMS.values()}


@dataclass(frozen=True)
class Campaign:
    """Measurements made one way, completed together."""

    name: str
    via: str
    source: str
    readings: Readings

    @cached_property
    def medians(self) -> dict[Point, float]:
        return {point: float(np.median(self.readings[point])) for point in sorted(self.readings)}

    @cached_property
    def curves(self) -> dict[Curve, list[int]]:
        found: dict[Curve, list[int]] = defaultdict(list)
        for device, ranks, collective, size in self.medians:
            found[device, ranks, collective].append(size)
        return dict(found)

    @cached_property
    def shape(self) -> Shape:
        return Shape(len(self._devices), len(self._collectives))

    @cached_property
    def _devices(self) -> list[str]:
        return sorted({device for device, _, _ in self.curves})

    @cached_property
    def _collectives(self) -> list[str]:
        return sorted({collective for _, _, collective in self.curves})

    @cached_property
    def buses(self) -> dict[int, Campaign]:
        """NVLink and PCIe machines by themselves, where there are both."""
        found: dict[int, dict[Point, list[float]]] = defaultdict(dict)
        for point, times in self.readings.items():
            found[BUS[point[0]]][point] = times
        if len(found) == 1:
            return {}
        return {
            bus: Campaign(f"{self.name}-{KINDS[bus]}", self.via, self.source, rows)
            for bus, rows in sorted(found.items())
        }

    def points(self, wanted: Iterable[Point]) -> Points:
        rows = list(wanted)
        known = np.array([self.medians.get(row, np.nan) for row in rows])
        return Points(
            device=np.array([self._devices.index(d) for d, _, _, _ in rows]),
            family=np.array([FAMILY[d] for d, _, _, _ in rows]),
            bus=np.array([BUS[d] for d, _, _, _ in rows]),
            ranks=np.log2([n for _, n, _, _ in rows]),
            collective=np.array([self._collectives.index(c) for _, _, c, _ in rows]),
            size=np.log2([s for _, _, _, s in rows]),
            log_seconds=np.log(known),
            readings=np.array([float(len(self.readings.get(row, ()))) for row in rows]),
        )


# --- reading ------------------------------------------------------------------------------------


def _rows(name: str) -> Iterator[dict[str, str]]:
    with (FOLDER / name).open(encoding="utf-8", newline="") as stream:
        yield from csv.DictReader(stream)


def intranode() -> Campaign:
    found: dict[Point, list[float]] = defaultdict(list)
    for row in _rows("aic_nccl_intranode.csv"):
        if row["op_name"] in REDUCTIONS and row["nccl_dtype"] != "half":
            continue
        collective = {"alltoall": "all_to_all"}.get(row["op_name"], row["op_name"])
        point = (SYSTEMS[row["system"]][0], int(row["num_gpus"]), collective, int(row["message_bytes"]))  # fmt: skip
        found[point].append(float(row["latency_ms"]) * 1e-3)
    return Campaign("intranode", "nccl-tests", "aiconfigurator", found)


def all_reduce(gpu: str) -> Campaign:
    found: dict[Point, list[float]] = defaultdict(list)
    for row in _rows("nccl_allreduce_a100_v100.csv"):
        if row["gpu"] == gpu:
            device = {"a100": "a100-sxm4-80gb", "v100": SYSTEMS["v100"][0]}[gpu]
            found[device, int(row["gpus"]), row["op"], int(row["bytes"])].append(float(row["seconds"]))  # fmt: skip
    return Campaign(f"{gpu}-all-reduce", "nccl-tests", "all-reduce-2-to-8", found)


def param() -> Campaign:
    found: dict[Point, list[float]] = defaultdict(list)
    for row in _rows("dlrm_collectives_4xV100.csv"):
        point = (SYSTEMS["v100"][0], int(row["gpus"]), row["collective"], int(row["bytes"]))
        found[point].append(float(row["latency_us"]) * 1e-6)
    return Campaign("param", "param", "param-4xV100", found)


def staged() -> Campaign:
    """All-gathers that ran with nothing beside them. Sizes are the gathered buffer in MiB."""
    found: dict[Point, list[float]] = defaultdict(list)
    for row in _rows("mist_bandwidth_interference.csv"):
        size, others = float(row["g2g_allgather_out_MB"]), ("gemm_n", "c2g_MB", "g2c_MB")
        alone = size > 0 and all(float(row[other]) == 0 for other in others)
        if alone and row["device"] in STAGED and row["inter"] == "1":
            point = (row["device"], int(row["intra"]), "all_gather", round(size * 2**20))
            found[point].append(float(row["latency_ms"]) * 1e-3)
    return Campaign("staged", "nccl-tests", "mist-all-gather", found)


def campaigns() -> list[Campaign]:
    return [intranode(), all_reduce("v100"), param()]


SOURCES = {
    "aiconfigurator": "aiconfigurator-core (PyPI, Apache-2.0), systems/data/<gpu>/comm nccl_perf tables: nccl-tests "
    "of NCCL 2.23 to 2.29 in one node, half (and int8 where nothing is summed), 512 B to 512 MB; median of all readings of a size",
    "all-reduce-2-to-8": "nccl-tests all-reduce on 2 to 8 V100 of one node, 1 MB to 1 GB",
    "param-4xV100": "Lin et al., DLRM performance model, analysis/notebooks/comm_bench.ipynb (blob cf1acc20): PARAM "
    "collectives on 4 V100 of a DGX-1, read off the plots (about 1.5 %)",
    "mist-all-gather": "Mist artifact (Zhu et al., EuroSys 2025), bandwidth and interference profiles: all-gathers alone "
    "in one node, 8 to 512 MiB; below at 50 us and the rate of the smallest",
}


# --- the split ----------------------------------------------------------------------------------


def chance(point: Point) -> bytes:
    """A stable hash of (device, ranks, collective, size)."""
    return hashlib.sha256("|".join(map(str, point)).encode()).digest()


def fitted_half(campaign: Campaign) -> list[Point]:
    """Of every curve the half of the sizes (rounded up) whose hashes are smallest."""
    kept: list[Point] = []
    for curve, sizes in campaign.curves.items():
        order = sorted(((*curve, size) for size in sizes), key=chance)
        kept += sorted(order[: (len(order) + 1) // 2])
    return kept


# --- from points to knots -----------------------------------------------------------------------


def hyperparameters(campaign: Campaign) -> Floats:
    return np.array(json.loads(HYPERPARAMETERS.read_text("utf-8"))[campaign.name])


def log_seconds(
    campaign: Campaign, given: list[Point], wanted: list[Point], apart: float = APART
) -> Floats:
    """What the field of the given points says of the wanted ones.

    NVLink and PCIe machines are completed twice: together, where protocol switches are borrowed from the other
    kind, and each kind by itself, with likenesses of its own. The mean is nearer than either.
    """
    field = Field(campaign.points(given), campaign.shape, hyperparameters(campaign))
    said = field.at(campaign.points(wanted))
    for bus, part in campaign.buses.items() if apart else ():
        mine = np.array([BUS[point[0]] == bus for point in wanted])
        alone = log_seconds(part, _on(bus, given), _on(bus, wanted))
        said[mine] = (1.0 - apart) * said[mine] + apart * alone
    return said


def _on(bus: int, points: Iterable[Point]) -> list[Point]:
    return [point for point in points if BUS[point[0]] == bus]


def completed(
    campaign: Campaign, given: list[Point], apart: float = APART, is_limited: bool = True
) -> dict[Curve, tuple[Floats, Floats]]:
    """Sizes and seconds of every curve's knots, from the given points alone."""
    everything = [(*curve, size) for curve, sizes in campaign.curves.items() for size in sizes]
    said = log_seconds(campaign, given, everything, apart)
    seen = set(given)
    known = np.array([point in seen for point in everything])
    found, first = {}, 0
    for curve, sizes in campaign.curves.items():
        mine = slice(first, first + len(sizes))
        logs, times = np.log(sizes), rising(said[mine])
        if is_limited:
            times = limited(logs, times, known[mine])
        kept = knots(logs, times)
        found[curve] = (np.array(sizes, dtype=np.float64)[kept], np.exp(times[kept]))
        first += len(sizes)
    return found


def limited(sizes: Floats, times: Floats, known: NDArray[np.bool_]) -> Floats:
    """Unmeasured sizes kept between what the measured ones beside them allow (all values are logs).

    More bytes do not take less time, and k times the bytes not more than k times the time: the message
    could be sent in k parts. Where two measured points break the rule themselves it says nothing between them.
    """
    if not known.any():
        return times
    at, seen = sizes[known], times[known]
    after = np.searchsorted(at, sizes)
    before = np.searchsorted(at, sizes, side="right") - 1
    low, high = np.full_like(times, -np.inf), np.full_like(times, np.inf)
    has = before >= 0
    low[has] = seen[before[has]]
    high[has] = seen[before[has]] + sizes[has] - at[before[has]]
    has = after < len(at)
    low[has] = np.maximum(low[has], seen[after[has]] + sizes[has] - at[after[has]])
    high[has] = np.minimum(high[has], seen[after[has]])
    return np.where(low <= high, np.clip(times, low, np.maximum(low, high)), times)


def rising(values: Floats) -> Floats:
    """The middle of the lowest rising line above and the highest one below."""
    above = np.maximum.accumulate(values)
    below = np.minimum.accumulate(values[::-1])[::-1]
    return 0.5 * (above + below)


def knots(sizes: Floats, times: Floats, most: int = MOST_KNOTS) -> list[int]:
    """Points to keep: the ends, then whichever is missed most, until none is missed or there are enough."""
    kept = [0, len(sizes) - 1]
    while len(kept) < min(most, len(sizes)):
        missed = np.abs(np.interp(sizes, sizes[kept], times[kept]) - times)
        worst = int(missed.argmax())
        if missed[worst] <= CLOSE_ENOUGH:
            break
        kept = sorted([*kept, worst])
    return kept


def left_out_errors(campaign: Campaign) -> Floats:
    """Relative error at each point predicted from all others: what a size between measured ones may expect."""
    off = _left_out(campaign)
    for bus, part in campaign.buses.items():
        mine = np.array([BUS[point[0]] == bus for point in campaign.medians])
        off[mine] = (1.0 - APART) * off[mine] + APART * _left_out(part)
    return np.abs(np.exp(-off) - 1.0)


def _left_out(campaign: Campaign) -> Floats:
    points = campaign.points(campaign.medians)
    return Field(points, campaign.shape, hyperparameters(campaign)).left_out


def inner_errors(campaign: Campaign, apart: float, is_limited: bool, folds: int = 6) -> Floats:
    """Relative errors inside the fitted half, a part of it left out at a time: what choices are made by.

    Hyperparameters have seen the parts, so the figures are for comparing and flatter all alike.
    """
    half = sorted(fitted_half(campaign), key=lambda point: (point[:3], chance(point)))
    found: list[float] = []
    for part in range(folds):
        out = half[part::folds]
        given = sorted(set(half) - set(out))
        said = completed(campaign, given, apart, is_limited)
        for *curve, size in out:
            sizes, times = said[tuple(curve)]  # type: ignore[index]
            time = np.exp(np.interp(np.log(size), np.log(sizes), np.log(times)))
            found.append(abs(time / campaign.medians[*curve, size] - 1.0))  # type: ignore[index]
    return np.array(found)


def noise(campaign: Campaign, wanted: Iterable[Point]) -> Floats:
    """Relative error that even the true curve would show at each point, as its median is of few readings.

    The medians of every other reading differ by about twice the error of the median of all. A point with one reading
    is taken to be as uncertain as the others of its device and ranks, times the root of two.
    """
    found: dict[Point, float] = {}
    alike: dict[tuple[str, int], list[float]] = defaultdict(list)
    for point, times in campaign.readings.items():
        if len(times) > 1:
            apart = np.median(times[::2]) - np.median(times[1::2])
            found[point] = float(abs(apart) / 2.0 / campaign.medians[point])
            alike[point[:2]].append(found[point])
    return np.array([found.get(p, 2**0.5 * float(np.mean(alike[p[:2]]))) for p in wanted])


def led_down(campaign: Campaign) -> dict[Curve, tuple[Floats, Floats]]:
    """Medians as they are, rising, and a first knot at the rate of the smallest size measured."""
    found = {}
    least, latency = STAGED_FROM
    for curve, known in campaign.curves.items():
        sizes = np.array(sorted(known), dtype=np.float64)
        times = rising(np.array([campaign.medians[(*curve, int(size))] for size in sizes]))
        first = latency + (times[0] - latency) * least / sizes[0]
        sizes, times = np.concatenate([[least], sizes]), np.concatenate([[first], times])
        # straight in bytes from there to the first size: one knot more between them, for curves are so in log-log
        middle = np.sqrt(sizes[0] * sizes[1])
        between = latency + (times[1] - latency) * middle / sizes[1]
        sizes, times = np.insert(sizes, 1, middle), np.insert(times, 1, between)
        kept = knots(np.log(sizes), np.log(times))
        found[curve] = sizes[kept], times[kept]
    return found


# --- writing ------------------------------------------------------------------------------------


def marked(rows: Iterable[Row]) -> list[Row]:
    """Curves far below what fewer ranks of their device reach, with the one machine they hold for."""
    known = list(rows)
    return [
        {**row, "only_on": f"{row['source']}-{row['device']}"} if _is_far_below(row, known) else row
        for row in known
    ]


def _is_far_below(row: Row, known: Iterable[Row]) -> bool:
    same = ("device", "collective", "via")
    fewer = [
        _bus_bandwidth(one)
        for one in known
        if one["ranks"] < row["ranks"] and all(one[key] == row[key] for key in same)
    ]
    return _bus_bandwidth(row) < FAR_BELOW * max(fewer, default=0.0)


def _bus_bandwidth(row: Row) -> float:
    """Bytes/s of the longest message over each port."""
    crossing = share(row["collective"], row["ranks"])
    return float(row["bytes"][-1] * crossing / (row["us"][-1] * 1e-6))


def document() -> dict[str, object]:
    rows: list[Row] = []
    parts = [(one, completed(one, list(one.medians))) for one in campaigns()]
    for campaign, found in [*parts, (staged(), led_down(staged()))]:
        rows += [
            {
                "device": device,
                "ranks": ranks,
                "collective": collective,
                "via": campaign.via,
                "source": campaign.source,
                "bytes": [int(size) for size in sizes],
                "us": [float(f"{time * 1e6:.4g}") for time in times],
            }
            for (device, ranks, collective), (sizes, times) in found.items()
        ]
    joined = {n: (k, b) for n, k, b, _ in SYSTEMS.values()} | STAGED
    devices = {
        n: {"interconnect": k, "bandwidth": b, "latency": links()[k.split("-")[0]].latency}
        for n, (k, b) in joined.items()
    }
    about = "Knots of measured collectives; written by tools/distil_collectives.py, do not edit."
    return {
        "about": about,
        "sources": SOURCES,
        "devices": devices,
        "like": LIKE,
        "curves": marked(rows),
    }


def text_of(data: Mapping[str, object]) -> str:
    """JSON with one curve a line: small, and a difference shows which curve moved."""
    head = {key: value for key, value in data.items() if key != "curves"}
    lines = [json.dumps(row, separators=(",", ":")) for row in data["curves"]]  # type: ignore[attr-defined]
    return json.dumps(head, indent=1)[:-2] + ',\n "curves": [\n' + ",\n".join(lines) + "\n]}\n"


def refit() -> None:
    found = {}
    parts = [(campaign, *campaign.buses.values()) for campaign in campaigns()]
    for campaign in [part for group in parts for part in group]:
        half = campaign.points(fitted_half(campaign))
        found[campaign.name] = fit(half, campaign.shape).tolist()
    lines = [f"{json.dumps(name)}: {json.dumps(values)}" for name, values in found.items()]
    HYPERPARAMETERS.write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--refit", action="store_true", help="find the hyperparameters again")
    if not FOLDER.is_dir():
        parser.error(f"no measurements in {FOLDER}; name their folder in FORETRAIN_TRUTH")
    if parser.parse_args().refit:
        refit()
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text_of(document()), encoding="utf-8")
    print(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
