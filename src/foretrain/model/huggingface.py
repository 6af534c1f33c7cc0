"""Hugging Face `config.json` → Model, by `model_type`; the transformers library is not needed.

Each row maps a configuration to a `TransformerShape`. Keys the mapping does not name do not change the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foretrain.errors import ModelError, did_you_mean, hint
from foretrain.model.graph import Model
from foretrain.model.huggingface_details import details_from_config
from foretrain.model.shape import TransformerShape
from foretrain.model.transformer import transformer
from foretrain.model.zoo.t5 import t5, t5_shape
from foretrain.model.zoo.vit import ViTShape, vit

Config = Mapping[str, Any]
_ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu", "gelu_pytorch_tanh": "gelu",
    "gelu_python": "gelu", "relu": "relu", "relu2": "squared-relu", "silu": "silu", "swish": "silu",
}  # fmt: skip


def model_from_config(config: Config, seq: int | None = None, name: str = "") -> Model:
    """The model of a configuration; `seq` defaults to 2,048 or what the positions allow."""
    kind = str(config.get("model_type", ""))
    label = name or str(config.get("_name_or_path") or kind)
    if kind in _OTHERS:
        return _OTHERS[kind](config, seq, label)
    if kind not in _SHAPES:
        known = (*_SHAPES, *_OTHERS)
        raise ModelError(
            f"model_type {kind!r} is not known.{hint(kind, known)} Other "
            "transformers can be described by their shape in YAML."
        )
    shape = _SHAPES[kind](_Reader(config, kind))
    limit = shape.max_position_embeddings or config.get("max_position_embeddings") or 2048
    source = f"Hugging Face configuration ({kind})"
    details = details_from_config(config, kind)
    return transformer(shape, seq or min(2048, int(limit)), label, source, details)


class _Reader:
    """Reads keys of one configuration and complains in its words."""

    def __init__(self, config: Config, kind: str) -> None:
        self.config = config
        self.kind = kind

    def number(self, *keys: str) -> int:
        value = self.optional(*keys)
        if value is None:
            raise ModelError(f"{self.kind} configuration: {keys[0]} is missing.")
        return value

    def optional(self, *keys: str) -> int | None:
        for key in keys:
            value = self.config.get(key)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise ModelError(
                    f"{self.kind} configuration: {key} is {value!r}, not a whole number."
                )
            return value
        return None

    def share(self, key: str, default: float) -> float:
        value = self.config.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelError(f"{self.kind} configuration: {key} is {value!r}, not a number.")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.config.get(key)
        return default if value is None else bool(value)

    def activation(self, key: str, default: str, gated: bool = False) -> str:
        name = str(self.config.get(key) or default)
        if name not in _ACTIVATIONS:
            hint = did_you_mean(name, _ACTIVATIONS)
            raise ModelError(f"{self.kind} configuration: {key} {name!r} is not known.{hint}")
        return _ACTIVATIONS[name] + ("-gated" if gated else "")


def _basics(r: _Reader) -> dict[str, Any]:
    return {
        "hidden_size": r.number("hidden_size", "n_embd", "d_model"),
        "num_hidden_layers": r.number("num_hidden_layers", "n_layer", "n_layers"),
        "num_attention_heads": r.number("num_attention_heads", "n_head", "n_heads"),
        "vocab_size": r.number("vocab_size"),
    }


def _gpt2(r: _Reader) -> TransformerShape:
    return TransformerShape(
        **_basics(r),
        intermediate_size=r.optional("n_inner"),
        hidden_act=r.activation("activation_function", "gelu_new"),
        tie_word_embeddings=r.flag("tie_word_embeddings", True),
        max_position_embeddings=r.optional("n_positions", "n_ctx") or 1024,
        dropout=r.share("resid_pdrop", 0.1),
    )


def _llama_fields(r: _Reader) -> dict[str, Any]:
    window = r.optional("sliding_window") if r.flag("use_sliding_window", True) else None
    return _basics(r) | {
        "num_key_value_heads": r.optional("num_key_value_heads"),
        "intermediate_size": r.number("intermediate_size"),
        "head_dim": r.optional("head_dim"),
        "tie_word_embeddings": r.flag("tie_word_embeddings", False),
        "hidden_act": r.activation("hidden_act", "silu", gated=True),
        "norm": "rmsnorm",
        "position": "rope",
        "biases": _llama_biases(r),
        "sliding_window": window,
    }


def _llama_biases(r: _Reader) -> str:
    if not r.flag("attention_bias", False):
        return "none"
    return "all" if r.flag("mlp_bias", False) else "qkv"


def _llama(r: _Reader) -> TransformerShape:
    return TransformerShape(**_llama_fields(r))


def _qwen2(r: _Reader) -> TransformerShape:
    if not r.flag("use_sliding_window", False):
        r = _Reader({**r.config, "sliding_window": None}, r.kind)
    return TransformerShape(**_llama_fields(r) | {"biases": "qkv"})


def _qwen3(r: _Reader) -> TransformerShape:
    fields = _llama_fields(r)
    if not r.flag("use_sliding_window", False):
        fields["sliding_window"] = None
    fields["head_dim"] = fields["head_dim"] or 128
    return TransformerShape(**fields, qk_norm=True)


def _qwen3_moe(r: _Reader) -> TransformerShape:
    fields = _llama_fields(r) | {"sliding_window": None}
    experts = _experts(r, "num_experts", "num_local_experts")
    width = r.number("moe_intermediate_size")
    return TransformerShape(**fields, **experts, qk_norm=True, moe_intermediate_size=width)


def _experts(r: _Reader, *counted_by: str) -> dict[str, Any]:
    chosen = r.number("num_experts_per_tok")
    return {"num_experts": r.number(*counted_by), "num_experts_per_tok": chosen}


def _mixtral(r: _Reader) -> TransformerShape:
    return TransformerShape(**_llama_fields(r), **_experts(r, "num_local_experts"))


def _deepseek_experts(r: _Reader) -> dict[str, Any]:
    """Routed and shared experts, and modules that predict further tokens."""
    return _experts(r, "n_routed_experts") | {
        "moe_intermediate_size": r.number("moe_intermediate_size"),
        "num_shared_experts": r.optional("n_shared_experts"),
        "first_dense_layers": r.optional("first_k_dense_replace"),
        "num_nextn_predict_layers": r.optional("num_nextn_predict_layers") or 0,
    }


def _deepseek(r: _Reader) -> TransformerShape:
    fields = _llama_fields(r) | {"head_dim": None, "num_key_value_heads": None}
    return TransformerShape(
        **fields,
        **_deepseek_experts(r),
        q_lora_rank=r.optional("q_lora_rank"),
        kv_lora_rank=r.number("kv_lora_rank"),
        qk_nope_head_dim=r.number("qk_nope_head_dim"),
        qk_rope_head_dim=r.number("qk_rope_head_dim"),
        v_head_dim=r.number("v_head_dim"),
    )


def _glm4_moe(r: _Reader) -> TransformerShape:
    fields = _llama_fields(r) | {"sliding_window": None}
    return TransformerShape(**fields, **_deepseek_experts(r), qk_norm=r.flag("use_qk_norm", False))


def _gemma(r: _Reader) -> TransformerShape:
    fields = _llama_fields(r) | {"tie_word_embeddings": r.flag("tie_word_embeddings", True)}
    key = "hidden_activation" if r.config.get("hidden_activation") else "hidden_act"
    fields["hidden_act"] = r.activation(key, "gelu_pytorch_tanh", gated=True)
    return TransformerShape(**fields)


def _bert(r: _Reader) -> TransformerShape:
    return TransformerShape(
        **_basics(r),
        intermediate_size=r.number("intermediate_size"),
        hidden_act=r.activation("hidden_act", "gelu"),
        tie_word_embeddings=r.flag("tie_word_embeddings", True),
        max_position_embeddings=r.optional("max_position_embeddings") or 512,
        causal=False,
        dropout=r.share("hidden_dropout_prob", 0.1),
        placement="post",
        embedding_norm=True,
        final_norm=False,
        type_vocab_size=r.optional("type_vocab_size") or 0,
        head="mlm",
    )


def _mpt(r: _Reader) -> TransformerShape:
    attention = r.config.get("attn_config") or {}
    alibi = bool(attention.get("alibi", True)) if isinstance(attention, Mapping) else True
    basics = _basics(r)
    return TransformerShape(
        **basics,
        intermediate_size=(r.optional("expansion_ratio") or 4) * basics["hidden_size"],
        tie_word_embeddings=True,
        position="alibi" if alibi else "learned",
        max_position_embeddings=r.optional("max_seq_len"),
        biases="none" if r.flag("no_bias", True) else "all",
    )


def _gpt_neox(r: _Reader) -> TransformerShape:
    parallel = r.flag("use_parallel_residual", True)
    return TransformerShape(
        **_basics(r),
        intermediate_size=r.number("intermediate_size"),
        hidden_act=r.activation("hidden_act", "gelu"),
        tie_word_embeddings=r.flag("tie_word_embeddings", False),
        position="rope",
        placement="parallel" if parallel else "pre",
        parallel_norms=2,
    )


def _opt(r: _Reader) -> TransformerShape:
    # two position rows are reserved for padding
    return TransformerShape(
        **_basics(r),
        intermediate_size=r.number("ffn_dim"),
        hidden_act=r.activation("activation_function", "relu"),
        tie_word_embeddings=r.flag("tie_word_embeddings", True),
        max_position_embeddings=(r.optional("max_position_embeddings") or 2048) + 2,
        dropout=r.share("dropout", 0.1),
    )


def _bloom(r: _Reader) -> TransformerShape:
    return TransformerShape(
        **_basics(r),
        tie_word_embeddings=r.flag("tie_word_embeddings", True),
        position="alibi",
        embedding_norm=True,
        dropout=r.share("hidden_dropout", 0.0),
    )


def _falcon(r: _Reader) -> TransformerShape:
    kv_heads = 1 if r.flag("multi_query", True) else None
    new = r.flag("new_decoder_architecture", False)
    if new:
        kv_heads = r.optional("num_kv_heads")
    return TransformerShape(
        **_basics(r),
        num_key_value_heads=kv_heads,
        tie_word_embeddings=r.flag("tie_word_embeddings", True),
        position="alibi" if r.flag("alibi", False) else "rope",
        biases="all" if r.flag("bias", False) else "none",
        norm_bias=True,
        placement="parallel" if r.flag("parallel_attn", True) or new else "pre",
        parallel_norms=2 if new else 1,
    )


def _nemotron(r: _Reader) -> TransformerShape:
    return TransformerShape(
        **_basics(r),
        num_key_value_heads=r.optional("num_key_value_heads"),
        intermediate_size=r.number("intermediate_size"),
        head_dim=r.optional("head_dim"),
        hidden_act=r.activation("hidden_act", "relu2"),
        tie_word_embeddings=r.flag("tie_word_embeddings", False),
        position="rope",
        biases="none",
        norm_bias=True,
    )


def _t5(config: Config, seq: int | None, name: str) -> Model:
    r = _Reader(config, "t5")
    gated = "gated" in str(config.get("feed_forward_proj", "relu"))
    layers = r.number("num_layers")
    shape = t5_shape(
        hidden=r.number("d_model"),
        layers=layers,
        heads=r.number("num_heads"),
        head_dim=r.number("d_kv"),
        ffn=r.number("d_ff"),
        vocab=r.number("vocab_size"),
        is_gated=gated,
        is_tied=r.flag("tie_word_embeddings", True),
        dropout=r.share("dropout_rate", 0.1),
    )
    decoder = r.optional("num_decoder_layers") or layers
    return t5(shape, decoder, seq or 512, name, "Hugging Face configuration (t5)")


def _vit(config: Config, seq: int | None, name: str) -> Model:
    r = _Reader(config, "vit")
    labels = config.get("id2label")
    shape = ViTShape(
        hidden=r.number("hidden_size"),
        layers=r.number("num_hidden_layers"),
        heads=r.number("num_attention_heads"),
        ffn=r.number("intermediate_size"),
        patch=r.optional("patch_size") or 16,
        pixels=r.optional("image_size") or 224,
        classes=len(labels) if isinstance(labels, Mapping) and labels else 1000,
    )
    return vit(shape, name, "Hugging Face configuration (vit)")


_SHAPES: dict[str, Callable[[_Reader], TransformerShape]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "glm4_moe": _glm4_moe,
    "gemma": _gemma,
    "phi3": _llama,
    "bert": _bert,
    "roberta": _bert,
    "mpt": _mpt,
    "gpt_neox": _gpt_neox,
    "opt": _opt,
    "bloom": _bloom,
    "falcon": _falcon,
    "nemotron": _nemotron,
}
_OTHERS: dict[str, Callable[[Config, int | None, str], Model]] = {"t5": _t5, "vit": _vit}
