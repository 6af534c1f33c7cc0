"""Speed and money of a prediction, as columns or lines: of samples and tokens, so that steps of any batch compare."""

from __future__ import annotations

import math
from collections.abc import Sequence

from foretrain.analysis.prediction import Prediction
from foretrain.report import words

RATES = ("samples/s", "tokens/s/device", "per M tokens", "per k samples", "job", "job cost")


def rates(predictions: Sequence[Prediction]) -> list[tuple[str, ...]]:
    """A cell for each of `RATES`, empty where nothing is known; times in one unit."""
    jobs = [math.nan if p.job is None else p.job.expected_seconds for p in predictions]
    return [
        _cells(prediction, length)
        for prediction, length in zip(predictions, words.durations(jobs), strict=True)
    ]


def _cells(prediction: Prediction, job_length: str) -> tuple[str, ...]:
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
