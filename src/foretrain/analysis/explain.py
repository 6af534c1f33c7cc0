"""Explain: a prediction in sentences, from its document alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretrain.analysis.prediction import STALLS, Prediction
from foretrain.errors import InputError
from foretrain.units import show_bytes, show_seconds

_MEANING = {
    "compute": "kernels ran",
    "interconnect": "waiting for communication inside nodes",
    "network": "waiting for communication between nodes",
    "bubble": "the pipeline had nothing for a stage to do",
    "host": "the device waited for the CPU to issue work",
    "prep": "waiting for the CPU to prepare data",
    "fetch": "waiting for storage",
    "imbalance": "waiting for slower ranks of the same stage",
    "optimizer": "updating the weights",
}


@dataclass(frozen=True, slots=True)
class Explanation:
    """`critical_path` and `remedies` are rows of the document."""

    headline: str
    paragraphs: tuple[str, ...]
    critical_path: tuple[Mapping[str, Any], ...]
    remedies: tuple[Mapping[str, Any], ...]


def explain(document: Mapping[str, Any] | Prediction) -> Explanation:
    """Why the step takes its time and what would help most."""
    data = document.to_dict() if isinstance(document, Prediction) else document
    if "step_seconds" not in data or not isinstance(data.get("stalls"), Mapping):
        raise InputError("this is not a prediction document: it has no step_seconds and stalls.")
    step = float(data["step_seconds"])
    stalls = {name: float(data["stalls"].get(name, 0.0)) for name in STALLS}
    path = _summed(data.get("critical_path") or ())
    return Explanation(
        headline=f"{show_seconds(step)} per step, {_share(stalls['compute'], step)} of it computing",
        paragraphs=tuple(_paragraphs(data, stalls, step)),
        critical_path=tuple(path),
        remedies=tuple(data.get("what_would_help") or ()),
    )


def _paragraphs(data: Mapping[str, Any], stalls: Mapping[str, float], step: float) -> list[str]:
    ordered = sorted(stalls.items(), key=lambda pair: -pair[1])
    lines = [
        f"{_share(seconds, step)} {name}: {_MEANING[name]} ({show_seconds(seconds)})."
        for name, seconds in ordered
        if seconds > 0.0005 * step
    ]
    by_stage = data.get("stalls_by_stage") or ()
    if len(by_stage) > 1:
        busy = [float(stage.get("compute", 0.0)) for stage in by_stage]
        slow = busy.index(max(busy))
        lines.append(
            f"Stage {slow} computes longest ({show_seconds(busy[slow])}), the shortest takes"
            f" {show_seconds(min(busy))}: an even split would be {show_seconds(sum(busy) / len(busy))}."
        )
    memory = data.get("memory") or {}
    if memory:
        lines.append(
            f"Memory peaks at {show_bytes(memory['peak_bytes'])} of {show_bytes(memory['capacity_bytes'])}"
            f" on stage {memory.get('peak_stage', 0)} ({memory.get('moment', '')})."
        )
    remedies = data.get("what_would_help") or ()
    if remedies:
        best = remedies[0]
        lines.append(f"Most would be won by {best['change']}: {best['speedup']:.2f} times as fast.")
    return lines


def _summed(path: Any) -> list[dict[str, Any]]:
    """Seconds of the critical path by stage and activity, longest first."""
    total: dict[tuple[int, str], float] = {}
    for row in path:
        key = (int(row["stage"]), str(row["what"]))
        total[key] = total.get(key, 0.0) + float(row["end"]) - float(row["start"])
    ordered = sorted(total.items(), key=lambda pair: -pair[1])
    return [
        {"what": what, "stage": stage, "seconds": seconds}
        for (stage, what), seconds in ordered[:20]
    ]


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "0 %"
