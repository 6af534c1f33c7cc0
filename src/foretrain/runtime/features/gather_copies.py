"""Copies around the buffers of gathers and reductions (nanotron, FSDP)."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import OptionalFeature, switch


@dataclass(frozen=True, slots=True)
class GatherCopies(OptionalFeature):
    """What is copied because a collective's buffer is not where the weights and gradients live."""

    # each rank's part of a weight gathered after its update is copied to its place
    copies_gathered: bool = switch(False, needs=("sharded states",))
    # fully sharded weights leave the gather's buffer by a copy …
    copies_out_gathered: bool = switch(False, needs=("fully sharded weights",))
    # … and their gradients enter the reduction's by one
    copies_in_gradients: bool = switch(False, needs=("fully sharded weights",))
