"""What software stacks do: one file per feature, each a record of its fields and of what options may set them to.

The names of fields are unique over all features, since they are the words of options.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from foretrain.runtime.features.communication import CommunicationLibrary
from foretrain.runtime.features.embedding_exchange import EmbeddingExchange
from foretrain.runtime.features.expert_parallel import ExpertParallel
from foretrain.runtime.features.flattened_update import FlattenedUpdate
from foretrain.runtime.features.fusion_cycles import FusionCycles
from foretrain.runtime.features.gather_copies import GatherCopies
from foretrain.runtime.features.gemm_alignment import GemmAlignment
from foretrain.runtime.features.gradients import GradientReduction
from foretrain.runtime.features.host import Host
from foretrain.runtime.features.kernels import Kernels
from foretrain.runtime.features.memory import MemoryHabits
from foretrain.runtime.features.model_variants import ModelVariants
from foretrain.runtime.features.network_polling import NetworkPolling
from foretrain.runtime.features.option import Feature, OptionalFeature, Read, options_of
from foretrain.runtime.features.per_tensor_update import PerTensorUpdate
from foretrain.runtime.features.pipeline import Pipeline
from foretrain.runtime.features.plan import PlanHabits
from foretrain.runtime.features.sharding import ShardedWeights
from foretrain.runtime.features.special_fusions import SpecialFusions
from foretrain.runtime.features.tensor_parallel import TensorParallel
from foretrain.runtime.features.uncoalesced_gather import UncoalescedGather
from foretrain.runtime.features.update import OptimizerUpdate

__all__ = [
    "CORE",
    "OPTIONAL",
    "RENAMED",
    "CommunicationLibrary",
    "EmbeddingExchange",
    "ExpertParallel",
    "Feature",
    "FlattenedUpdate",
    "FusionCycles",
    "GatherCopies",
    "GemmAlignment",
    "GradientReduction",
    "Host",
    "Kernels",
    "MemoryHabits",
    "ModelVariants",
    "NetworkPolling",
    "OptimizerUpdate",
    "OptionalFeature",
    "PerTensorUpdate",
    "Pipeline",
    "PlanHabits",
    "ShardedWeights",
    "SpecialFusions",
    "TensorParallel",
    "UncoalescedGather",
    "option_table",
]

CORE: Mapping[str, type[Feature]] = {
    "kernels": Kernels,
    "host": Host,
    "communication": CommunicationLibrary,
    "gradients": GradientReduction,
    "sharding": ShardedWeights,
    "tensor_parallel": TensorParallel,
    "expert_parallel": ExpertParallel,
    "pipeline": Pipeline,
    "update": OptimizerUpdate,
    "memory": MemoryHabits,
    "plan": PlanHabits,
}
"""Features that every stack has, by the name a Runtime and its preset have them under."""
OPTIONAL: Mapping[str, type[OptionalFeature]] = {
    "special_fusions": SpecialFusions,
    "gemm_alignment": GemmAlignment,
    "model_variants": ModelVariants,
    "network_polling": NetworkPolling,
    "fusion_cycles": FusionCycles,
    "gather_copies": GatherCopies,
    "uncoalesced_gather": UncoalescedGather,
    "embedding_exchange": EmbeddingExchange,
    "per_tensor_update": PerTensorUpdate,
    "flattened_update": FlattenedUpdate,
}
"""Features of few stacks: None where a preset does not name them."""
RENAMED: Mapping[str, str] = {
    "kernel_pace": "kernel_slowdown",
    "adds_in_products": "wgrad_accumulation_fusion",
    "exchanges_in_pieces": "tp_comm_overlap",
    "overlaps_tensor_backward": "tp_dgrad_overlap",
    "replicates_from": "hot_row_threshold",
}
"""Options under the names they had before, and the field each sets."""


@cache
def option_table() -> Mapping[str, tuple[str, Read]]:
    """Every option: the feature that has it, and how it is read."""
    return {
        name: (feature, read)
        for feature, kind in (*CORE.items(), *OPTIONAL.items())
        for name, read in options_of(kind).items()
    }
