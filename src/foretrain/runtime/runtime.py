"""How the software stack behaves: kernels, host overheads, overlap, memory habits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from foretrain.errors import InputError, RuntimePresetError, did_you_mean, hint
from foretrain.limits import shown


@dataclass(frozen=True, slots=True)
class Runtime:
    """One software stack. Presets live in `presets.yaml`, each with its source.

    >>> from foretrain import Runtime
    >>> Runtime.of("ddp")
    <Runtime ddp: PyTorch DistributedDataParallel>
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    name: str
    title: str = ""
    source: str = ""
    # kernels
    attention: str = "flash"  # flash | flash3 | triton | flash1 | cudnn | unfused
    attention_since_hopper: str = ""  # what a case that names none gets on devices with fp8
    fuses_elementwise: bool = True
    fuses_norms: bool = True  # RMS norms are one kernel even where element-wise work is not fused
    # rotary positions where element-wise work is not fused: halves | complex | matrices | copies
    rotary: str = "halves"
    fuses_behind_norms: bool = False  # so are sums and activations with the batch norm before them
    fuses_score_dropout: bool = False  # attention's softmax drops out in its own pass
    aligned_to: int = 1  # 16-bit products whose dims are no multiples of it miss the matrix units
    fuses_epilogues: bool = (
        False  # products do the activation behind them, both ways; DLRM's interaction is one kernel
    )
    has_dropout: bool = (
        True  # transformers of a case that gives none are trained with their family's
    )
    channels_last: bool = True  # feature maps; if not, 16-bit convolutions transpose what they read
    gathers_masked: bool = False  # masked-LM heads see the predicted positions alone
    fuses_loss: bool = True  # cross entropy in one pass, where element-wise work is fused at all
    kernel_pace: float = 1.0  # time of its kernels over that of the best ones measured alone
    fuses_casts: bool = (
        False  # operands of low-precision GEMMs are cast by the kernels that make them
    )
    groups_experts: bool = True  # products of experts in one launch, their activation fused
    # host
    host_seconds_per_kernel: float = 0.0  # CPU time to issue one kernel
    host_seconds_per_collective: float = 0.0
    jitter_seconds: float = 0.0  # spread of what delays a host in a step; all wait for the latest
    update_passes: float = 1.0  # traffic of the update over that of a fused one
    kernels_per_tensor: float = (
        0.0  # issued for a weight and each fp32 value kept of it once the host has its gradients
    )
    uses_cuda_graphs: bool = False
    host_blocks_on_pipeline: bool = False  # waits for a received activation before issuing more
    # while it polls the network for pipeline transfers, a host is late at a tensor-parallel collective by so much
    # on average; now one host of the group is late, now another, so their delays add up
    host_delay_on_network: float = 0.0
    # communication
    library: str = "nccl"  # nccl | nccl-pods | gloo | mpi
    algorithms: tuple[tuple[str, str], ...] = ()  # collective → algorithm[/protocol]
    priorities: tuple[
        tuple[str, float], ...
    ] = ()  # purpose → share of a link that flows compete for, 1 where not named
    synchronises: str = (
        "all_reduce"  # how replicas agree; a collective, such as neighbour_all_reduce(ring)
    )
    # gradient: when backward has it | forward: weights, from the forward pass on | adapted: weights, each once
    # backward has its gradient and it is stepped
    synchronises_at: str = "gradient"
    overlap_slows: bool = True  # kernels and what moves beside them slow each other
    overlaps_gradients: bool = True  # gradient buckets are reduced while backward runs
    overlaps_scatters: bool = True  # … also where each is reduced to the rank that owns it
    bucket_bytes: float = 25e6
    first_bucket_bytes: float = 1e6
    scatters_gradients: bool = True  # to who owns them; else they are all-reduced all the same
    reduces_blocks: bool = False  # a block's gradients go together, whatever their size
    overlaps_parameter_gather: bool = False  # sharded weights are gathered under the next forward
    gathers_quantised: tuple[
        str, ...
    ] = ()  # precisions whose products' weights are gathered as the products read them
    exchanges_in_pieces: bool = (
        False  # tensor-parallel gathers and reductions run beside their GEMM
    )
    exchange_share: float = (
        0.0  # of a device's compute units, taken by such exchanges; 0: as by any collective
    )
    overlaps_tensor_backward: bool = False  # input-gradient reduction runs beside the weight GEMM
    overlaps_pipeline: bool = True  # sends run beside the next micro-batch
    regathers_sequence: bool = True  # saves sequence shards and gathers them again in backward
    scatters_pipeline: bool = False  # sends 1/tp of a replicated boundary, gathers on arrival
    clips_gradients: bool = False  # a global gradient norm joins all ranks before the update
    adds_in_products: bool = False  # products add a micro-batch's weight gradients to the buffer
    adds_gradients: bool = (
        False  # … or kernels of their own add a micro-batch's gradients to the buffer
    )
    copies_gathered: bool = False  # each rank's part of a gathered weight is copied to its place
    copies_out_gathered: bool = False  # fully sharded weights leave the gather's buffer by a copy …
    copies_in_gradients: bool = False  # … and their gradients enter the reduction's by one
    prefetched_blocks: int = 1  # fully sharded weights gathered ahead
    gathers_rerun: bool = False  # … and once more for ops that run again before going back
    calls_per_part: float = (
        0.0  # … the host makes for every rank's part of every such weight, in the time of a kernel
    )
    splits_from: float = 0.0  # elements of the least weight that is, where such calls count
    sends_tokens_once: bool = (
        False  # to a node, or inside one to a device, however many experts they have there
    )
    # of tables split by rows, samples are sent the vectors with something in them; else all are reduced
    sends_looked_up: bool = False
    replicates_from: float = 0.0  # draws in a step from which a row is kept on all ranks, its gradients reduced; 0: no row
    expert_overlap: float = 0.0  # share of expert all-to-all hidden under a pass in the other direction, where there is one
    # a background thread that fuses tensors by time, and the agreement of ranks it asks for
    cycle_seconds: float = 0.0  # how often it looks; 0: none, buckets fill up
    fusion_copies: float = 1.0  # times a tensor stands in the buffer, with what it receives
    negotiation_rounds: float = 0.0  # trips over a binary tree of the ranks in a cycle
    negotiation_seconds_per_hop: float = 0.0
    negotiation_seconds_per_rank: float = 0.0  # the coordinator's own time
    # memory
    gradient_bytes: float | None = (
        None  # per element in the accumulation buffer; None = as the precision
    )
    reducer_copies: float = 0.0  # of every gradient as backward makes it, in buckets that stay …
    staging_buckets: float = 0.0  # … or how many buckets there are besides
    frees_gradients: bool = (
        False  # after the update, so that none is there in the first forward pass
    )
    keeps_transposed: bool = (
        True  # weights in a narrow format lie there twice, as matrix units before Blackwell ask for
    )
    update_copies: float = (
        0.0  # of split optimizer states: what their update takes besides, in blocks of its own
    )
    shards_master: bool = False  # fully sharded weights are the master copy, cast when gathered
    keeps_quantised: bool = False  # low-precision GEMMs keep their input as they read it
    context_bytes: float = 0.0  # driver context, communication buffers, libraries
    fragmentation: float = 0.0  # share of what comes and goes that the allocator holds on top
    exchange_fragmentation: float = 0.0  # more of it where tensors are exchanged beside kernels
    headroom: float = 0.0  # share of a device that is kept free unless a question says otherwise …
    headroom_reason: str = ""  # … and why
    logits_copies: float = 1.0  # fp32 copies of the logits alive at the loss, the kept one included
    # plan
    selective: str = (
        "attention"  # what recompute=selective runs again: attention | products | blocks
    )
    # a case's fully sharded weights are gathered and their gradients reduced once in a step where there is a pipeline
    keeps_gathered_in_pipelines: bool = False
    places_by_products: bool = False  # stages share out the head too, by its matrix products
    pads_vocabulary_to: int = 1
    rank_order: tuple[str, ...] = ("pp", "dp", "cp", "tp")  # outermost first
    defaults: tuple[tuple[str, str], ...] = ()  # plan words used where a case says nothing
    aliases: tuple[str, ...] = ()

    def negotiation_seconds(self, ranks: int) -> float:
        """Until so many ranks agree on what they reduce in a cycle: small messages over a tree, and a
        coordinator that reads what each of them says."""
        if ranks < 2:
            return 0.0
        hops = self.negotiation_rounds * (ranks - 1).bit_length()
        return (
            hops * self.negotiation_seconds_per_hop
            + (ranks - 1) * self.negotiation_seconds_per_rank
        )

    def with_host(self, factor: float) -> Runtime:
        """The same stack on hosts that take so many times as long to issue work."""
        return replace(
            self,
            host_seconds_per_kernel=self.host_seconds_per_kernel * factor,
            host_seconds_per_collective=self.host_seconds_per_collective * factor,
            host_delay_on_network=self.host_delay_on_network * factor,
        )

    @property
    def has_host_in_steps(self) -> bool:
        """Whether issuing work takes time elsewhere than at launches: in updates tensor by tensor, in gathers part by
        part, or by what a thread finds ready when it fuses gradients."""
        return bool(self.kernels_per_tensor or self.calls_per_part or self.cycle_seconds)

    @classmethod
    def of(cls, name: str | Runtime) -> Runtime:
        """A preset by name or alias.

        >>> from foretrain import Runtime
        >>> Runtime.of("megatron").attention
        'flash'
        """
        return runtime(name)

    def __repr__(self) -> str:
        return f"<Runtime {self.name}: {self.title}>"

    def with_options(self, options: Mapping[str, Any]) -> Runtime:
        """A copy with fields replaced; unknown names and invalid values are errors, all reported together."""
        if not options:
            return self
        known = {field.name: field for field in fields(self) if field.name not in _IDENTITY}
        # here, because a preset as it is has nothing to check
        from foretrain.runtime.options import usable

        faults, changes = [], {}
        for name, value in options.items():
            if name not in known:
                faults.append(f"{name}: unknown option.{did_you_mean(name, known)}")
                continue
            try:
                changes[name] = usable(name, value, str(known[name].type))
            except InputError as error:
                faults.append(f"{name}: {error}")
        if faults:
            raise RuntimePresetError(
                f"options of runtime {self.name!r} are invalid:", faults=faults
            )
        return replace(self, **changes)


