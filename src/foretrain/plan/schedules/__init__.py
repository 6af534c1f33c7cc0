"""Pipeline schedules by name: one file each, one row each in `SCHEDULES`."""

from __future__ import annotations

from foretrain.errors import PlanError, hint
from foretrain.plan.schedules.base import (
    BACKWARD,
    BACKWARD_WEIGHT,
    FORWARD,
    PipelineSchedule,
    Steps,
)
from foretrain.plan.schedules.gpipe import GPipe
from foretrain.plan.schedules.interleaved import Interleaved
from foretrain.plan.schedules.one_f_one_b import OneForwardOneBackward
from foretrain.plan.schedules.zero_bubble import ZeroBubbleH1

__all__ = [
    "BACKWARD",
    "BACKWARD_WEIGHT",
    "FORWARD",
    "SCHEDULES",
    "PipelineSchedule",
    "Steps",
    "schedule",
]

SCHEDULES: dict[str, PipelineSchedule] = {
    "gpipe": GPipe(),
    "1f1b": OneForwardOneBackward(),
    "interleaved": Interleaved(),
    "zb-h1": ZeroBubbleH1(),
}


def schedule(name: str) -> PipelineSchedule:
    """A schedule by name."""
    if name not in SCHEDULES:
        raise PlanError(f"unknown schedule {name!r}.{hint(name, SCHEDULES)}")
    return SCHEDULES[name]
