"""How the software stack behaves: kernels, host overheads, overlap, memory habits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from foretrain.errors import InputError, RuntimePresetError, did_you_mean
from foretrain.named import named
from foretrain.runtime.features import (
    CORE,
    OPTIONAL,
    RENAMED,
    CommunicationLibrary,
    EmbeddingExchange,
    ExpertParallel,
    FlattenedUpdate,
    FusionCycles,
    GatherCopies,
    GemmAlignment,
    GradientReduction,
    Host,
    Kernels,
    MemoryHabits,
    ModelVariants,
    NetworkPolling,
    OptimizerUpdate,
    PerTensorUpdate,
    Pipeline,
    PlanHabits,
    ShardedWeights,
    SpecialFusions,
    TensorParallel,
    UncoalescedGather,
    option_table,
)


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
    host: Host = field(default_factory=Host)
    communication: CommunicationLibrary = field(default_factory=CommunicationLibrary)
    gradients: GradientReduction = field(default_factory=GradientReduction)
    sharding: ShardedWeights = field(default_factory=ShardedWeights)
    tensor_parallel: TensorParallel = field(default_factory=TensorParallel)
    expert_parallel: ExpertParallel = field(default_factory=ExpertParallel)
    pipeline: Pipeline = field(default_factory=Pipeline)
    update: OptimizerUpdate = field(default_factory=OptimizerUpdate)
    memory: MemoryHabits = field(default_factory=MemoryHabits)
    plan: PlanHabits = field(default_factory=PlanHabits)
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
        if faults:
            raise RuntimePresetError(
                f"options of runtime {self.name!r} are invalid:", faults=faults
            )
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
