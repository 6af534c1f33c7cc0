"""Exchange of looked-up rows of embedding tables (DLRM, TorchRec, HugeCTR)."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.runtime.features.gradients import LARGEST
from foretrain.runtime.features.option import OptionalFeature, number, switch


@dataclass(frozen=True, slots=True)
class EmbeddingExchange(OptionalFeature):
    """What of tables that are split by rows goes between ranks."""

    # samples are sent the vectors with something in them; else all are reduced
    sends_looked_up: bool = switch(False, needs=("embedding tables",))
    # draws in a step from which a row is kept on all ranks, its gradients reduced (hybrid embeddings); 0: no row
    hot_row_threshold: float = number(0.0, 0.0, LARGEST, needs=("embedding tables",))
