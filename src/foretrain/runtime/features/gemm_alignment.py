"""Libraries whose GEMMs need dims of a certain multiple (cuBLAS before 11)."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import OptionalFeature, number


@dataclass(frozen=True, slots=True)
class GemmAlignment(OptionalFeature):
    """What the dims of a 16-bit GEMM must be multiples of to run on matrix units."""

    aligned_to: int = number(1, 1, 4096)
