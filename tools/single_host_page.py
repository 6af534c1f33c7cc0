"""What `single_host.py` found, as a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean, median
from typing import Any

from small_models import Training

from foretrain.measurement.timing import median_interval
from foretrain.report.md import table

MEAN_AIM, P90_AIM = 0.08, 0.15

HOW = """\
For each configuration in each round, the kernels of its step are timed one by one, each after the eight calls that precede it
in the step (`foretrain.measurement.ops.measure_ops`, as in `foretrain measure ops`); the step is predicted from these timings;
then the configuration is trained in separate processes, and its steps are timed. No step or part of a step is measured before
it is predicted. For runs of two processes, kernels are timed by two concurrent processes, and all-reduces and drift by
`foretrain measure links` at the start of the round. Each process has one thread.

*measured* and *predicted* are medians over the rounds, *interval* is the widest 95 % interval of a round's median step,
*rounds apart* is the difference between the slowest and the fastest round, *error* is the median of the rounds' errors: a
round's prediction is compared with the training right after it, since the speed of the machine drifts between rounds. *once*
compares the predictions of the first round with the median training of all later ones: kernels are timed once, then everything
is trained. It includes the drift of the machine between the two."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One configuration: medians over rounds. The error is the median of the rounds' errors, each of a prediction and
    the training that came right after it."""

    run: Training
    predicted: float
    measured: float
    error: float
    once: (
        float | None
    )  # error of the first round's prediction for the later rounds' trainings, where there are any
    rounds: tuple[float, ...]  # median step of each
    interval: tuple[float, float]  # of the median within a round, relative; the widest

    @classmethod
    def of(cls, run: Training, results: Sequence[Mapping[str, Any]]) -> Compared:
        own = [one for one in results if Training(**one["run"]) == run]
        steps = [one["step_seconds"] for one in own]
        each = tuple(median(taken) for taken in steps)
        ends = [median_interval(taken) for taken in steps]
        reach = [(low / m - 1, high / m - 1) for (low, high), m in zip(ends, each, strict=True)]
        widest = max(reach, key=lambda one: one[1] - one[0])
        predicted = [one["predicted_seconds"] for one in own]
        errors = [p / m - 1.0 for p, m in zip(predicted, each, strict=True)]
        once = predicted[0] / median(each[1:]) - 1.0 if len(each) > 1 else None
        return cls(run, median(predicted), median(each), median(errors), once, each, widest)

    @property
    def noise(self) -> float:
        """How far rounds of the same training are apart."""
        return (max(self.rounds) - min(self.rounds)) / self.measured


def line(name: str, measured: float, predicted: float, error: float) -> str:
    return f"{name:50s} {1e3 * measured:8.2f} ms  predicted {1e3 * predicted:8.2f} ms {100 * error:+6.1f} %"


def scored(rows: Sequence[Compared]) -> tuple[list[float], float]:
    """Absolute errors from small to large, and what nine of ten are within."""
    return _spread(row.error for row in rows)


def _spread(errors: Iterable[float]) -> tuple[list[float], float]:
    away = sorted(map(abs, errors))
    return away, away[ceil(0.9 * len(away)) - 1]


def page(rows: Sequence[Compared], rounds: int, machine: str) -> str:
    errors, p90 = scored(rows)
    head = ("configuration", "measured", "interval", "rounds apart", "predicted", "error", "once")
    body = [
        (
            row.run.name,
            f"{1e3 * row.measured:.2f} ms",
            f"{100 * row.interval[0]:+.1f} … {100 * row.interval[1]:+.1f} %",
            f"{100 * row.noise:.1f} %",
            f"{1e3 * row.predicted:.2f} ms",
            f"{100 * row.error:+.1f} %",
            "" if row.once is None else f"{100 * row.once:+.1f} %",
        )
        for row in rows
    ]
    parts = (
        "# One host: predicted vs. measured",
        f"`python tools/single_host.py --rounds {rounds}` on {machine}: {len(rows)} training runs of real models "
        f"(perceptrons, convolutional nets, transformers), medians of {rounds} rounds.",
        f"Mean error {100 * mean(errors):.1f} % (aim {100 * MEAN_AIM:.0f} %), median {100 * median(errors):.1f} %, "
        f"90 % of runs within {100 * p90:.1f} % (aim {100 * P90_AIM:.0f} %). {_by_processes(rows)} "
        f"Predicted over measured medians: {100 * mean(abs(r.predicted / r.measured - 1) for r in rows):.1f} %. "
        f"Noise: the same training in another round differs by {100 * median(r.noise for r in rows):.1f} % "
        f"(median), up to {100 * max(r.noise for r in rows):.1f} %. {_kernels_once(rows)}",
        HOW,
        table(head, body),
    )
    return "\n\n".join(parts) + "\n"


def _by_processes(rows: Sequence[Compared]) -> str:
    told = []
    for count in sorted({row.run.processes for row in rows}):
        own = [row.error for row in rows if row.run.processes == count]
        away = mean(abs(error) for error in own)
        name = "one process" if count == 1 else f"{count} processes"
        told.append(f"{name} {100 * away:.1f} % (bias {100 * mean(own):+.1f} %)")
    return "Of them " + ", ".join(told) + "."


def _kernels_once(rows: Sequence[Compared]) -> str:
    found = [row.once for row in rows if row.once is not None]
    if not found:
        return ""
    errors, p90 = _spread(found)
    return (
        f"Kernels timed once, in the first round, against the trainings of later rounds: mean error "
        f"{100 * mean(errors):.1f} %, 90 % within {100 * p90:.1f} % (bias {100 * mean(found):+.1f} %)."
    )
