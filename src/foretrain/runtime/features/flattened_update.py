"""Updates of split optimizer states through flat copies of the gradients (ZeRO-1 of DeepSpeed)."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import OptionalFeature, number


@dataclass(frozen=True, slots=True)
class FlattenedUpdate(OptionalFeature):
    """What the update takes besides, in blocks of its own, as copies of the split optimizer states."""

    update_copies: float = number(0.0, 0.0, 100.0, needs=("sharded states",))
