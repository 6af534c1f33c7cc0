"""Sweep: every combination of some values, predicted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from foretrain.analysis.answer import TableAnswer
from foretrain.analysis.prediction import Prediction
from foretrain.asked import ClusterLike, ModelLike, Options, word_of
from foretrain.errors import InputError, refuse
from foretrain.keywords import keywords
from foretrain.simulate import answer
from foretrain.units import rounded_seconds
from foretrain.whatifs import changed, expect_changes

MAX_POINTS = 10_000
DAY = 86_400.0


@dataclass(frozen=True)
class SweepPoint:
    """One combination: its prediction, or why there is none."""

    values: Mapping[str, Any]
    prediction: Prediction | None = None
    error: Mapping[str, str] | None = None  # kind, message

    def __repr__(self) -> str:
        prediction = self.prediction
        if prediction is None:
            return f"<SweepPoint {self.name}: {(self.error or {}).get('message', '')}>"
        fits = "fits" if prediction.fits else "does not fit"
        return (
            f"<SweepPoint {self.name}: {rounded_seconds(prediction.step_seconds)} per step, {fits}>"
        )

    def _repr_html_(self) -> str | None:
        return None if self.prediction is None else self.prediction._repr_html_()

    @property
    def name(self) -> str:
        """`batch=64 plan=tp8`."""
        return " ".join(f"{key}={word_of(value)}" for key, value in self.values.items())

    def to_dict(self) -> dict[str, Any]:
        if self.prediction is None:
            return {"values": dict(self.values), "error": dict(self.error or {})}
        return {"values": dict(self.values), "prediction": self.prediction.to_dict()}

    def row(self) -> dict[str, Any]:
        p = self.prediction
        resolved = ("runtime", "plan", "micro_batch")
        job = None if p is None else p.job
        figures = ("step_seconds", "samples_per_second", "tokens_per_second", "mfu", "bottleneck")
        return {
            **{name: None if p is None else p.question[name] for name in resolved},
            **self.values,
            **{name: None if p is None else getattr(p, name) for name in figures},
            "peak_bytes": None if p is None else p.memory.peak_bytes,
            "usable_bytes": None if p is None else p.memory.usable_bytes,
            "fits": None if p is None else p.fits,
            "usd_per_step": None if p is None else p.cost.usd_per_step,
            "job_days": None if job is None else job.expected_seconds / DAY,
            "job_usd": None if job is None else job.usd,
            "error": None if self.error is None else self.error["message"],
        }


@dataclass(frozen=True, repr=False)
class Sweep(TableAnswer):
    """`points` in the order of the values, the last of `varied` running fastest."""

    varied: tuple[str, ...]
    points: tuple[SweepPoint, ...]

    @property
    def best(self) -> SweepPoint | None:
        """The point that fits with the most tokens a second; samples where there are no tokens."""
        fitting = [p for p in self.points if p.prediction is not None and p.prediction.fits]
        return max(fitting, key=_rate, default=None)

    def rows(self) -> list[dict[str, Any]]:
        return [point.row() for point in self.points]

    def to_dict(self) -> dict[str, Any]:
        return {
            "varied": list(self.varied),
            "points": [point.to_dict() for point in self.points],
            "best": None if self.best is None else self.best.name,
        }


def _rate(point: SweepPoint) -> float:
    p = point.prediction
    return 0.0 if p is None else p.tokens_per_second or p.samples_per_second


@keywords(Options)
def sweep(
    model: ModelLike | None = None,
    *,
    vary: Mapping[str, Sequence[Any]],
    on: ClusterLike | None = None,
    progress: Callable[[int], None] | None = None,
    **question: Unpack[Options],
) -> Sweep:
    """Predict all combinations of the given values.

    Args:
        model: as for `predict`; may be omitted if it is varied.
        vary: values by name: keywords of `predict` (`{"batch": [64, 128], "plan": ["tp8", "dp8"]}`) factors of the
            hardware or options of the runtime as in `whatif` (`{"network.bandwidth": ["1x", "2x"]}`).
        on: as for `predict`; may be omitted if it is varied.
        progress: called with the number of points done.
        **question: the other keywords of `predict`.

    Returns:
        A point for each combination. An invalid combination, such as a plan that does not match the devices, states the
        reason; where all are invalid for one reason, that is raised.

    >>> from foretrain import sweep
    >>> swept = sweep("gpt2", on="1 x dgx-h100", plan="dp8", vary={"batch": [64, 128]})
    >>> [row["batch"] for row in swept.rows()], swept.best.values
    ([64, 128], {'batch': 128})
    """
    options = question.get("runtime_options") or {}
    _expect(vary, {**options, **question, "model": model, "on": on})
    points = []
    for combination in itertools.product(*vary.values()):
        points.append(_point(model, on, question, dict(zip(vary, combination, strict=True))))
        if progress is not None:
            progress(len(points))
    errors = {point.error["message"] if point.error else "" for point in points}
    if len(errors) == 1 and "" not in errors:  # no value that is varied has to do with it
        raise InputError(*errors)
    return Sweep(tuple(vary), tuple(points))


def _expect(vary: Mapping[str, Sequence[Any]], given: Mapping[str, Any]) -> None:
    expect_changes(vary)
    faults = [
        f"{name}: {values!r} is not a list of values."
        for name, values in vary.items()
        if isinstance(values, str) or not len(values)
    ]
    faults += [
        f"{name}: missing. Specify it, or values to sweep."
        for name in ("model", "on")
        if given[name] is None and name not in vary
    ]
    faults += [
        f"{name}: specified twice, as {given[name]!s} and as values to sweep. Remove one of them."
        for name in vary
        if given.get(name) is not None
    ]
    if not vary:
        faults.append("vary: missing. Specify what to vary, such as seq.")
    if math.prod(len(values) for values in vary.values()) > MAX_POINTS:
        faults.append(f"more than {MAX_POINTS:,} combinations; specify fewer values.")
    refuse("invalid sweep:", faults)


def _point(
    model: ModelLike | None,
    on: ClusterLike | None,
    question: Mapping[str, Any],
    values: Mapping[str, Any],
) -> SweepPoint:
    given = dict(question) if on is None else {**question, "on": on}
    try:
        asked = changed(model or values["model"], given, values)
        return SweepPoint(values, answer(asked))
    except InputError as error:
        return SweepPoint(values, error={"kind": type(error).__name__, "message": str(error)})
