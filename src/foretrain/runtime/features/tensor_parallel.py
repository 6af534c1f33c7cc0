"""Communication of tensor parallelism, and what it runs beside."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.option import Feature, number, switch


@dataclass(frozen=True, slots=True)
class TensorParallel(Feature):
    """How the exchanges of a layer that is split over ranks go with its GEMMs."""

    # gathers and reductions run in pieces beside their GEMM (Megatron's --tp-comm-overlap)
    tp_comm_overlap: bool = switch(False, needs=("tensor parallelism",))
    # of a device's compute units, taken by such exchanges; 0: as by any collective
    exchange_share: float = number(0.0, 0.0, 1.0, needs=("tensor parallelism",))
    # the input gradient's reduction runs beside the weight-gradient GEMM
    tp_dgrad_overlap: bool = switch(False, needs=("tensor parallelism",))
    # saves sequence shards and gathers them again in backward
    regathers_sequence: bool = switch(True, needs=("sharded sequences",))
