"""A transformer's shape as arguments of a model of torchtitan, in a module that registers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.adapters.write.job import Account, ExportJob
from foretrain.adapters.write.python import keywords_text
from foretrain.model.details import Details
from foretrain.model.shape import TransformerShape

MODULE = "exported_model"

# models/<family>/__init__.py: what builds the model there.
FAMILIES = {
    "llama3": "TransformerModelArgs",
    "qwen3": "Qwen3ModelArgs",
    "deepseek_v3": "DeepSeekV3ModelArgs",
}
MODULES = {
    "RoPEScalingArgs": "torchtitan.models.llama3.model.args",
    "MoEArgs": "torchtitan.models.moe",
}


def family(shape: TransformerShape) -> str:
    """The nearest of its models: latent attention is DeepSeek-V3's; experts, norms of queries and keys, tied weights
    and heads of any width are Qwen3's."""
    if shape.is_latent:
        return "deepseek_v3"
    usual = shape.head_width * shape.num_attention_heads == shape.hidden_size
    if shape.num_experts or shape.qk_norm or shape.tie_word_embeddings or not usual:
        return "qwen3"
    return "llama3"


def has_pipelines(shape: TransformerShape) -> bool:
    """Qwen3 is registered without a function that splits it (models/qwen3/__init__.py, pipelining_fn)."""
    return family(shape) != "qwen3"


def model_module(job: ExportJob, account: Account, shape: TransformerShape) -> str:
    name = family(shape)
    for line in (*unlike(shape, name), *_unlike_details(shape, job.details, name)):
        account.note(f"{line}: not supported by torchtitan's {name}; the closest option is used")
    arguments = {"llama3": _llama, "qwen3": _qwen, "deepseek_v3": _deepseek}[name](job, shape)
    arguments |= {
        "norm_eps": account.either(job.details.norm_eps, 1e-5, "epsilon of norms"),
        "rope_theta": account.either(job.details.rope_theta, 10_000.0, "rotary base"),
    }
    if shape.num_experts:
        arguments["moe_args"] = _experts(shape, job.details, account)
    kind = FAMILIES[name]
    inner = [value[""] for value in arguments.values() if isinstance(value, Mapping)]
    return (
        f"# {job.title}: the model\n"
        "from dataclasses import replace\n\n"
        f"from torchtitan.models.{name} import {kind}, get_train_spec\n"
        + "".join(f"from {MODULES[one]} import {one}\n" for one in inner)
        + "from torchtitan.protocols.train_spec import register_train_spec\n\n"
        f"ARGS = {kind}(\n{keywords_text(arguments)})\n"
        f'SPEC = replace(get_train_spec(), model_args={{"{MODULE}": ARGS}})\n'
        f'register_train_spec("{MODULE}", SPEC)\n'
    )


def _common(shape: TransformerShape) -> dict[str, Any]:
    return {
        "dim": shape.hidden_size,
        "n_layers": shape.num_hidden_layers,
        "n_heads": shape.num_attention_heads,
        "vocab_size": shape.vocab_size,
    }


def _llama(job: ExportJob, shape: TransformerShape) -> dict[str, Any]:
    """The width of the feed-forward layer is rounded up to `multiple_of`: here to itself. Positions are always stretched
    as Llama 3.1's: by one where the model's are not (models/llama3/model/model.py)."""
    scaling = job.details.rope_scaling
    is_stretched = scaling is not None and scaling.rope_type == "llama3"
    return _common(shape) | {
        "n_kv_heads": shape.kv_heads,
        "multiple_of": shape.ffn,
        "ffn_dim_multiplier": shape.ffn / (4 * shape.hidden_size),
        "rope_scaling_args": {
            "": "RoPEScalingArgs",
            "scaling_factor": scaling.factor if is_stretched and scaling else 1.0,
            **(
                {name: getattr(scaling, name) for name in _STRETCHED if getattr(scaling, name)}
                if is_stretched
                else {}
            ),
        },
    }