def fields_of() -> tuple[str, ...]:
    """The fields that options may set."""
    return tuple(field.name for field in fields(Runtime) if field.name not in _IDENTITY)


def changed_options(stack: Runtime) -> dict[str, Any]:
    """Fields that are not as the preset of its name has them; of a stack without a preset, all that are not usual."""
    base = presets().get(stack.name) or Runtime(name=stack.name)
    both = ((name, getattr(base, name), getattr(stack, name)) for name in fields_of())
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, usual, value in both
        if value != usual
    }


_IDENTITY = ("name", "title", "source", "aliases", "defaults", "headroom", "headroom_reason")
"""What no option changes; headroom is asked for by a question of its own."""


@cache
def preset_file() -> Mapping[str, Any]:
    """`presets.yaml` as it stands: the presets, and what the switches of a case change."""
    from foretrain.loading import load_own_yaml

    data: dict[str, Any] = load_own_yaml(Path(__file__).with_name("presets.yaml"))
    return data


@cache
def presets() -> Mapping[str, Runtime]:
    """The table of `presets.yaml`; a preset may build on another with `like`."""
    table: dict[str, Runtime] = {}
    for name, given in (preset_file()["presets"] | _OWN).items():
        row: dict[str, Any] = dict(given)
        base = table[row.pop("like")] if "like" in row else Runtime(name=name)
        for key in ("rank_order", "aliases", "gathers_quantised"):
            if key in row:
                row[key] = tuple(row[key])
        if "defaults" in row:
            row["defaults"] = tuple(sorted(row["defaults"].items()))
        table[name] = replace(base, name=name, aliases=row.pop("aliases", ()), **row)
    return table


