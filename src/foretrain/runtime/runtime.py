"""How the software stack behaves: kernels, host overheads, overlap, memory habits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, get_args, get_type_hints

from foretrain.errors import InputError, RuntimePresetError, did_you_mean, refuse
from foretrain.named import named
from foretrain.runtime.features.communication import CommunicationLibrary
from foretrain.runtime.features.embedding_exchange import EmbeddingExchange
from foretrain.runtime.features.expert_parallel import ExpertParallel
from foretrain.runtime.features.flattened_update import FlattenedUpdate
from foretrain.runtime.features.fusion_cycles import FusionCycles
from foretrain.runtime.features.gather_copies import GatherCopies
from foretrain.runtime.features.gemm_alignment import GemmAlignment
from foretrain.runtime.features.gradients import GradientReduction
from foretrain.runtime.features.host import HostOverheads
from foretrain.runtime.features.kernels import Kernels
from foretrain.runtime.features.memory import MemoryHabits
from foretrain.runtime.features.model_variants import ModelVariants
from foretrain.runtime.features.network_polling import NetworkPolling
from foretrain.runtime.features.option import Feature, OptionalFeature, Read, needs_of, options_of
from foretrain.runtime.features.per_tensor_update import PerTensorUpdate
from foretrain.runtime.features.pipeline import Pipeline
from foretrain.runtime.features.plan import PlanHabits
from foretrain.runtime.features.sharding import ShardedWeights
from foretrain.runtime.features.special_fusions import SpecialFusions
from foretrain.runtime.features.supported_plans import SupportedPlans
from foretrain.runtime.features.tensor_parallel import TensorParallel
from foretrain.runtime.features.uncoalesced_gather import UncoalescedGather
from foretrain.runtime.features.update import OptimizerUpdate

RENAMED: Mapping[str, str] = {
    "kernel_pace": "kernel_slowdown",
    "adds_in_products": "wgrad_accumulation_fusion",
    "exchanges_in_pieces": "tp_comm_overlap",
    "overlaps_tensor_backward": "tp_dgrad_overlap",
    "replicates_from": "hot_row_threshold",
}
"""Options under the names they had before, and the field each sets."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One software stack: what it is called, and its features. Presets live in `presets.yaml`, each with its source.

    >>> from foretrain import Runtime
    >>> Runtime.of("ddp")
    <Runtime ddp: PyTorch DistributedDataParallel>
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    title: str = ""
    source: str = ""
    release: str = ""  # of the software, where the preset is of some releases alone
    aliases: tuple[str, ...] = ()
    # what every stack has
    kernels: Kernels = field(default_factory=Kernels)
    host: HostOverheads = field(default_factory=HostOverheads)
    communication: CommunicationLibrary = field(default_factory=CommunicationLibrary)
    gradients: GradientReduction = field(default_factory=GradientReduction)
    sharding: ShardedWeights = field(default_factory=ShardedWeights)
    tensor_parallel: TensorParallel = field(default_factory=TensorParallel)
    expert_parallel: ExpertParallel = field(default_factory=ExpertParallel)
    pipeline: Pipeline = field(default_factory=Pipeline)
    update: OptimizerUpdate = field(default_factory=OptimizerUpdate)
    memory: MemoryHabits = field(default_factory=MemoryHabits)
    plan: PlanHabits = field(default_factory=PlanHabits)
    supported_plans: SupportedPlans = field(default_factory=SupportedPlans)
    # what few stacks have
    special_fusions: SpecialFusions | None = None
    gemm_alignment: GemmAlignment | None = None
    model_variants: ModelVariants | None = None
    network_polling: NetworkPolling | None = None
    fusion_cycles: FusionCycles | None = None
    gather_copies: GatherCopies | None = None
    uncoalesced_gather: UncoalescedGather | None = None
    embedding_exchange: EmbeddingExchange | None = None
    per_tensor_update: PerTensorUpdate | None = None
    flattened_update: FlattenedUpdate | None = None

    def with_host(self, factor: float) -> Runtime:
        """The same stack on hosts that take so many times as long to issue work."""
        polling = self.network_polling
        polling = None if polling is None else polling.scaled(factor)
        return replace(self, host=self.host.scaled(factor), network_polling=polling)

    @property
    def has_host_in_steps(self) -> bool:
        """Whether issuing work takes time elsewhere than at launches: in updates tensor by tensor, in gathers part by
        part, or by what a thread finds ready when it fuses gradients."""
        by_part = self.uncoalesced_gather is not None and self.uncoalesced_gather.calls_per_part > 0
        return by_part or self.per_tensor_update is not None or self.fusion_cycles is not None

    @classmethod
    def of(cls, name: str | Runtime) -> Runtime:
        """A preset by name or alias.

        >>> from foretrain import Runtime
        >>> Runtime.of("megatron").kernels.attention
        'flash'
        """
        preset: Runtime = named("foretrain.runtime.presets:runtime")(name)
        return preset

    def __repr__(self) -> str:
        return f"<Runtime {self.name}: {self.title}>"

    def option(self, name: str) -> Any:
        """What the option of this name is set to, whichever feature has it."""
        feature, _ = option_table()[name]
        return getattr(self._feature(feature), name)

    def with_options(self, given: Mapping[str, Any]) -> Runtime:
        """A copy with options set; unknown names and invalid values are errors, all reported together."""
        faults = []
        changes: dict[str, dict[str, Any]] = {}
        for word, value in given.items():
            name = RENAMED.get(word, word)
            if name not in option_table():
                faults.append(f"{word}: unknown option.{did_you_mean(word, option_table())}")
                continue
            feature, read = option_table()[name]
            try:
                changes.setdefault(feature, {})[name] = read(value)
            except InputError as error:
                faults.append(f"{word}: {error}")
        refuse(f"options of runtime {self.name!r} are invalid:", faults, RuntimePresetError)
        return self.with_features(changes)

    def with_features(self, changes: Mapping[str, Mapping[str, Any] | None]) -> Runtime:
        """A copy with fields of features replaced; a feature that the stack lacks starts from its defaults, and one
        that does nothing, or is None, is left out."""
        if not changes:
            return self
        records = {name: self._changed(name, values) for name, values in changes.items()}
        return replace(self, **records)

    def _changed(self, name: str, values: Mapping[str, Any] | None) -> Any:
        if values is None:
            return None
        record = replace(self._feature(name), **values)
        return None if name in OPTIONAL and record.is_idle else record

    def _feature(self, name: str) -> Any:
        """The feature of this name; of one that the stack lacks, its defaults."""
        record = getattr(self, name)
        return (CORE.get(name) or OPTIONAL[name])() if record is None else record


def _features(kind: type) -> Mapping[str, Any]:
    """The features of a kind, by the name a Runtime and its preset have them under."""
    hints = get_type_hints(Runtime).items()
    kinds = ((name, one) for name, hint in hints for one in (hint, *get_args(hint)))
    return {name: one for name, one in kinds if isinstance(one, type) and issubclass(one, kind)}


OPTIONAL: Mapping[str, type[OptionalFeature]] = _features(OptionalFeature)
"""Features of few stacks: None where a preset does not name them."""
CORE: Mapping[str, type[Feature]] = {
    name: one for name, one in _features(Feature).items() if name not in OPTIONAL
}
"""Features that every stack has."""


@cache
def option_table() -> Mapping[str, tuple[str, Read]]:
    """Every option: the feature that has it, and how it is read."""
    return {
        name: (feature, read)
        for feature, kind in (*CORE.items(), *OPTIONAL.items())
        for name, read in options_of(kind).items()
    }


@cache
def option_needs() -> Mapping[str, tuple[str, ...]]:
    """What a question must have for an option to matter, of those that do not always."""
    kinds = (*CORE.values(), *OPTIONAL.values())
    return {name: needs for kind in kinds for name, needs in needs_of(kind).items()}
