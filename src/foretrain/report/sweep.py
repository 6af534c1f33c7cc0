"""The document of a sweep: a row for each combination."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from foretrain.analysis.prediction import Prediction
from foretrain.asked import word_of
from foretrain.report import words
from foretrain.report.document import Document, Section, Table, listed
from foretrain.sweeps import Sweep


def sweep_document(sweep: Sweep) -> Document:
    count, best = len(sweep.points), sweep.best
    headline = f"Best of {count:,}: {best.name}" if best else f"None of {count:,} fits"
    whole = (word_of(value) for point in sweep.points for value in point.values.values())
    return Document(
        headline,
        sweep.to_dict,
        partial(_sections, sweep),
        is_no=best is None,
        asked=_asked(sweep),
        make_rows=sweep.rows,
        whole=(*dict.fromkeys(whole),),
    )


def _sections(sweep: Sweep) -> Iterator[Section]:
    chosen = _chosen(sweep)
    answered = [(point.values, p) for point in sweep.points if (p := point.prediction) is not None]
    predictions = [prediction for _, prediction in answered]
    steps = words.seconds_alike(prediction.step_seconds for prediction in predictions)
    table = [
        (*map(word_of, values.values()), *_cells(prediction, chosen, step, speeds))
        for (values, prediction), step, speeds in zip(
            answered, steps, rates(predictions), strict=True
        )
    ]
    named = len(sweep.varied) + len(chosen)
    head = (*sweep.varied, *chosen, "step", "MFU", *RATES, "peak of usable")
    kept = [c for c in range(len(head)) if c < named or any(row[c] for row in table)]
    failed = tuple(
        (point.name, words.clean(point.error["message"]))
        for point in sweep.points
        if point.error is not None
    )
    letters = "".join("p" if head[c] == "plan" else "n" if c < named else "r" for c in kept)
    rows = tuple(tuple(row[c] for c in kept) for row in table)
    yield Table("Sweep", tuple(head[c] for c in kept), rows, letters)
    yield Table("Invalid combinations", ("", "why"), failed, left=2)
    yield listed("Assumptions", _common(sweep))


def _asked(sweep: Sweep) -> str:
    """What all points have in common."""
    question = next((point.prediction.question for point in sweep.points if point.prediction), {})
    parts = [words.clean(question[key]) for key in ("model", "cluster") if question.get(key)]
    return " on ".join(parts) if not {"model", "on"} & {*sweep.varied} else ""


def _chosen(sweep: Sweep) -> tuple[str, ...]:
    """What was filled in differently from point to point."""
    asked = [point.prediction.question for point in sweep.points if point.prediction is not None]
    names = (name for name in ("runtime", "plan", "micro_batch") if name not in sweep.varied)
    return tuple(name for name in names if len({one[name] for one in asked}) > 1)


def _common(sweep: Sweep) -> tuple[str, ...]:
    """Assumptions that hold at every point."""
    assumptions = [
        point.prediction.assumptions for point in sweep.points if point.prediction is not None
    ]
    return (
        tuple(line for line in assumptions[0] if all(line in one for one in assumptions))
        if assumptions
        else ()
    )


def _cells(
    prediction: Prediction, chosen: tuple[str, ...], step: str, speeds: tuple[str, ...]
) -> tuple[str, ...]:
    fits = words.of_memory(prediction) + ("" if prediction.fits else " DOES NOT FIT")
    mfu = "" if prediction.mfu is None else words.percent(prediction.mfu)
    filled_in = (str(prediction.question[name]) for name in chosen)
    return (*filled_in, step, mfu, *speeds, fits.replace(" usable", ""))


# --- speed and money --------------------------------------------------------------------------------

RATES = ("samples/s", "tokens/s/device", "per M tokens", "per k samples", "job", "job cost")


def rates(predictions: Sequence[Prediction]) -> list[tuple[str, ...]]:
    """A cell for each of `RATES`, empty where nothing is known; times in one unit."""
    jobs = [math.nan if p.job is None else p.job.expected_seconds for p in predictions]
    return [
        _rates(prediction, length)
        for prediction, length in zip(predictions, words.durations(jobs), strict=True)
    ]


def _rates(prediction: Prediction, job_length: str) -> tuple[str, ...]:
    job, each = prediction.job, prediction.usd_per_sample
    length, tokens = prediction.question.get("seq_len"), prediction.tokens_per_second
    return (
        words.amount(prediction.samples_per_second),
        "" if tokens is None else words.amount(tokens / words.devices(prediction)),
        "" if each is None or not length else words.usd(1e6 * each / length),
        "" if each is None or length else words.usd(1e3 * each),
        "" if job is None else job_length,
        "" if job is None or job.usd is None else words.usd(job.usd),
    )
