"""torchtitan's TOML job configuration (up to v0.2.2), and the module beside it that registers the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.python import CALLED, assigned
from foretrain.adapters.read.launch.settings import Settings, devices_of, toml_settings
from foretrain.adapters.write.torchtitan import CONFIG, EXCHANGES, OPTIMIZERS, PRECISIONS, SCHEDULES
from foretrain.adapters.write.torchtitan_model import FAMILIES, MODULE

_RESHARD = ("default", "always", "never")
_MODES = ("selective", "full", "memory_budget", "none")


def is_here(files: Mapping[str, str]) -> bool:
    return any(_is_config(name, text) for name, text in files.items())


def _is_config(name: str, text: str) -> bool:
    return name.endswith(".toml") and "[parallelism]" in text


def read(files: Mapping[str, str]) -> Launch:
    name = next((n for n, text in files.items() if _is_config(n, text)), CONFIG)
    s = toml_settings(files, name)
    devices = next((found for text in files.values() if (found := devices_of(text))), None)
    shape = _shape(files)
    plan, seq = _plan(s, shape), s.count("training.seq_len", 2048)
    sizes = (plan["tp"], plan["cp"], plan["pp"], _replicas(s, plan, devices))
    total = sizes[0] * sizes[1] * sizes[2] * sizes[3]
    launch = Launch(
        plan=plan | {"dp": sizes[3]},
        batch=_batch(s, plan["pp"], sizes[3]),
        seq=seq,
        precision=_precision(s),
        optimizers=_optimizers(s),
        options={
            "fuses_elementwise": s.switch("compile.enable"),
            **(
                {"tp_comm_overlap": s.switch("parallelism.enable_async_tensor_parallel")}
                if plan["tp"] > 1
                else {}
            ),
            **({"gradient_bytes": 4.0} if plan["zero"] else {}),
        },
        shape=shape,
        devices=devices or total,
    )
    s.close()
    return launch


def _replicas(s: Settings, plan: Mapping[str, Any], devices: int | None) -> int:
    copies, shards = _copies(s), s.value("parallelism.data_parallel_shard_degree")
    if shards in (None, -1):  # the ranks that are left
        if devices is None:
            s.faults.append("data_parallel_shard_degree: the number of devices is not known.")
            return copies
        return s.shares(devices, plan["tp"] * plan["cp"] * plan["pp"], "devices")
    return copies * s.count("parallelism.data_parallel_shard_degree")


def _copies(s: Settings) -> int:
    return s.count("parallelism.data_parallel_replicate_degree")


def _plan(s: Settings, shape: Mapping[str, Any]) -> dict[str, Any]:
    def degree(name: str) -> int:
        return s.count(f"parallelism.{name}_parallel_degree")

    tp, cp, pp, ep = degree("tensor"), degree("context"), degree("pipeline"), degree("expert")
    plan: dict[str, Any] = {"tp": tp, "cp": cp, "pp": pp, "ep": ep, "sp": tp > 1}
    if ep > 1 and tp > 1 and degree("expert_tensor") != tp:
        plan["etp"] = degree("expert_tensor")
    if cp > 1:
        way = s.one_of(
            "parallelism.context_parallel_rotate_method", EXCHANGES.values(), "allgather"
        )
        plan["exchange"] = next(word for word, name in EXCHANGES.items() if name == way)
    plan |= _state(s, cp, pp) | _stages(s, pp, shape)
    plan["recompute"] = _recompute(s, plan, shape)
    if s.switch("training.enable_cpu_offload"):
        plan["offload"] = ("optimizer",)
    local = s.count("training.local_batch_size", 8)
    plan["micro"] = s.count("parallelism.pipeline_parallel_microbatch_size") if pp > 1 else local
    return plan


def _state(s: Settings, cp: int, pp: int) -> dict[str, Any]:
    """Weights are gathered once more for backward, or stay; pipelines then keep gradients too."""
    shards = s.value("parallelism.data_parallel_shard_degree")
    is_alone = shards == 1 and cp == 1
    policy = s.one_of("parallelism.fsdp_reshard_after_forward", _RESHARD, "default")
    again = policy == "always" or (policy == "default" and pp == 1)
    zero = 0 if is_alone else 3 if again else 2 if pp == 1 else 1
    state: dict[str, Any] = {"zero": zero}
    if zero and _copies(s) > 1:
        state["shard"] = s.count("parallelism.data_parallel_shard_degree") * cp
    return state


def _stages(s: Settings, pp: int, shape: Mapping[str, Any]) -> dict[str, Any]:
    if pp == 1:
        return {}
    kind = s.one_of("parallelism.pipeline_parallel_schedule", SCHEDULES.values(), "1F1B")
    word = next(word for word, name in SCHEDULES.items() if name == kind)
    is_looped = word not in ("1f1b", "gpipe")
    parts = s.value("parallelism.module_fqns_per_model_part")
    if isinstance(parts, list) and parts:
        counts = [
            sum(str(m).startswith("layers.") for m in p) for p in parts if isinstance(p, list)
        ]
        vpp = s.shares(len(counts), pp, "module_fqns_per_model_part")
        return {"schedule": _spoken(word), "vpp": vpp, "layers": tuple(counts)}
    each = s.optional("parallelism.pipeline_parallel_layers_per_stage")
    less = [
        s.count(f"parallelism.pipeline_parallel_{end}_stage_less_layers", 1, 0)
        for end in ("first", "last")
    ]
    layers = int(shape.get("num_hidden_layers", 0)) + sum(less)
    vpp = 2 if is_looped else 1
    if each and layers:
        vpp = s.shares(-(-layers // each), pp, "pipeline_parallel_layers_per_stage")
    stages: dict[str, Any] = {"schedule": _spoken(word), "vpp": vpp}
    if layers and (any(less) or layers % (pp * vpp)):
        stages["layers"] = _spread(layers, pp * vpp, *less)
    return stages


def _spoken(word: str) -> str | None:
    """Interleaving is said by its chunks."""
    return None if word == "interleaved" else word


def _spread(effective: int, parts: int, first: int, last: int) -> tuple[int, ...]:
    """Layers of every part where the ends count as layers (generate_llm_fqn_per_model_part)."""
    counts = [effective // parts + (i < effective % parts) for i in range(parts)]
    counts[0] -= first
    counts[-1] -= last
    return tuple(max(0, count) for count in counts)


def _recompute(s: Settings, plan: Mapping[str, Any], shape: Mapping[str, Any]) -> str:
    mode = s.one_of("activation_checkpoint.mode", _MODES, "selective")
    option = s.text("activation_checkpoint.selective_ac_option", "2")
    if mode in ("none", "full"):
        return mode
    if mode == "memory_budget":
        s.faults.append("activation_checkpoint.mode: memory_budget cannot be predicted.")
        return "none"
    if option == "op":
        return "selective"
    if not option.isdecimal() or len(option) > 6:
        s.faults.append(
            f"activation_checkpoint.selective_ac_option: {option!r} is not op or a number."
        )
        return "none"
    layers, n = int(shape.get("num_hidden_layers", 0)), max(1, int(option))
    even = (layers // (plan["pp"] * plan.get("vpp", 1)),) * plan["pp"] * plan.get("vpp", 1)
    counts = plan.get("layers") or even
    chosen, start = [], 0
    for count in counts:
        chosen += [start + i for i in range(count) if (i + 1) % n == 0]
        start += count
    return "full" if n == 1 else f"full@{','.join(map(str, chosen))}" if chosen else "none"


def _batch(s: Settings, pp: int, replicas: int) -> int:
    whole = s.value("training.global_batch_size")
    if whole in (None, -1):
        return s.count("training.local_batch_size", 8) * replicas
    return s.count("training.global_batch_size")


def _precision(s: Settings) -> str:
    named = s.value("model.converters")
    converters = named if isinstance(named, list) else []
    dtype = s.one_of("training.mixed_precision_param", ("bfloat16", "float32"), "bfloat16")
    for name, (_, lower) in PRECISIONS.items():
        if lower and any(f"quantize.linear.{kind}" in converters for kind in lower):
            return name
    return "bf16" if dtype == "bfloat16" else "fp32"


def _optimizers(s: Settings) -> tuple[str, ...]:
    name = s.one_of("optimizer.name", OPTIMIZERS.values(), "AdamW")
    return tuple(word for word, own in OPTIMIZERS.items() if own == name)


def _shape(files: Mapping[str, str]) -> dict[str, Any]:
    """The model that the module beside registers; empty where it is one of torchtitan's own."""
    name = f"{MODULE}.py"
    if name not in files:
        return {}
    arguments = assigned(files[name], name).get("ARGS")
    m = Settings(arguments if isinstance(arguments, dict) else {}, name)
    kind = m.text(CALLED)
    if kind not in FAMILIES.values():
        return {}
    heads = m.count("n_heads")
    shape: dict[str, Any] = {
        "hidden_size": m.count("dim"),
        "num_hidden_layers": m.count("n_layers"),
        "num_attention_heads": heads,
        "vocab_size": m.count("vocab_size"),
        "num_key_value_heads": heads,
        "tie_word_embeddings": m.switch("enable_weight_tying"),
        "qk_norm": m.switch("qk_norm"),
        "hidden_act": "silu-gated",
        "norm": "rmsnorm",
        "norm_bias": None,
        "position": "rope",
        "placement": "pre",
        "parallel_norms": 1,
        "biases": "none",
        "dropout": 0.0,
        "embedding_norm": False,
        "final_norm": True,
        "head": "lm",
        "causal": True,
        "type_vocab_size": 0,
        "predicted_positions": None,
        "sliding_window": None,
        "sliding_window_every": None,
        "num_nextn_predict_layers": 0,
    }
    if kind == FAMILIES["deepseek_v3"]:
        shape |= {
            "intermediate_size": m.count("inter_dim", 10944),
            "q_lora_rank": m.count("q_lora_rank", 0, 0) or None,
            "kv_lora_rank": m.count("kv_lora_rank", 512),
            "qk_nope_head_dim": m.count("qk_nope_head_dim", 128),
            "qk_rope_head_dim": m.count("qk_rope_head_dim", 64),
            "v_head_dim": m.count("v_head_dim", 128),
        }
    elif kind == FAMILIES["qwen3"]:
        shape |= {
            "num_key_value_heads": m.count("n_kv_heads", 8),
            "head_dim": m.count("head_dim", 128),
            "intermediate_size": m.count("hidden_dim", 3072),
        }
    else:
        shape |= {
            "num_key_value_heads": m.count("n_kv_heads", heads),
            "head_dim": None,
            "intermediate_size": _rounded(m, shape["hidden_size"]),
        }
    shape |= _experts(m, kind)
    m.close()
    return shape


def _rounded(m: Settings, width: int) -> int:
    """The width of the feed-forward layer (models/llama3/model/model.py, FeedForward)."""
    wide = int(8 * width / 3)
    if m.value("ffn_dim_multiplier") is not None:
        wide = int(m.number("ffn_dim_multiplier") * wide)
    step = m.count("multiple_of", 256)
    return -(-wide // step) * step


def _experts(m: Settings, kind: str) -> dict[str, Any]:
    if m.value("moe_args") is None or (kind == FAMILIES["qwen3"] and not m.switch("moe_enabled")):
        return {"num_experts": None}
    return {
        "num_experts": m.count("moe_args.num_experts", 8),
        "num_experts_per_tok": m.count("moe_args.top_k"),
        "num_shared_experts": m.count("moe_args.num_shared_experts", 1, 0) or None,
        "moe_intermediate_size": m.count("moe_inter_dim", 768),
        "first_dense_layers": m.count("n_dense_layers", 0, 0) or None,
        "capacity_factor": 1.0,
    }
