"""Fits the factors of `cost/calibration/interference.yaml` to measured concurrent runs.

    python tools/fit_interference.py mist_bandwidth_interference.csv

The measurements are those that come with Mist (EuroSys 2025): a GEMM, an all-gather and copies between host
and device, each alone and two to four of them started together, on A100, V100, L4 and A10G. One row is one run,
with the sizes of what ran and the time until all was done.

Half of the configurations, chosen by a hash of what ran where, is fitted; the other half is left for
`bench/interference.py`. Minimised is the mean of |log(predicted / measured)|, smooth within 2 %, in which each set of
activities (compute with collective, compute with both copies, ...) counts the same, plus a small price on the
size of a factor: where the data say only that two activities take as long as one after the
other, it does not say which of them waited, and neither should the fit. A factor that the data would hardly miss is
left out. Predicted times follow from the times alone and the factors as in the engine (`together`).
"""

from __future__ import annotations

import argparse
import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from foretrain.arrays import Floats
from foretrain.cost import interference
from foretrain.cost.interference import ACTIVITIES, COLLECTIVE, together

COLUMNS = ("gemm_n", "g2g_allgather_out_MB", "c2g_MB", "g2c_MB")
"""sizes in the order of ACTIVITIES[1:]"""

SMOOTH = 0.02
PRICE = 0.005
GREATEST = 8.0
WORTH_KEEPING = 2e-4
"""of the mean log error of the fitted half"""
REPEATABLE = 0.25
"""greatest standard deviation, relative to the mean, of nine in ten runs with a collective"""

PAIRS = [(a, b) for a in range(1, 5) for b in range(1, 5) if a != b]
TARGET = Path(interference.__file__).parent / "calibration" / "interference.yaml"


@dataclass(frozen=True, slots=True)
class Group:
    """The concurrent runs of one device in one layout of its collective."""

    device: str
    inside: int
    """devices of a collective's group in each node"""
    nodes: int
    alone: Floats
    """[n, 5] seconds of each activity by itself, 0 where absent"""
    measured: Floats
    """[n] seconds until all was done"""
    is_fitted: NDArray[np.bool_]
    """[n] whether the run belongs to the half that is fitted"""
    noise: float
    """relative standard deviation that nine in ten runs with a collective stay below"""

    @property
    def spans_nodes(self) -> bool:
        return self.nodes > 1

    @property
    def is_repeatable(self) -> bool:
        return self.noise <= REPEATABLE


Sizes = tuple[float, ...]


def read(path: Path) -> list[Group]:
    """All groups that have concurrent runs whose parts were also measured alone."""
    runs: dict[tuple[str, int, int], dict[Sizes, tuple[float, float]]] = defaultdict(dict)
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            sizes = tuple(float(row[column]) for column in COLUMNS)
            where = row["device"], int(row["intra"]), int(row["inter"])
            runs[where][sizes] = float(row["latency_ms"]) / 1e3, float(row["std_ms"]) / 1e3
    groups = [_group(where, found) for where, found in sorted(runs.items())]
    return [group for group in groups if len(group.measured)]


def _group(where: tuple[str, int, int], found: dict[Sizes, tuple[float, float]]) -> Group:
    single = {
        sizes: seconds for sizes, (seconds, _) in found.items() if np.count_nonzero(sizes) == 1
    }
    alone, measured, is_fitted = [], [], []
    for sizes, (seconds, _) in found.items():
        parts = [tuple(s if at == k else 0.0 for k, s in enumerate(sizes)) for at in range(4)]
        present = [part for part in parts if any(part)]
        if len(present) > 1 and all(part in single for part in present):
            alone.append([0.0, *(single.get(part, 0.0) for part in parts)])
            measured.append(seconds)
            digest = hashlib.sha256(repr((where, sizes)).encode()).digest()
            is_fitted.append(digest[0] % 2 == 0)
    spread = [std / mean for sizes, (mean, std) in found.items() if sizes[COLLECTIVE - 1] > 0]
    return Group(
        *where,
        alone=np.array(alone, dtype=np.float64).reshape(-1, len(ACTIVITIES)),
        measured=np.array(measured, dtype=np.float64),
        is_fitted=np.array(is_fitted, dtype=np.bool_),
        noise=float(np.quantile(spread, 0.9)) if spread else 0.0,
    )


def half(groups: Iterable[Group], fitted: bool) -> tuple[Floats, Floats]:
    """Times alone and together of the fitted runs, or of the others."""
    picked = [(g.alone[g.is_fitted == fitted], g.measured[g.is_fitted == fitted]) for g in groups]
    return np.concatenate([a for a, _ in picked]), np.concatenate([m for _, m in picked])


