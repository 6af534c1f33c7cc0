"""Weights of which each rank keeps a shard, and the gathers that bring them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrain.errors import InputError
from foretrain.runtime.features.option import Feature, listed, number, read_by, switch

_QUANTISED = ("fp8", "mxfp8", "nvfp4")


def _quantised(value: Any) -> tuple[str, ...]:
    names = listed(value, ",")
    for name in names:
        if name not in _QUANTISED:
            raise InputError(f"{name!r} is not one of {', '.join(_QUANTISED)}.")
    return names


@dataclass(frozen=True, slots=True)
class ShardedWeights(Feature):
    """When sharded weights are gathered, and in which format."""

    # under the next forward
    overlaps_parameter_gather: bool = switch(False, needs=("sharded states",))
    # precisions whose GEMMs' weights are gathered as the GEMMs read them
    gathers_quantised: tuple[str, ...] = read_by((), _quantised, needs=("sharded states",))
    # blocks whose fully sharded weights are gathered ahead
    prefetched_blocks: int = number(1, 0, 10_000, needs=("fully sharded weights",))
    # fully sharded weights are the master copy, cast when gathered
    shards_master: bool = switch(False, needs=("fully sharded weights",))
    # a case's fully sharded weights are gathered and their gradients reduced once in a step where there is a pipeline
    keeps_gathered_in_pipelines: bool = switch(False, needs=("pipeline parallelism",))
