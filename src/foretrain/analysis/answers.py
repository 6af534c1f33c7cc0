"""Answers to follow-up questions: does it fit, and what if something were different."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from foretrain.analysis.answer import Answer
from foretrain.analysis.prediction import Prediction, Remedy


@dataclass(frozen=True, repr=False)
class FitAnswer(Answer):
    """`changes` of plan and stack, the fastest first, then other machines; empty when it fits as it is."""

    prediction: Prediction
    fits: bool
    changes: tuple[Remedy, ...]

    def to_dict(self) -> dict[str, Any]:
        document = self.prediction.to_dict()
        return {
            "fits": self.fits,
            "memory": document["memory"],
            "changes": [asdict(change) for change in self.changes],
            "prediction": document,
        }


@dataclass(frozen=True, repr=False)
class WhatIf(Answer):
    """The same step as asked (`base`) and with `changes` (`changed`)."""

    base: Prediction
    changed: Prediction
    changes: Mapping[str, Any]

    @property
    def unit(self) -> str:
        """What speeds are compared by: tokens where samples are of another length."""
        lengths = {p.question.get("seq_len") for p in (self.base, self.changed)}
        return "token" if len(lengths) > 1 and None not in lengths else "sample"

    @property
    def speedup(self) -> float:
        """How many times as fast training is: a larger batch makes a longer step, not a slower one."""
        name = f"{self.unit}s_per_second"
        before, after = getattr(self.base, name), getattr(self.changed, name)
        return float(after / before) if before else 1.0

    @property
    def remarks(self) -> tuple[str, ...]:
        """Where the work is another, times do not compare."""
        models = [str(p.question.get("model")) for p in (self.base, self.changed)]
        sizes = {p.question.get("parameters") for p in (self.base, self.changed)}
        if len(set(models)) > 1:
            return (f"Different work: {models[0]} before, {models[1]} after.",)
        if len(sizes) > 1:  # adapters
            return (f"Different work: {models[0]} has other parameters after.",)
        return ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "changes": dict(self.changes),
            "speedup": self.speedup,
            "speedup_per": self.unit,
            "remarks": list(self.remarks),
            "base": self.base.to_dict(),
            "changed": self.changed.to_dict(),
        }
