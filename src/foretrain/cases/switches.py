"""Switches of published runs that are words of a plan: how far state is split, what runs again.

Sources say the same in many ways: PyTorch names sharding strategies, torchtitan degrees, Megatron modules. What a case's
own plan says stands; switches say what it leaves open or cannot say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from foretrain.errors import PlanError

Options = Mapping[str, Any]

STRATEGY = ("sharding_strategy", "fsdp_sharding_strategy", "sharding", "dp_mode")
SHARD_SIZE = ("fsdp_shard_size", "hsdp_shard_size", "shard_size", "dp_shard",
              "data_parallel_shard_degree")  # fmt: skip
REPLICAS = ("dp_replicate", "data_parallel_replicate_degree", "hsdp_replicas")
FULLY = ("megatron_fsdp", "use_megatron_fsdp", "fsdp", "use_fsdp")
RESHARDS = ("reshard_after_forward", "fsdp_reshard_after_forward")
CHECKPOINTING = ("activation_checkpointing", "activation_checkpoint", "activation_checkpoint_mode",
                 "ac", "ac_mode", "recompute_granularity", "selective_ac_option")  # fmt: skip
SHARE = ("selective_ac", "selective_checkpointing", "selective_ac_fraction")
MODULES, LAYERS, ACCUMULATED = (
    "recompute_modules",
    "recompute_num_layers",
    ("num_microbatches", "grad_accum"),
)
AGAIN = "recompute_layers_per_stage"
LAYOUT = "pipeline_layout"
OF_PLANS = (*STRATEGY, *FULLY, *SHARD_SIZE, *REPLICAS, *RESHARDS, *CHECKPOINTING, *SHARE, *ACCUMULATED,
            MODULES, LAYERS, AGAIN, LAYOUT, "hsdp", "layers_per_stage", "expert_tensor_parallel",
            "embedding_placement")  # fmt: skip
"""Switches that become words of a plan, or a batch."""

LONGEST_LAYOUT = 100_000  # letters: more are no pipeline

# PyTorch FSDP documentation, ShardingStrategy: (ZeRO stage, inside a node only). SHARD_GRAD_OP keeps weights whole
# between forward and backward, as ZeRO-2 does.
_STRATEGIES = {
    "full_shard": (3, False), "fsdp": (3, False), "zero3": (3, False),
    "shard_grad_op": (2, False), "zero2": (2, False),
    "no_shard": (0, False), "ddp": (0, False),
    "hybrid_shard": (3, True), "hsdp": (3, True), "_hybrid_shard_zero2": (2, True),
}  # fmt: skip
# Modules as Megatron Core's --recompute-modules and reports name them, and the ops of a layer they are.
_MODULES = {
    "core_attn": ("attention",), "core_attention": ("attention",),
    "mla_up_proj": ("q_up", "kv_up", "rope"), "mla up-projection": ("q_up", "kv_up", "rope"),
    "layernorm": ("ln1", "ln2"), "rmsnorm": ("ln1", "ln2"), "norm": ("ln1", "ln2"),
    "mlp": ("fc1", "act", "fc2"),
    "moe_act": ("experts_act",), "activation": ("act", "experts_act"), "swiglu": ("act", "experts_act"),
    "shared_experts": ("shared_fc1", "shared_act", "shared_fc2"),
    "moe": ("router", "route", "dispatch", "experts_fc1", "experts_act", "experts_fc2", "combine"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Split:
    """ZeRO stage, None where nothing is said of it, and for hybrid sharding over how many ranks state is split."""

    zero: int | None
    shard: int | None


def split_from(
    options: Options,
    zero: int | None,
    *,
    replicas: int,
    per_node: int,
    stages: int,
    keeps_gathered: bool,
) -> Split:
    """`zero` is what the plan says, `replicas` hold the same weights. Stacks that keep gathered weights in pipelines
    (`keeps_gathered`) call it fully sharded all the same."""
    chosen = strategy_of(options)
    is_hybrid = options.get("hsdp") is True or (chosen is not None and chosen[1])
    if chosen is not None and zero in (None, 3):
        zero = chosen[0]
    if zero is None and is_fully_sharded(options):
        zero = 3
    stated = _first(options, RESHARDS)
    if zero == 3 and not _reshards(stated, stages, keeps_gathered):
        zero = 1 if stages > 1 else 2
    if zero is None and stated is not None and not _reshards(stated, stages, keeps_gathered):
        zero = 1 if stages > 1 else 2
    shard, copies = shard_size(options), replica_groups(options)
    if shard is None and copies is not None and copies > 1 and replicas % copies == 0:
        shard = replicas // copies
    if shard is None and is_hybrid:
        shard = min(per_node, replicas)
    return Split(zero, shard if shard and zero != 0 and shard < replicas else None)


def strategy_of(options: Options) -> tuple[int, bool] | None:
    """ZeRO stage of a sharding strategy by name, and whether it is for one node only."""
    return _STRATEGIES.get(_folded(_first(options, STRATEGY)))


def shard_size(options: Options) -> int | None:
    """Ranks that share the states of one copy."""
    return _whole(options, SHARD_SIZE)


def replica_groups(options: Options) -> int | None:
    """Groups of ranks that hold whole copies each."""
    return _whole(options, REPLICAS)


def is_fully_sharded(options: Options) -> bool:
    """Whether a switch says that weights are split too."""
    stated = _first(options, FULLY)
    return stated is not None and str(stated).lower() not in ("false", "none", "no", "0")


def _reshards(stated: Any, stages: int, keeps_gathered: bool) -> bool:
    """Whether weights are split again between forward and backward."""
    word = str(stated).lower()
    if stated is None or word == "default":
        return stages == 1 or not keeps_gathered
    return word not in ("false", "never")


def recompute_from(
    options: Options, stated: str | None, ops: Iterable[str], layers_per_chunk: float
) -> str | None:
    """The plan's word for recomputation, or None where neither plan nor switches say one."""
    if stated in (None, "selective"):
        exact = (
            word for key, word in recompute_words(options, ops, layers_per_chunk) if key != LAYERS
        )
        if (word := next(exact, None)) is not None:
            return word
    if stated is None:
        stated = checkpointing(options)
    count = options.get(LAYERS)
    if stated in (None, "full") and _is_number(count) and layers_per_chunk:
        return share_of_blocks(min(1.0, count / layers_per_chunk))
    return stated