_STRETCHED = ("low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _qwen(job: ExportJob, shape: TransformerShape) -> dict[str, Any]:
    arguments = _common(shape) | {
        "n_kv_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "hidden_dim": shape.ffn,
        "qk_norm": shape.qk_norm,
        "enable_weight_tying": shape.tie_word_embeddings,
    }
    if shape.num_experts:
        arguments |= {
            "moe_enabled": True,
            "moe_inter_dim": shape.moe_intermediate_size or shape.ffn,
        }
    return arguments


def _deepseek(job: ExportJob, shape: TransformerShape) -> dict[str, Any]:
    """Positions are stretched where sequences are longer than in pre-training (models/deepseek_v3/model/model.py)."""
    scaling = job.details.rope_scaling
    arguments = _common(shape) | {
        "inter_dim": shape.ffn,
        "moe_inter_dim": shape.moe_intermediate_size or shape.ffn,
        "n_dense_layers": shape.dense_layers,
        "q_lora_rank": shape.q_lora_rank or 0,
        "kv_lora_rank": shape.kv_lora_rank,
        "qk_nope_head_dim": shape.qk_nope_head_dim,
        "qk_rope_head_dim": shape.qk_rope_head_dim,
        "v_head_dim": shape.v_head_dim,
    }
    if scaling is None or scaling.rope_type != "yarn":
        return arguments | {"rope_factor": 1.0}
    known = {
        "rope_factor": scaling.factor,
        "original_seq_len": scaling.original_max_position_embeddings,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "mscale": scaling.mscale,
    }
    whole = ("beta_fast", "beta_slow")
    return arguments | {
        name: round(value) if name in whole else value
        for name, value in known.items()
        if value is not None
    }


def _experts(shape: TransformerShape, details: Details, account: Account) -> Mapping[str, Any]:
    is_normed = account.either(
        details.norm_topk_prob, True, "weights of the chosen experts sum to one:"
    )
    arguments: dict[str, Any] = {
        "": "MoEArgs",
        "num_experts": shape.num_experts,
        "num_shared_experts": shape.num_shared_experts or 0,
        "top_k": shape.num_experts_per_tok or 1,
        "score_func": account.either(details.scoring_func, "softmax", "router's score function"),
        "route_norm": is_normed,
        "route_scale": float(details.routed_scaling_factor or 1.0),
        "score_before_experts": False,
        "load_balance_coeff": details.bias_update_rate,
    }
    if (details.n_group or 1) > 1:
        arguments |= {
            "num_expert_groups": details.n_group,
            "num_limited_groups": details.topk_group or 1,
        }
    return arguments


def _unlike_details(shape: TransformerShape, details: Details, name: str) -> list[str]:
    scaling, part = details.rope_scaling, details.partial_rotary_factor
    own = {"llama3": "llama3", "deepseek_v3": "yarn"}.get(name)
    is_balanced = bool(shape.num_experts) and details.balance not in (None, "none")
    rows = (
        (scaling is not None and scaling.rope_type != own, scaling.title if scaling else ""),
        (part not in (None, 1), f"rotary positions on {part or 0:.0%} of a head"),
        (is_balanced, f"loss that balances experts ({details.balance})"),
    )
    return [line for holds, line in rows if holds]


def unlike(shape: TransformerShape, name: str) -> list[str]:
    """What of a shape the models of torchtitan do not have."""
    is_sparse, dense = bool(shape.num_experts), shape.dense_layers
    rows = (
        (shape.norm != "rmsnorm", f"{shape.norm} norms"),
        (bool(shape.num_nextn_predict_layers), "multi-token prediction"),
        (shape.placement != "pre", f"{shape.placement} norm placement"),
        (shape.position != "rope", f"{shape.position} positions"),
        (shape.hidden_act != "silu-gated", f"activation {shape.hidden_act}"),
        (shape.biases != "none", "biases"),
        (shape.dropout > 0, f"dropout {shape.dropout:g}"),
        (bool(shape.sliding_window), "sliding-window attention"),
        (name == "qwen3" and is_sparse and dense > 0, "layers without experts"),
        (name == "deepseek_v3" and shape.tie_word_embeddings, "tied embeddings"),
        (shape.capacity_factor != 1.0, f"expert capacity {shape.capacity_factor:g}"),
        (shape.head != "lm" or not shape.causal, f"head type {shape.head}"),
        (shape.embedding_norm, "a norm after the embedding"),
    )
    return [line for holds, line in rows if holds]
