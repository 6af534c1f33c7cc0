"""The optimizer's update."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import Feature, number, switch


@dataclass(frozen=True, slots=True)
class OptimizerUpdate(Feature):
    """What an update reads, writes and waits for."""

    # traffic of the update over that of a fused one
    update_passes: float = number(1.0, 0.0, 1000.0)
    # a global gradient norm joins all ranks before it
    clips_gradients: bool = switch(False)
