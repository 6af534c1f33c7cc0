"""Model FLOPs: what the mathematics asks for, whatever the implementation recomputes or skips."""

from __future__ import annotations

from foretrain.model.graph import Model
from foretrain.model.ops import family


def forward_flops(model: Model) -> float:
    """FLOPs of one sample's forward pass, two per multiply-add, contractions only."""
    return sum(
        block.repeat * sum(family(op).flops(op) for op in block.ops) for block in model.blocks
    )


def training_flops(model: Model) -> float:
    """Forward and backward of one sample; backward is two products for each of forward's."""
    return 3.0 * forward_flops(model)