def fit(groups: Sequence[Group]) -> Floats:
    """The table of factors, rounded to hundredths, without those the data would hardly miss."""
    alone, measured = half(groups, fitted=True)
    weight = _weights(alone)

    def residuals(logs: Floats) -> Floats:
        error = np.log(together(alone, _table(logs)) / measured) / SMOOTH
        # weighted squares of these sum to the mean absolute error
        smooth = np.sqrt(2.0 * (np.sqrt(1.0 + error**2) - 1.0)) * SMOOTH
        return np.concatenate([smooth * np.sqrt(weight), PRICE * logs])

    start = np.full(len(PAIRS), 0.1)
    found = least_squares(residuals, start, bounds=(0.0, np.log(GREATEST)))
    return _pruned(np.round(_table(found.x), 2), alone, measured)


def sets_of(alone: Floats) -> NDArray[np.int64]:
    """[n] a number for the set of activities of each run."""
    return (alone > 0.0) @ (1 << np.arange(alone.shape[1]))


def _weights(alone: Floats) -> Floats:
    """Sum to 1, equally over the sets of activities that occur."""
    _, which, count = np.unique(sets_of(alone), return_inverse=True, return_counts=True)
    weights: Floats = 1.0 / (len(count) * count[which])
    return weights


def _pruned(table: Floats, alone: Floats, measured: Floats) -> Floats:
    weight = _weights(alone)

    def loss(candidate: Floats) -> float:
        return float(weight @ np.abs(np.log(together(alone, candidate) / measured)))

    best = loss(table)
    for pair in sorted(PAIRS, key=lambda at: float(table[at])):
        without = table.copy()
        without[pair] = 1.0
        if table[pair] > 1.0 and loss(without) <= best + WORTH_KEEPING:
            table, best = without, loss(without)
    return table


def _table(logs: Floats) -> Floats:
    table = np.ones((len(ACTIVITIES), len(ACTIVITIES)))
    for pair, log in zip(PAIRS, logs, strict=True):
        table[pair] = np.exp(log)
    return table


def _flow(table: Floats) -> str:
    """{slowed: {by: factor}} in one line."""
    rows = []
    for a, slowed in enumerate(ACTIVITIES):
        cells = [f"{by}: {table[a, b]:.2f}" for b, by in enumerate(ACTIVITIES) if table[a, b] > 1.0]
        if cells:
            rows.append(f"{slowed}: {{{', '.join(cells)}}}")
    return "{" + ", ".join(rows) + "}"


HEAD = """\
# How much activities on one device slow each other: factor on the time of the first while the second runs, 1 where
# not named; several multiply. Written by tools/fit_interference.py; do not edit.
#
#   compute      GEMMs
#   collective   all-gathers among devices; `inside` a node, `between` nodes
#   copy_in, copy_out   from host to device memory, and back
#
# Where two activities come out as one after the other (factors of 2 and more both ways, or far more one way) the data
# cannot tell which of them waited. A device without `between` takes `inside` for both.
source: >-
  Fitted to concurrent runs of GEMM, all-gather and host copies measured for Mist (Zhu et al. EuroSys 2025, bandwidth
  tables of its repository) on half of the configurations; the other half is scored in docs/interference.md.
devices:
"""

TAIL = """\
  none:
    source: a host's own memory traffic is not modelled
    inside: {}
# Devices without measurements take those of a relative: by architecture and by whether devices are linked directly
# (NVLink, xGMI) or through PCIe. An assumption, named as such where it is used.
#
#   volta linked   the 32 GB boards: on the 16 GB machine copies and kernels ran one after the other, which the same
#                  chip does not do elsewhere
#   ada unlinked   A10G for the same reason: on the L4 machine copies and kernels ran one after the other
defaults:
  - {for: volta linked, like: v100-sxm2-32gb}
  - {for: linked, like: a100-sxm4-40gb}
  - {for: unlinked, like: a10g}
"""


def document(groups: Sequence[Group]) -> str:
    """The whole file."""
    kept = [group for group in groups if group.is_repeatable]
    devices = sorted({group.device for group in kept})
    return (
        HEAD
        + "".join(_entry(name, [g for g in kept if g.device == name]) for name in devices)
        + TAIL
    )


def _entry(device: str, groups: Sequence[Group]) -> str:
    tables, sources = "", []
    for spans_nodes, word in ((False, "inside"), (True, "between")):
        mine = [group for group in groups if group.spans_nodes == spans_nodes]
        if mine:
            tables += f"    {word}: {_flow(fit(mine))}\n"
            layouts = ", ".join(f"{g.nodes} x {g.inside}" for g in mine)
            sources.append(f"{word} {len(half(mine, fitted=True)[1])} runs ({layouts})")
    source = f"    source: fitted, {'; '.join(sources)}; nodes x devices of a collective\n"
    return f"  {device}:\n{source}{tables}"


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="CSV file of the measurements")
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    options = parser.parse_args()
    options.output.write_text(document(read(options.data)), encoding="utf-8")


if __name__ == "__main__":
    main()
