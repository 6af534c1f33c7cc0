"""Speed and money of a prediction, as columns or lines: of samples and tokens, so that steps of any batch compare."""

from __future__ import annotations

from foretrain.analysis.prediction import Prediction
from foretrain.report import words

RATES = ("samples/s", "tokens/s/device", "per M tokens", "per k samples", "job", "job cost")


def rates(prediction: Prediction) -> tuple[tuple[str, str], ...]:
    """(what, how much), empty where nothing is known."""
    job, each = prediction.job, prediction.usd_per_sample
    length, tokens = prediction.question.get("seq_len"), prediction.tokens_per_second
    cells = (
        words.amount(prediction.samples_per_second),
        "" if tokens is None else words.amount(tokens / words.devices(prediction)),
        "" if each is None or not length else words.usd(1e6 * each / length),
        "" if each is None or length else words.usd(1e3 * each),
        "" if job is None else words.duration(job.expected_seconds),
        "" if job is None or job.usd is None else words.usd(job.usd),
    )
    return tuple(zip(RATES, cells, strict=True))