_OWN: dict[str, Mapping[str, Any]] = {}
"""Rows beside those of `presets.yaml`."""


def register(name: str, row: Mapping[str, Any]) -> Callable[[], None]:
    """Add a preset of one's own, written like a row of `presets.yaml`, for this process; what comes back takes it out
    again."""
    if folded(name) in names():
        raise RuntimePresetError(f"runtime {name!r} is in the table already. Use another name.")

    def forget() -> None:
        presets.cache_clear()
        names.cache_clear()

    def undo() -> None:
        del _OWN[name]
        forget()

    _OWN[name] = row
    forget()
    try:
        presets()
    except Exception:
        undo()
        raise
    return undo


@cache
def names() -> Mapping[str, str]:
    """Every name and alias, folded, and the preset it stands for."""
    table = presets()
    known = {folded(alias): name for name, preset in table.items() for alias in preset.aliases}
    return known | {folded(name): name for name in table}


def folded(name: str) -> str:
    """`Megatron_LM` and `megatron lm` are `megatron-lm`."""
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())


def runtime(name: str | Runtime) -> Runtime:
    """A preset by name or alias."""
    if isinstance(name, Runtime):
        return name
    preset = names().get(folded(name))
    if preset is None:
        raise RuntimePresetError(
            f"unknown runtime {shown(name, 80)}.{hint(name, names(), 'foretrain catalog list runtimes')}"
        )
    return presets()[preset]
