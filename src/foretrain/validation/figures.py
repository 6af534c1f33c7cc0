"""Error figures of a group of cases: how far off, in which direction, and whether the order is right."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean, median
from typing import Any

from foretrain.validation.memory import BY_RANK, RankMemory, by_rank, meaning_of, predicted_gib
from foretrain.validation.split import half_of

APART = 0.10  # pairs measured closer than this have no order worth predicting


@dataclass(frozen=True, slots=True)
class Scored:
    """One case with its prediction document."""

    case: Mapping[str, Any]
    prediction: Mapping[str, Any]

    @property
    def measured(self) -> Mapping[str, Any]:
        measured: Mapping[str, Any] = self.case.get("measured") or {}
        return measured

    @property
    def group(self) -> str:
        return str(self.case.get("group", ""))

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
    def is_inside(self) -> bool:
        """Whether the interval covers what was measured."""
        low, high = self.prediction["interval"]
        return bool(low <= float(self.measured["step_time_s"]) <= high)

    @property
    def memory_error(self) -> float | None:
        """Of the fullest device, by what the source means by memory."""
        gib = self.measured.get("memory_gib")
        if self.failed or not self.ran or not gib:
            return None
        return predicted_gib(self.case, self.prediction["memory"]) / float(gib) - 1.0

    @property
    def ranks(self) -> tuple[RankMemory, ...]:
        """Memory rank by rank, where it was measured so."""
        return () if self.failed or not self.ran else by_rank(self.case, self.prediction["memory"])


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
        "memory_n": len(memory),
        "memory_mape": mean(memory) if memory else None,
        **_of_ranks(rows),
        "coverage": _coverage(errors),
        "fits_accuracy": _verdicts(rows),
        "worst": [
            _far(row, error) for row, error in sorted(errors, key=lambda e: -abs(e[1]))[:worst]
        ],
    }


def _of_ranks(rows: list[Scored]) -> dict[str, Any]:
    """How many ranks were measured and how far off they are, by what was measured of them."""
    ranks = [rank for row in rows for rank in row.ranks]
    out: dict[str, Any] = {"ranks_n": len(ranks)}
    for meaning in BY_RANK.values():
        errors = [abs(rank.error) for rank in ranks if rank.meaning == meaning]
        out[f"ranks_{meaning}_mape"] = mean(errors) if errors else None
    return out


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
    for times in sets.values():
        if len(times) < 3:
            continue
        for (p1, m1), (p2, m2) in combinations(times, 2):
            if max(m1, m2) / min(m1, m2) - 1.0 > APART:
                pairs += 1
                right += (p1 - p2) * (m1 - m2) > 0
        regrets.append(min(times)[1] / min(m for _, m in times) - 1.0)
    return right, pairs, mean(regrets) if regrets else None


def _coverage(errors: list[tuple[Scored, float]]) -> float | None:
    return sum(row.is_inside for row, _ in errors) / len(errors) if errors else None


def _verdicts(rows: list[Scored]) -> float | None:
    """Share of right answers to "does it fit"."""
    verdicts = [bool(row.prediction["fits"]) == row.ran for row in rows if not row.failed]
    return sum(verdicts) / len(verdicts) if verdicts else None


def _far(row: Scored, error: float) -> dict[str, Any]:
    return {
        "id": row.case.get("id"),
        "predicted": row.prediction["step_seconds"],
        "measured": row.measured["step_time_s"],
        "error": error,
        "reason": likely_reason(row.prediction, row.case, row.is_inside),
    }


def row_document(row: Scored) -> dict[str, Any]:
    """One case beside what was measured, None where there is nothing to tell."""
    prediction, error = row.prediction, row.error
    question: Mapping[str, Any] = prediction.get("question") or {}
    memory: Mapping[str, Any] = prediction.get("memory") or {}
    return {
        "id": row.case.get("id"),
        "group": row.group,
        "half": half_of(row.case),
        "what": " · ".join(
            str(question[key]) for key in ("model", "cluster", "plan") if question.get(key)
        ),
        "predicted": prediction.get("step_seconds"),
        "measured": row.measured.get("step_time_s"),
        "interval": prediction.get("interval"),
        "error": error,
        "fits": prediction.get("fits"),
        "ran": row.ran,
        "memory_predicted_gib": predicted_gib(row.case, memory) if memory else None,
        "memory_measured_gib": row.measured.get("memory_gib"),
        "memory_is": meaning_of(row.case),
        "memory_by_rank": [_rank_document(rank) for rank in row.ranks],
        "reason": _why(row, error),
    }


def _rank_document(rank: RankMemory) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "stage": rank.stage,
        "is": rank.meaning,
        "predicted_gib": rank.predicted,
        "measured_gib": rank.measured,
    }


def _why(row: Scored, error: float | None) -> str:
    if row.failed:
        return str(row.prediction["error"]["message"])
    return "" if error is None else likely_reason(row.prediction, row.case, row.is_inside)


# --- why a prediction may be far off: what stands out in its own document ---------------------------------

NOTABLE = 0.15
"""share of a step from which a stall is worth naming"""
RELIES = 0.5
"""share of kernels and communication from which a prediction rests on measured tables"""
DECIDING = (
    " in the plan)", "(--plan)", "(--micro-batch)", "(--batch)", "(--precision)", "(--runtime)", "(runtime)",
)  # fmt: skip
"""How assumptions end that can change a step by much; the others fill in details."""


def likely_reason(prediction: Mapping[str, Any], case: Mapping[str, Any], is_inside: bool) -> str:
    """Most telling first; never empty."""
    return "; ".join(_reasons(prediction, case, is_inside))


def _reasons(
    prediction: Mapping[str, Any], case: Mapping[str, Any], is_inside: bool
) -> Iterator[str]:
    if not prediction.get("fits", True):
        yield "predicted not to fit"
    missing = _missing(prediction.get("assumptions") or ())
    if missing:
        yield f"assumed: {missing}"
    yield _share(prediction)
    warnings: Sequence[str] = prediction.get("warnings") or ()
    if warnings:
        yield str(warnings[0]).rstrip(".")
    stated = [str(line).partition(":")[0] for line in case.get("assumed") or ()]
    if stated:
        yield f"inferred by the publisher: {', '.join(stated[:2])}"
    if not is_inside:
        yield "outside its interval"


def _missing(assumptions: Sequence[str]) -> str:
    names = [line.partition(":")[0] for line in assumptions if line.endswith(DECIDING)]
    return ", ".join(names[:3])


def _share(prediction: Mapping[str, Any]) -> str:
    """The greatest stall, or that it is kernels and how well those are known."""
    stalls: Mapping[str, float] = prediction.get("stalls") or {}
    step = float(prediction.get("step_seconds") or 0.0)
    others = {name: s / step for name, s in stalls.items() if name != "compute" and step > 0.0}
    if others:
        name = max(others, key=lambda key: others[key])
        if others[name] >= NOTABLE:
            return f"{name} is {100 * others[name]:.0f} % of the step"
    if float(prediction.get("measured_share") or 0.0) < RELIES:
        return "kernels, which are based on data sheets"
    return "kernels"
