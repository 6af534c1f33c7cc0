"""Gathers weight by weight into lists of every rank's part (ZeRO-3 of early 2021)."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.gradients import LARGEST
from foretrain.runtime.features.option import OptionalFeature, number, switch


@dataclass(frozen=True, slots=True)
class UncoalescedGather(OptionalFeature):
    """What a host does for every part of a fully sharded weight."""

    # calls for every rank's part of every weight, each in the time of a kernel launch
    calls_per_part: float = number(0.0, 0.0, 10_000.0, needs=("fully sharded weights",))
    # elements of the least weight that is sharded, where such calls count
    splits_from: float = number(0.0, 0.0, LARGEST, needs=("fully sharded weights",))
    # once more for ops that run again before going back
    gathers_rerun: bool = switch(False, needs=("fully sharded weights",))
