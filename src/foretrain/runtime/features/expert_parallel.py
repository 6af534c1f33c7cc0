"""Experts: their GEMMs, and how tokens get to them."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import Feature, number, switch


@dataclass(frozen=True, slots=True)
class ExpertParallel(Feature):
    """How a mixture of experts is run."""

    # GEMMs of experts in one launch, their activation fused
    groups_experts: bool = switch(True, needs=("experts",))
    # to a node, or inside one to a device, however many experts they have there
    sends_tokens_once: bool = switch(False, needs=("experts",))
    # share of the all-to-all hidden under a pass in the other direction, where there is one
    expert_overlap: float = number(0.0, 0.0, 1.0, needs=("experts",))
