"""nanotron's YAML configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.settings import Settings, yaml_settings
from foretrain.adapters.write.nanotron import DTYPES, ENGINES

CONFIG = "nanotron.yaml"
_NAMES = {name: word for word, name in DTYPES.items()}
_MODES = ("ALL_REDUCE", "REDUCE_SCATTER")


def is_here(files: Mapping[str, str]) -> bool:
    return any("batch_accumulation_per_replica:" in text for text in files.values())


def read(files: Mapping[str, str]) -> Launch:
    name = next((f for f, t in files.items() if "batch_accumulation_per_replica:" in t), CONFIG)
    s = yaml_settings(files, name)
    tp, pp = s.count("parallelism.tp"), s.count("parallelism.pp")
    cp, dp = s.count("parallelism.context_parallel_size"), s.count("parallelism.dp")
    micro = s.count("tokens.micro_batch_size")
    mode = s.one_of("parallelism.tp_mode", _MODES, "REDUCE_SCATTER")
    is_split = tp > 1 and mode == "REDUCE_SCATTER"
    engine = s.one_of("parallelism.pp_engine", ENGINES.values(), "1f1b")
    plan: dict[str, Any] = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "dp": dp,
        "sp": is_split,
        "zero": s.count("optimizer.zero_stage", 0, 0),
        "recompute": "full" if s.switch("parallelism.recompute_layer") else "none",
        "micro": micro,
        "buckets": s.count("model.ddp_bucket_cap_mb", 25) * 2.0**20,
    }
    if cp > 1:
        plan["exchange"] = "ring"
    if pp > 1:
        plan["schedule"] = next(word for word, one in ENGINES.items() if one == engine)
    launch = Launch(
        plan=plan,
        batch=micro * s.count("tokens.batch_accumulation_per_replica") * dp,
        seq=s.optional("tokens.sequence_length"),
        precision=_NAMES[s.one_of("model.dtype", _NAMES, "bfloat16")],
        optimizers=_optimizers(s),
        options=_options(s, is_split),
        shape=_shape(s),
        devices=tp * pp * cp * dp,
    )
    s.close()
    return launch


def _optimizers(s: Settings) -> tuple[str, ...]:
    is_sgd = s.text("optimizer.optimizer_factory.name", "adamW") == "sgd"
    return ("plain-sgd",) if is_sgd else ("adamw", "adam")


def _options(s: Settings, is_split: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "pads_vocabulary_to": s.count("model.make_vocab_size_divisible_by"),
        "gradient_bytes": 4.0 if s.switch("optimizer.accumulate_grad_in_fp32") else None,
        "clips_gradients": s.value("optimizer.clip_grad") is not None,
    }
    if is_split:
        options["tp_dgrad_overlap"] = s.switch("parallelism.tp_linear_async_communication")
        options["regathers_sequence"] = s.switch("parallelism.tp_recompute_allgather", True)
    return options


def _shape(s: Settings) -> dict[str, Any]:
    def count(name: str, default: int = 1) -> int:
        return s.count(f"model.model_config.{name}", default)

    heads = count("num_attention_heads")
    shape: dict[str, Any] = {
        "hidden_size": count("hidden_size"),
        "num_hidden_layers": count("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_key_value_heads": count("num_key_value_heads", heads),
        "intermediate_size": count("intermediate_size"),
        "vocab_size": count("vocab_size"),
        "tie_word_embeddings": s.switch("model.model_config.tie_word_embeddings"),
        "biases": "qkv" if s.switch("model.model_config.attention_bias") else "none",
        "hidden_act": "silu-gated",
        "norm": "rmsnorm",
        "norm_bias": None,
        "position": "rope",
        "placement": "pre",
        "dropout": 0.0,
        "qk_norm": False,
        "embedding_norm": False,
        "head": "lm",
        "head_dim": None,
        "num_nextn_predict_layers": 0,
        "kv_lora_rank": None,
    }
    window = s.optional("model.model_config.sliding_window_size")
    shape |= {"sliding_window": window, "sliding_window_every": None}
    return shape | _experts(s)


def _experts(s: Settings) -> dict[str, Any]:
    at = "model.model_config.moe_config"
    if s.value(at) is None:
        return {}
    layers = s.value(f"{at}.layers")
    first = layers[0] if isinstance(layers, list) and layers else -1
    return {
        "num_experts": s.count(f"{at}.num_experts"),
        "num_experts_per_tok": s.count(f"{at}.top_k"),
        "moe_intermediate_size": s.count("model.model_config.intermediate_size"),
        "first_dense_layers": first if isinstance(first, int) and first > 0 else None,
        "num_shared_experts": 1 if s.switch(f"{at}.enable_shared_expert") else None,
        "capacity_factor": 1.0,
    }