def recompute_words(
    options: Options, ops: Iterable[str], layers_per_chunk: float
) -> Iterator[tuple[str, str]]:
    """Switches that say what runs again in detail, and the plan's word for each; the first ones go before others."""
    if (modules := _modules(options, frozenset(ops))) is not None:
        yield MODULES, modules
    if (share := _share(options)) is not None:
        yield _stated(options, (*SHARE, "selective_ac_option")), share_of_blocks(share)
    if (listed := _of_stages(options)) is not None:
        yield AGAIN, listed
    count = options.get(LAYERS)
    if _is_number(count) and layers_per_chunk:
        yield LAYERS, share_of_blocks(min(1.0, count / layers_per_chunk))


def share_of_blocks(share: float) -> str:
    """The word for so large a share of the layers, each as a whole."""
    if not 0 <= share <= 1:
        raise PlanError(f"recompute: {share!r} must be a fraction of the layers, between 0 and 1.")
    return "none" if share == 0 else "full" if share == 1 else f"full*{share:g}"


def unknown_words(options: Options) -> list[str]:
    """Warnings for values of these switches that mean nothing here."""
    modules = [name for name in _listed(options.get(MODULES)) if name not in _MODULES]
    wrong = [(MODULES, ", ".join(modules))] if modules else []
    strategy = _first(options, STRATEGY)
    if strategy is not None and _folded(strategy) not in _STRATEGIES:
        wrong.append((_stated(options, STRATEGY), strategy))
    mode = _first(options, CHECKPOINTING)
    is_counted = _is_number(mode) or str(mode).isdecimal()
    if mode is not None and not is_counted and checkpointing(options) is None:
        wrong.append((_stated(options, CHECKPOINTING), mode))
    for key in (*SHARD_SIZE, *REPLICAS, *ACCUMULATED, LAYERS):
        value = options.get(key)
        # torchtitan writes -1 for "the rest"; no layer, and nothing to share, are counts too
        if value not in (None, 0, -1) and _whole(options, (key,)) is None:
            wrong.append((key, value))
    return [f"runtime_options.{key} = {word}: unknown; ignored." for key, word in wrong]


