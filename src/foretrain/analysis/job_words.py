"""What a question may say of a job. Apart from what is made of it, which a question about a step has no use for."""

from __future__ import annotations

from typing import TypedDict


class JobWords(TypedDict, total=False):
    """What a question may say of a job."""

    tokens: float | str | None
    samples: float | str | None
    steps: float | str | None
    epochs: float | str | None
    dataset_samples: float | str | None
    dataset_tokens: float | str | None
    usd_per_hour: float | str | None  # of one device
    pue: float | str | None
    mtbf: float | str | None  # of one node: seconds, or "90d"
    restart: float | str | None  # seconds, or "15m"
    checkpoint_rate: float | str | None  # of one node: bytes/s, or "2GB/s"
