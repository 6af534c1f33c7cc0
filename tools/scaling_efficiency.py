"""How runs scale: throughput per device against the smallest run of a family, predicted and measured."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import mean, median

from foretrain.validation.figures import Scored

_MOVES = ("dp",)  # of a plan, with the number of devices


@dataclass(frozen=True, slots=True)
class Scaling:
    """Distances between predicted and measured scaling efficiency of a group's runs, in points (hundredths)."""

    group: str
    families: int
    runs: int
    mean: float
    median: float
    largest: float


def scaling(scored: Iterable[Scored]) -> tuple[Scaling, ...]:
    """Groups that have families of at least two sizes."""
    usable = [row for row in scored if row.error is not None and row.case.get("devices")]
    usable.sort(key=lambda row: (row.group, _family(row), int(row.case["devices"])))
    groups = []
    for group, rows in groupby(usable, key=lambda row: row.group):
        families = [_points(list(mine)) for _, mine in groupby(rows, key=_family)]
        points = [point for family in families for point in family]
        if points:
            count = sum(1 for family in families if family)
            groups.append(
                Scaling(group, count, len(points), mean(points), median(points), max(points))
            )
    return tuple(groups)


def _family(row: Scored) -> str:
    """Everything but the number of devices and what follows from it; the same work per device."""
    case = row.case
    plan = {k: v for k, v in (case.get("plan") or {}).items() if k not in _MOVES}
    batch = case.get("batch") or {}
    each = round(float(batch.get("global") or 0) / float(case["devices"]), 6)
    options = {k: v for k, v in (case.get("runtime_options") or {}).items() if k != "placement"}
    fixed = [
        case.get("model"), case.get("seq_len"), case.get("precision"), case.get("runtime"), options, plan,
        (case.get("cluster") or {}).get("device"), batch.get("micro") or batch.get("per_device"), each,
    ]  # fmt: skip
    return json.dumps(fixed, sort_keys=True, default=str)


def _points(rows: Sequence[Scored]) -> list[float]:
    """Of every larger run than the smallest; repeated sizes count once each."""
    least = int(rows[0].case["devices"])
    base = [row for row in rows if int(row.case["devices"]) == least]
    first = [mean(values) for values in zip(*map(_speeds, base), strict=True)]
    out = []
    for row in rows[len(base) :]:
        predicted, measured = _speeds(row)
        out.append(100.0 * abs(predicted / first[0] - measured / first[1]))
    return out


def _speeds(row: Scored) -> tuple[float, float]:
    """Samples per second and device, predicted and measured."""
    samples = float((row.case.get("batch") or {}).get("global") or 1) / float(row.case["devices"])
    predicted = samples / float(row.prediction["step_seconds"])
    return predicted, samples / float(row.measured["step_time_s"])