def layers_from(options: Options) -> tuple[int, ...] | None:
    """Layers of every part of a pipeline: counted, or drawn as Megatron-LM draws them, such as `Et*4|(t*4|)*14tmL`."""
    counted = options.get("layers_per_stage")
    if counted:
        return tuple(counted)
    layout = options.get(LAYOUT)
    if layout is None:
        return None
    parts = _unfolded(str(layout)).split("|")
    if not all(re.fullmatch(r"E?t*m*L?", part) for part in parts):
        raise PlanError(
            f"{LAYOUT}: {layout!r} must consist of E (embedding), t (layer), m (multi-token "
            "prediction module) and L (head), with parts separated by | and repetition as t*4 "
            "or (tt|)*3."
        )
    return tuple(part.count("t") for part in parts)


def _unfolded(layout: str) -> str:
    """`Et*2|(t|)*2L` as `Ett|t|t|L` (Megatron Core, pipeline_parallel_layer_layout.py)."""
    text, before = re.sub(r"[\s,]", "", layout), ""
    while text != before and len(text) <= LONGEST_LAYOUT:
        before = text
        text = re.sub(r"(?:\(([^()]*)\)|([Etm]))\*(\d{1,4})", _repeated, text, count=1)
    return text


def _repeated(match: re.Match[str]) -> str:
    return (match[1] or match[2]) * int(match[3])


def accumulated(options: Options) -> int | None:
    """Micro-batches in a step, where a switch says how many."""
    return _whole(options, ACCUMULATED)


def _modules(options: Options, ops: frozenset[str]) -> str | None:
    named = [op for name in _listed(options.get(MODULES)) for op in _MODULES.get(name, ())]
    recomputed = [op for op in dict.fromkeys(named) if op in ops]
    return ",".join(recomputed) or None


def _of_stages(options: Options) -> str | None:
    """Mist's tuner gives the layers of every stage and how many of them run again, here the first ones."""
    again, layers = options.get(AGAIN), options.get("layers_per_stage")
    if not (isinstance(again, list | tuple) and isinstance(layers, list | tuple)):
        return None
    if len(again) != len(layers) or not all(isinstance(n, int) for n in (*again, *layers)):
        return None
    firsts = (sum(layers[:stage]) for stage in range(len(layers)))
    chosen = [first + n for first, count in zip(firsts, again, strict=True) for n in range(count)]
    return f"full@{','.join(map(str, chosen))}" if chosen else "none"


def _share(options: Options) -> float | None:
    """fms-fsdp gives the share of layers, torchtitan that it is every n-th."""
    stated = _first(options, SHARE)
    if _is_number(stated):
        return float(stated)
    every = str(options.get("selective_ac_option"))
    return 1.0 / int(every) if every.isdecimal() and int(every) > 0 else None


def checkpointing(options: Options) -> str | None:
    stated = _first(options, CHECKPOINTING)
    if stated is None:
        return None
    if isinstance(stated, bool):
        return "full" if stated else "none"
    word = str(stated).lower()
    return {"full": "full", "none": "none", "selective": "selective", "op": "selective"}.get(word)


def _listed(value: Any) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value or ()
    return [str(part).strip().lower() for part in parts]


def _first(options: Options, keys: Iterable[str]) -> Any:
    return options.get(_stated(options, keys))


def _stated(options: Options, keys: Iterable[str]) -> str:
    return next((key for key in keys if options.get(key) is not None), "")


def _whole(options: Options, keys: Iterable[str]) -> int | None:
    """The first of the switches that is a whole number; -1 stands for "the rest" and says nothing."""
    values = (options.get(key) for key in keys)
    numbers = (int(v) if isinstance(v, str) and v.isdecimal() else v for v in values)
    return next((int(v) for v in numbers if _is_number(v) and v >= 1 and v == v // 1), None)


def _folded(word: object) -> str:
    return str(word).lower().replace("-", "_")


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
