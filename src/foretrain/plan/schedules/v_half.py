"""V-Half (Qi et al. 2024, arXiv 2405.15362, section 3.3): a building block in which forward passes down and input gradients down
have two slots a stage, and those up one."""

from __future__ import annotations

from foretrain.plan.schedules.building_blocks import BuildingBlocks

_BEHIND = 3  # slots that backward waits where it would take those of forward passes


class VHalf(BuildingBlocks):
    """Half the activations of 1F1B's first stage, on all stages, with room for passes of unlike length."""

    name = "v-half"

    def block(self, stage: int, stages: int) -> tuple[int, int, int, int]:
        gap = _BEHIND if stages % 2 == 0 else 0
        down, up = 2 * stage, 3 * stages - 2 - stage
        return down, up, 3 * stages + gap - 1 + down, 6 * stages + gap - 2 - stage
