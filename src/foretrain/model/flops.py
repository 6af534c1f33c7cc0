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
    """Forward and backward of one sample; backward is two products for each of forward's, but one for weights that are
    frozen and so have no gradient."""
    return sum(
        block.repeat * (2.0 if op.is_frozen else 3.0) * family(op).flops(op)
        for block, op in model.ops()
    )
