"""Remarks on the batch: how far beyond the critical batch a job trains, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence

from foretrain.plan.facts import family_of
from foretrain.recommendation.job import Job
from foretrain.recommendation.market import figure
from foretrain.units import show_count

_FIGURES = {"transformer": "tokens", "cnn": "samples"}
_GROUPS = {"transformer": "transformer", "cnn": "convolutional"}


def batch_notes(job: Job, devices: Sequence[int]) -> list[str]:
    """What the batch of the job, or of its largest offer, means for the number of steps; empty where it is small."""
    if not devices:
        return []
    batch = max(job.batch_on(size) for size in devices)
    if job.critical_batch is not None:
        return [_told(job, batch, job.critical_batch)]
    known = published(job)
    if known is None:
        return []
    critical, unit, source = known
    size = batch * (job.model.seq_len or 1) if unit == "tokens" else batch
    if size <= critical:
        return []
    return [
        f"a batch of {show_count(size)} {unit} is beyond the published critical batch of {show_count(critical)} {unit} "
        f"({source}): more samples may be needed for the same loss than the job has (--critical-batch)"
    ]


def published(job: Job) -> tuple[float, str, str] | None:
    """Critical batch, its unit and its source; None for kinds of models that have none."""
    kind = family_of(job.model)
    unit = _FIGURES.get(kind)
    if unit is None or (unit == "tokens" and job.model.seq_len is None):
        return None
    group = _GROUPS[kind]
    source = str(figure.groups["critical-batch"][f"{group}_source"])
    return figure("critical-batch", f"{group}_{unit}"), unit, source


def _told(job: Job, batch: int, critical: float) -> str:
    factor = 1.0 + batch / critical
    beyond = ", beyond the critical batch" if batch > critical else ""
    return (
        f"samples: {factor:.2f} times {job.asked} at a batch of {batch:,}{beyond}: 1 + B/B_crit, McCandlish et al. 2018 "
        "(--critical-batch)"
    )
