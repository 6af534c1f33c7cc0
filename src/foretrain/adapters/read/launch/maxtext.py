"""MaxText's YAML configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.settings import Settings, yaml_settings
from foretrain.adapters.write.maxtext import (
    AXES,
    CONFIG,
    EXCHANGES,
    OPTIMIZERS,
    POLICIES,
    PRECISIONS,
)
from foretrain.adapters.write.maxtext_model import ACTIVATIONS

_MARK = "base_num_decoder_layers:"


def is_here(files: Mapping[str, str]) -> bool:
    return any(_MARK in text for text in files.values())


def read(files: Mapping[str, str]) -> Launch:
    name = next((n for n, text in files.items() if _MARK in text), CONFIG)
    s = yaml_settings(files, name)
    axes = {axis: _size(s, axis) for axis in AXES}
    devices = 1
    for size in axes.values():
        devices *= size
    batch = s.number("per_device_batch_size", 12.0) * devices
    passes = s.count("gradient_accumulation_steps")
    samples = max(1, round(batch * passes))
    plan = _plan(s, axes, samples, passes)
    launch = Launch(
        plan=plan,
        batch=samples,
        seq=s.optional("max_target_length"),
        precision=_precision(s),
        optimizers=_optimizers(s),
        options={
            "gradient_bytes": _bytes(s.text("grad_dtype", "float32")),
            "clips_gradients": s.number("gradient_clipping_threshold", 1.0) > 0,
        },
        shape=_shape(s),
        devices=devices,
    )
    s.close()
    return launch


def _size(s: Settings, axis: str) -> int:
    return s.count(f"ici_{axis}_parallelism") * s.count(f"dcn_{axis}_parallelism")


def _plan(s: Settings, axes: Mapping[str, int], samples: int, passes: int) -> dict[str, Any]:
    tp, pp, cp, ep = (
        axes["tensor"] * axes["tensor_sequence"],
        axes["pipeline"],
        axes["context"],
        axes["expert"],
    )
    replicas = axes["fsdp"] * axes["data"] * ep
    plan: dict[str, Any] = {
        "tp": tp,
        "sp": axes["tensor_sequence"] > 1,
        "cp": cp,
        "ep": ep,
        "pp": pp,
        "dp": replicas,
        "zero": _zero(s, axes),
        "recompute": POLICIES[s.one_of("remat_policy", POLICIES, "full")],
    }
    if cp > 1:
        way = s.one_of("context_parallel_strategy", EXCHANGES.values(), "all_gather")
        plan["exchange"] = next(word for word, name in EXCHANGES.items() if name == way)
    if plan["zero"] == 3 and axes["data"] > 1:
        plan["shard"] = axes["fsdp"] * cp * ep
    if s.switch("optimizer_memory_host_offload"):
        plan["offload"] = ("optimizer",)
    parts = passes
    if pp > 1:
        plan["schedule"] = "gpipe"
        parts = s.count("num_pipeline_microbatches", pp)
    plan["micro"] = s.shares(samples, parts * replicas, "the batch")
    return plan


def _zero(s: Settings, axes: Mapping[str, int]) -> int:
    """Ranks of contexts and experts hold shards of weights, too (logical_axis_rules)."""
    if axes["fsdp"] > 1 or (axes["data"] == 1 and axes["context"] * axes["expert"] > 1):
        return 3
    return 1 if s.switch("shard_optimizer_over_data") else 0


def _precision(s: Settings) -> str:
    dtype, quantised = s.text("dtype", "bfloat16"), s.text("quantization")
    known = {row: name for name, row in PRECISIONS.items()}
    if (dtype, quantised) not in known:
        s.faults.append(f"dtype, quantization: {dtype} with {quantised!r} cannot be predicted.")
        return "bf16"
    return known[(dtype, quantised)]


def _bytes(dtype: str) -> float:
    return 4.0 if dtype == "float32" else 2.0


def _optimizers(s: Settings) -> tuple[str, ...]:
    name = s.one_of("opt_type", OPTIMIZERS.values(), "adamw")
    return tuple(word for word, own in OPTIMIZERS.items() if own == name)


def _shape(s: Settings) -> dict[str, Any]:
    block = s.text("decoder_block", "llama2")
    is_gpt = block == "gpt3"
    acts = s.value("mlp_activations")
    act = next((word for word, own in ACTIVATIONS.items() if own == acts), "silu-gated")
    heads = s.count("base_num_query_heads", 16)
    shape: dict[str, Any] = {
        "hidden_size": s.count("base_emb_dim", 2048),
        "num_hidden_layers": s.count("base_num_decoder_layers", 16),
        "num_attention_heads": heads,
        "num_key_value_heads": s.count("base_num_kv_heads", 16),
        "head_dim": s.count("head_dim", 128),
        "intermediate_size": s.count("base_mlp_dim", 7168),
        "hidden_act": act,
        "vocab_size": s.count("vocab_size", 32_000),
        "tie_word_embeddings": s.switch("logits_via_embedding"),
        "dropout": s.number("dropout_rate"),
        "norm": "layernorm" if is_gpt else "rmsnorm",
        "norm_bias": None,
        "position": "learned" if is_gpt else "rope",
        "placement": "pre",
        "parallel_norms": 1,
        "biases": "all" if is_gpt else "qkv" if block == "qwen2" else "none",
        "qk_norm": s.switch("use_qk_norm"),
        "embedding_norm": False,
        "final_norm": True,
        "head": "lm",
        "causal": True,
        "type_vocab_size": 0,
        "predicted_positions": None,
        "num_nextn_predict_layers": s.count("mtp_num_layers", 0, 0),
    }
    kind = s.text("attention_type", "global")
    window = s.count("sliding_window_size", 0, 0) if kind == "local_sliding" else 0
    shape |= {"sliding_window": window or None, "sliding_window_every": 1 if window else None}
    if is_gpt:
        shape["max_position_embeddings"] = s.count("trainable_position_size")
    if kind == "mla":
        shape |= {
            "head_dim": None,
            "q_lora_rank": s.count("q_lora_rank", 0, 0) or None,
            "kv_lora_rank": s.count("kv_lora_rank", 512),
            "qk_nope_head_dim": s.count("qk_nope_head_dim", 128),
            "qk_rope_head_dim": s.count("qk_rope_head_dim", 64),
            "v_head_dim": s.count("v_head_dim", 128),
        }
    return shape | _experts(s)


def _experts(s: Settings) -> dict[str, Any]:
    experts = s.count("num_experts")
    if experts == 1:
        return {"num_experts": None}
    capacity = s.number("capacity_factor", -1.0)
    return {
        "num_experts": experts,
        "num_experts_per_tok": s.count("num_experts_per_tok"),
        "moe_intermediate_size": s.count("base_moe_mlp_dim", 7168),
        "num_shared_experts": s.count("shared_experts", 1, 0) or None,
        "first_dense_layers": s.count("first_num_dense_layers", 0, 0) or None,
        "capacity_factor": capacity if capacity > 0 else 1.0,
    }
