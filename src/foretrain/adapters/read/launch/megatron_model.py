"""What Megatron-LM's arguments say of a model, as fields of a `TransformerShape`."""

from __future__ import annotations

import re
from typing import Any

from foretrain.adapters.read.launch.settings import Settings

_POSITIONS = {
    "learned_absolute": "learned", "rope": "rope", "relative": "relative", "none": "none",
    "yarn": "rope",
}  # fmt: skip


def model_shape(s: Settings) -> dict[str, Any]:
    heads = s.count("num-attention-heads")
    is_rms = s.text("normalization", "LayerNorm") == "RMSNorm"
    is_biased = not s.switch("disable-bias-linear")
    vocabulary = s.optional("vocab-size")
    shape: dict[str, Any] = {
        "num_hidden_layers": s.count("num-layers"),
        "hidden_size": s.count("hidden-size"),
        "num_attention_heads": heads,
        "num_key_value_heads": s.count("num-query-groups", heads)
        if s.switch("group-query-attention")
        else heads,
        "intermediate_size": s.optional("ffn-hidden-size"),
        "norm": "rmsnorm" if is_rms else "layernorm",
        "norm_bias": not is_rms,
        "biases": "all" if is_biased else "qkv" if s.switch("add-qkv-bias") else "none",
        "hidden_act": "silu-gated"
        if s.switch("swiglu")
        else "squared-relu"
        if s.switch("squared-relu")
        else "gelu",
        "position": _POSITIONS.get(s.text("position-embedding-type", "learned_absolute"), "none"),
        "tie_word_embeddings": not s.switch("untie-embeddings-and-output-weights"),
        "dropout": s.number("hidden-dropout", 0.1),
        "qk_norm": s.switch("qk-layernorm") and not s.switch("multi-latent-attention"),
        "placement": "pre",
        "num_nextn_predict_layers": s.count("mtp-num-layers", 0, 0),
    }
    if vocabulary:
        # the tokenizer without words adds one for the end of a text
        is_null = s.text("tokenizer-type") == "NullTokenizer"
        shape["vocab_size"] = vocabulary + (1 if is_null else 0)
    return shape | _attention(s) | _experts(s)


def _attention(s: Settings) -> dict[str, Any]:
    if s.switch("multi-latent-attention"):
        return {
            "q_lora_rank": s.optional("q-lora-rank"),
            "kv_lora_rank": s.count("kv-lora-rank", 32),
            "qk_nope_head_dim": s.count("qk-head-dim", 128),
            "qk_rope_head_dim": s.count("qk-pos-emb-head-dim", 64),
            "v_head_dim": s.count("v-head-dim", 128),
        }
    fields: dict[str, Any] = {"head_dim": s.optional("kv-channels")}
    window = s.text("window-size")
    match = re.fullmatch(r"\(?(\d{1,9}),-?\d+\)?", window, re.ASCII)
    if match:
        pattern = re.findall(r"[01]", s.text("window-attn-skip-freq"))
        every = pattern.index("1") + 1 if "1" in pattern else 1
        fields |= {"sliding_window": int(match[1]), "sliding_window_every": every}
    return fields


def _experts(s: Settings) -> dict[str, Any]:
    experts = s.optional("num-experts")
    if not experts:
        return {}
    width = s.count("moe-ffn-hidden-size", s.count("ffn-hidden-size"))
    shared = s.optional("moe-shared-expert-intermediate-size")
    dense = re.match(r"\(?\[0\]\*(\d{1,9})", s.text("moe-layer-freq"))
    fields: dict[str, Any] = {
        "num_experts": experts,
        "num_experts_per_tok": s.count("moe-router-topk", 2),
        "moe_intermediate_size": width,
        "num_shared_experts": s.shares(shared, width, "moe-shared-expert-intermediate-size")
        if shared
        else None,
        "first_dense_layers": int(dense[1]) if dense else None,
    }
    capacity = s.number("moe-expert-capacity-factor", 1.0)
    return fields | {"capacity_factor": capacity}
