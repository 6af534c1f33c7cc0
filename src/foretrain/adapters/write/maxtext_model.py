"""A transformer's shape as keys of MaxText."""

from __future__ import annotations

from typing import Any

from foretrain.adapters.write.job import Account, ExportJob
from foretrain.model.details import Details
from foretrain.model.shape import TransformerShape

ACTIVATIONS = {
    "silu-gated": ["silu", "linear"],
    "gelu-gated": ["gelu", "linear"],
    "gelu": ["gelu"],
    "relu": ["relu"],
}

LLAMA_FACTOR = 8.0


def decoder_block(shape: TransformerShape) -> str:
    """The nearest of its blocks (common_types.py, DecoderBlockType)."""
    if shape.is_latent:
        return "deepseek"
    if shape.num_experts:
        return "qwen3_moe" if shape.qk_norm else "mixtral"
    if shape.qk_norm:
        return "qwen3"
    if shape.norm == "layernorm" and shape.position == "learned":
        return "gpt3"
    if shape.biases == "qkv":
        return "qwen2"
    return "mistral" if shape.sliding_window else "llama2"


def model_keys(job: ExportJob, account: Account, shape: TransformerShape) -> dict[str, Any]:
    block = decoder_block(shape)
    for line in (*unlike(shape, block), *_unlike_details(shape, job.details)):
        account.note(
            f"{line}: not supported by MaxText's {block} block; the closest option is used"
        )
    keys: dict[str, Any] = {
        "decoder_block": block,
        "base_emb_dim": shape.hidden_size,
        "base_num_decoder_layers": shape.num_hidden_layers,
        "base_num_query_heads": shape.num_attention_heads,
        "base_num_kv_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "base_mlp_dim": shape.ffn,
        "mlp_activations": ACTIVATIONS.get(shape.hidden_act, ["silu", "linear"]),
        "vocab_size": shape.vocab_size,
        "logits_via_embedding": shape.tie_word_embeddings,
        "dropout_rate": shape.dropout,
        "attention_bias": shape.biases != "none",
        "use_qk_norm": shape.qk_norm,
        "normalization_layer_epsilon": account.either(
            job.details.norm_eps, 1e-5, "epsilon of norms"
        ),
    }
    if shape.position == "rope":
        keys |= _positions(job.details, account)
    if shape.position == "learned":
        positions = max(shape.max_position_embeddings or 0, job.question.workload.seq_len or 1)
        keys["trainable_position_size"] = positions
    if shape.is_latent:
        keys |= {
            "attention_type": "mla",
            "q_lora_rank": shape.q_lora_rank or 0,
            "kv_lora_rank": shape.kv_lora_rank,
            "qk_nope_head_dim": shape.qk_nope_head_dim,
            "qk_rope_head_dim": shape.qk_rope_head_dim,
            "v_head_dim": shape.v_head_dim,
        }
    elif shape.sliding_window:
        keys |= {"attention_type": "local_sliding", "sliding_window_size": shape.sliding_window}
    if shape.num_experts:
        keys |= {
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.num_experts_per_tok or 1,
            "base_moe_mlp_dim": shape.moe_intermediate_size or shape.ffn,
            "shared_experts": shape.num_shared_experts or 0,
            "first_num_dense_layers": shape.dense_layers,
            # without a capacity no token is dropped
            "capacity_factor": -1.0 if shape.capacity_factor == 1.0 else shape.capacity_factor,
        }
        keys |= _routing(job.details, account)
    if shape.num_nextn_predict_layers:
        weight = account.either(
            job.details.mtp_loss_weight, 0.1, "weight of multi-token prediction"
        )
        keys |= {
            "mtp_num_layers": shape.num_nextn_predict_layers,
            "mtp_loss_scaling_factor": weight,
        }
    return keys


def _positions(details: Details, account: Account) -> dict[str, Any]:
    """The factor of Llama 3.1's stretching is a constant (layers/embeddings.py, LLaMARotaryEmbedding)."""
    base = account.either(details.rope_theta, 10_000.0, "rotary base")
    keys: dict[str, Any] = {"rope_max_timescale": round(base)}
    scaling = details.rope_scaling
    if scaling is None or scaling.rope_type not in ("llama3", "yarn"):
        return keys
    if scaling.rope_type == "llama3":
        if scaling.factor != LLAMA_FACTOR:
            account.note(f"{scaling.title}: MaxText's factor is {LLAMA_FACTOR:g}")
        return keys | {"rope_type": "llama3.1", "rope_use_scale": True}
    known = {
        "rope_factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "mscale": scaling.mscale,
    }
    given = {name: value for name, value in known.items() if value is not None}
    length = scaling.original_max_position_embeddings
    if length is not None:
        given["max_position_embeddings"] = round(length * scaling.factor)
    return keys | {"rope_type": "yarn", **given}


def _routing(details: Details, account: Account) -> dict[str, Any]:
    is_normed = account.either(
        details.norm_topk_prob, True, "weights of the chosen experts sum to one:"
    )
    keys: dict[str, Any] = {
        "routed_score_func": account.either(
            details.scoring_func, "softmax", "router's score function"
        ),
        "norm_topk_prob": is_normed,
        "routed_scaling_factor": float(details.routed_scaling_factor or 1.0),
    }
    if (details.n_group or 1) > 1:
        keys |= {"n_routing_groups": details.n_group, "topk_routing_group": details.topk_group or 1}
    if details.bias_update_rate is not None:
        keys |= {"routed_bias": True, "routed_bias_update_rate": details.bias_update_rate}
    balance = account.either(details.balance, "none", "loss that balances experts:")
    if balance != "none":
        keys["load_balance_loss_weight"] = account.either(
            details.router_aux_loss_coef, 0.01, "weight of the loss that balances experts"
        )
    return keys


def _unlike_details(shape: TransformerShape, details: Details) -> list[str]:
    scaling, part = details.rope_scaling, details.partial_rotary_factor
    is_known = scaling is None or scaling.rope_type in ("llama3", "yarn")
    rows = (
        (not is_known, scaling.title if scaling else ""),
        (part not in (None, 1), f"rotary positions on {part or 0:.0%} of a head"),
    )
    return [line for holds, line in rows if holds]


def unlike(shape: TransformerShape, block: str) -> list[str]:
    """What of a shape the blocks of MaxText do not have."""
    every = shape.sliding_window_every or 1
    is_gpt = block == "gpt3"
    rows = (
        (shape.norm != ("layernorm" if is_gpt else "rmsnorm"), f"{shape.norm} norms"),
        (shape.placement != "pre", f"{shape.placement} norm placement"),
        (shape.position not in ("learned" if is_gpt else "rope",), f"{shape.position} positions"),
        (shape.hidden_act not in ACTIVATIONS, f"activation {shape.hidden_act}"),
        (shape.biases == "all" and not is_gpt, "biases in all linear layers"),
        (shape.biases == "qkv" and block != "qwen2", "biases of queries, keys and values"),
        (
            bool(shape.sliding_window) and (every > 1 or block != "mistral"),
            "sliding-window attention in some layers only",
        ),
        (bool(shape.num_shared_experts) and block != "deepseek", "shared experts"),
        (
            bool(shape.num_experts) and shape.dense_layers > 0 and block != "deepseek",
            "layers without experts",
        ),
        (shape.head != "lm" or not shape.causal, f"head type {shape.head}"),
        (shape.embedding_norm, "a norm after the embedding"),
    )
    return [line for holds, line in rows if holds]
