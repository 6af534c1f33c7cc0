"""V-Min (Qi et al. 2024, arXiv 2405.15362, section 3.3): the shortest building block along a V, every pass right behind the one
before it."""

from __future__ import annotations

from foretrain.plan.schedules.building_blocks import BuildingBlocks

_BEHIND = 2  # slots that backward waits where it would take those of forward passes


class VMin(BuildingBlocks):
    """A third of the activations of 1F1B's first stage, on all stages. Passes of unlike length wait for each other."""

    name = "v-min"

    def block(self, stage: int, stages: int) -> tuple[int, int, int, int]:
        gap = _BEHIND if stages % 3 == 0 else 0
        way = 2 * stages
        return stage, way - 1 - stage, way + gap + stage, 2 * way + gap - 1 - stage
