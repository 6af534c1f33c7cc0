"""Explain: a prediction in sentences, from its document alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretrain.analysis.answer import Answer
from foretrain.analysis.document import expect_prediction
from foretrain.analysis.memory_words import memory_of, memory_verdict
from foretrain.analysis.prediction import STALLS, Prediction
from foretrain.units import rounded_seconds

_MEANING = {
    "compute": "running kernels",
    "interconnect": "waiting for communication inside nodes",
    "network": "waiting for communication between nodes",
    "bubble": "idle in the pipeline bubble",
    "host": "waiting for the CPU to launch kernels",
    "prep": "waiting for data preprocessing",
    "fetch": "waiting for storage",
    "imbalance": "waiting for slower ranks of the same stage",
    "optimizer": "updating the weights",
}


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Answer):
    """`critical_path` and `remedies` are rows of the document."""

    headline: str
    paragraphs: tuple[str, ...]
    critical_path: tuple[Mapping[str, Any], ...]
    remedies: tuple[Mapping[str, Any], ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "headline": self.headline,
            "paragraphs": list(self.paragraphs),
            "critical_path": [dict(row) for row in self.critical_path],
            "what_would_help": [dict(row) for row in self.remedies],
        }


def explain(document: Mapping[str, Any] | Prediction) -> Explanation:
    """Explain in sentences where the step time goes and what would help most.

    Args:
        document: a prediction, or its document (`Prediction.to_dict()`, or the content of a `.json` report).

    >>> from foretrain import explain, predict
    >>> why = explain(predict("gpt2", on="1 x dgx-h100", plan="dp8", batch=64))
    >>> why.headline.endswith("of it compute")
    True
    """
    data = (
        document.to_dict()
        if isinstance(document, Prediction)
        else expect_prediction(document, "the document")
    )
    step = float(data["step_seconds"])
    stalls = {name: float(data["stalls"].get(name, 0.0)) for name in STALLS}
    path = _summed(data.get("critical_path") or ())
    return Explanation(
        headline=f"{rounded_seconds(step)} per step, {_share(stalls['compute'], step)} of it compute",
        paragraphs=tuple(_paragraphs(data, stalls, step)),
        critical_path=tuple(path),
        remedies=tuple(data.get("what_would_help") or ()),
    )


def _paragraphs(data: Mapping[str, Any], stalls: Mapping[str, float], step: float) -> list[str]:
    ordered = sorted(stalls.items(), key=lambda pair: -pair[1])
    lines = [
        f"{_share(seconds, step)} {name}: {_MEANING[name]} ({rounded_seconds(seconds)})."
        for name, seconds in ordered
        if seconds > 0.0005 * step
    ]
    by_stage = data.get("stalls_by_stage") or ()
    if len(by_stage) > 1:
        busy = [float(stage.get("compute", 0.0)) for stage in by_stage]
        slow = busy.index(max(busy))
        lines.append(
            f"Stage {slow} has the longest compute time ({rounded_seconds(busy[slow])}), the "
            f"shortest takes {rounded_seconds(min(busy))}; a balanced split would take "
            f"{rounded_seconds(sum(busy) / len(busy))}."
        )
    memory = data.get("memory") or {}
    if memory:
        moment = f" ({memory['moment']})" if memory.get("moment") else ""
        lines.append(
            f"Memory peaks on stage {memory.get('peak_stage', 0)}{moment}; it "
            f"{memory_verdict(memory_of(data))}."
        )
    remedies = data.get("what_would_help") or ()
    if remedies:
        best = remedies[0]
        lines.append(
            f"Largest gain: {best['change']} would give a speedup of {best['speedup']:.2f}×."
        )
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
    return f"{100 * part / whole:.1f} %" if whole else "0 %"
