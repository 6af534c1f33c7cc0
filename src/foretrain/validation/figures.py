"""Error figures of a group of cases: how far off, in which direction, and whether the order is right."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median
from typing import Any

APART = 0.10  # pairs measured closer than this have no order worth predicting


@dataclass(frozen=True, slots=True)
class Scored:
    """One case with its prediction document."""

    case: Mapping[str, Any]
    prediction: Mapping[str, Any]

    @property
    def measured(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.case.get("measured") or {}
        return found

    @property
    def ran(self) -> bool:
        return self.measured.get("ok") is not False

    @property
    def failed(self) -> bool:
        return "error" in self.prediction

    @property
    def error(self) -> float | None:
        """Relative error of the step time, None where there is nothing to compare."""
        seconds = self.measured.get("step_time_s")
        if self.failed or not self.ran or not seconds:
            return None
        return float(self.prediction["step_seconds"]) / float(seconds) - 1.0

    @property
    def memory_error(self) -> float | None:
        gib = self.measured.get("memory_gib")
        if self.failed or not self.ran or not gib:
            return None
        return float(self.prediction["memory"]["peak_bytes"]) / 2**30 / float(gib) - 1.0


def figures(rows: Iterable[Scored], worst: int = 5) -> dict[str, Any]:
    """All figures of one group; None where a group has nothing to say."""
    rows = list(rows)
    timed = [(row, row.error) for row in rows]
    errors = [(row, error) for row, error in timed if error is not None]
    sizes = sorted(abs(error) for _, error in errors)
    memory = [abs(e) for e in (row.memory_error for row in rows) if e is not None]
    right, pairs, regret = _order(errors)
    return {
        "n": len(errors),
        "failed": sum(row.failed for row in rows),
        "mape": mean(sizes) if sizes else None,
        "median": median(sizes) if sizes else None,
        "p90": sizes[int(0.9 * (len(sizes) - 1))] if sizes else None,
        "bias": mean(error for _, error in errors) if errors else None,
        "order": right / pairs if pairs else None,
        "pairs": pairs,
        "top1_regret": regret,
        "memory_mape": mean(memory) if memory else None,
        "coverage": _coverage(errors),
        "fits_accuracy": _verdicts(rows),
        "worst": [
            _far(row, error) for row, error in sorted(errors, key=lambda e: -abs(e[1]))[:worst]
        ],
    }


def _comparable(case: Mapping[str, Any]) -> str:
    """Cases of one key differ in plan only, so their order is a planner's business."""
    cluster = case.get("cluster") or {}
    batch = case.get("batch") or {}
    key = [
        case.get("group"),
        case.get("model"),
        cluster.get("device"),
        cluster.get("nodes"),
        batch.get("global"),
    ]
    return json.dumps(key, sort_keys=True)


def _order(errors: list[tuple[Scored, float]]) -> tuple[int, int, float | None]:
    """Pairs in the right order, pairs in all, and what taking the predicted best costs on average."""
    sets: dict[str, list[tuple[float, float]]] = {}
    for row, _ in errors:
        pair = (float(row.prediction["step_seconds"]), float(row.measured["step_time_s"]))
        sets.setdefault(_comparable(row.case), []).append(pair)
    right = pairs = 0
    regrets = []
    for found in sets.values():
        if len(found) < 3:
            continue
        for (p1, m1), (p2, m2) in combinations(found, 2):
            if max(m1, m2) / min(m1, m2) - 1.0 > APART:
                pairs += 1
                right += (p1 - p2) * (m1 - m2) > 0
        regrets.append(min(found)[1] / min(m for _, m in found) - 1.0)
    return right, pairs, mean(regrets) if regrets else None


def _coverage(errors: list[tuple[Scored, float]]) -> float | None:
    inside = []
    for row, _ in errors:
        low, high = row.prediction["interval"]
        inside.append(low <= float(row.measured["step_time_s"]) <= high)
    return sum(inside) / len(inside) if inside else None


def _verdicts(rows: list[Scored]) -> float | None:
    """Share of right answers to "does it fit"."""
    told = [bool(row.prediction["fits"]) == row.ran for row in rows if not row.failed]
    return sum(told) / len(told) if told else None


def _far(row: Scored, error: float) -> dict[str, Any]:
    return {
        "id": row.case.get("id"),
        "predicted": row.prediction["step_seconds"],
        "measured": row.measured["step_time_s"],
        "error": error,
    }
