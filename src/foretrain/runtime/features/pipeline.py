"""Pipeline parallelism: what stages hold and how they hand it on."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import Feature, switch


@dataclass(frozen=True, slots=True)
class Pipeline(Feature):
    """How stages are cut and exchange activations."""

    # sends run beside the next micro-batch
    overlaps_pipeline: bool = switch(True, needs=("pipeline parallelism",))
    # sends 1/tp of a replicated boundary, gathers on arrival
    scatters_pipeline: bool = switch(
        False,
        needs=(
            "tensor parallelism",
            "pipeline parallelism",
        ),
    )
    # stages share out the head too, by its GEMMs
    places_by_products: bool = switch(False, needs=("pipeline parallelism",))
