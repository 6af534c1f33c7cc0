"""The `model` key of a case: a zoo name, or a transformer shape in which null means "not known"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from foretrain.errors import ModelError, did_you_mean, hint, refuse
from foretrain.model import zoo
from foretrain.model.details import NAMES, Details
from foretrain.model.graph import Model
from foretrain.model.shape import TransformerShape
from foretrain.model.transformer import transformer

_LLAMA: dict[str, Any] = {
    "hidden_act": "silu-gated", "norm": "rmsnorm", "position": "rope", "tie_word_embeddings": False,
    "biases": "none",
}  # fmt: skip
FAMILY_DEFAULTS: dict[str, dict[str, Any]] = {
    "gpt": {
        "hidden_act": "gelu", "norm": "layernorm", "position": "learned", "tie_word_embeddings": True,
    },
    "llama": _LLAMA,
    "moe": _LLAMA,
    "bert": {
        "hidden_act": "gelu", "norm": "layernorm", "position": "learned", "tie_word_embeddings": True,
        "causal": False, "dropout": 0.1, "placement": "post", "embedding_norm": True,
        "final_norm": False, "type_vocab_size": 2, "head": "mlm",
    },
    "mpt": {
        "hidden_act": "gelu", "norm": "layernorm", "position": "alibi", "tie_word_embeddings": True,
        "biases": "none",
    },
}  # fmt: skip
_REQUIRED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_OF_EXPERTS = (
    "num_experts_per_tok", "moe_intermediate_size", "num_shared_experts", "first_dense_layers",
)  # fmt: skip
_FIELDS = (*(field.name for field in fields(TransformerShape)), *NAMES)


def model_from_case(
    data: Mapping[str, Any], seq: int | None, name: str = ""
) -> tuple[Model, tuple[str, ...]]:
    """The model a case describes, and what had to be assumed to build it."""
    if "zoo" in data:
        overrides = {
            key: value for key, value in data.items() if key != "zoo" and value is not None
        }
        model = zoo.build(str(data["zoo"]), seq)
        if overrides:
            model = _override(str(data["zoo"]), model, overrides, seq)
        return (replace(model, name=name) if name else model), ()
    shape, assumptions = shape_from_case(data)
    if seq is None:
        raise ModelError("a transformer needs seq_len, the tokens per sample.")
    name = name or f"{data['family']}-{shape.num_hidden_layers}x{shape.hidden_size}"
    details = Details.of(data, "model")
    return transformer(shape, seq, name, "described by its shape", details), assumptions


def _override(name: str, model: Model, overrides: Mapping[str, Any], seq: int | None) -> Model:
    known = zoo.shape(name)
    if known is None:
        raise ModelError(
            f"{name} is not described by a transformer shape; it supports no overrides, but "
            f"got {', '.join(overrides)}."
        )
    _refuse_unknown(overrides, where=name)
    changes = {key: value for key, value in overrides.items() if key not in NAMES}
    own = Details.of(overrides, name)
    details = replace(
        model.details, **{key: getattr(own, key) for key in NAMES if key in overrides}
    )
    length, source = seq or model.seq_len or 1, f"{model.source}, changed"
    return transformer(replace(known, **changes), length, name, source, details)


def shape_from_case(data: Mapping[str, Any]) -> tuple[TransformerShape, tuple[str, ...]]:
    """The shape a case describes; nulls take the family's default and are listed."""
    family = data.get("family")
    if family not in FAMILY_DEFAULTS:
        raise ModelError(f"family: {family!r} is not known.{hint(str(family), FAMILY_DEFAULTS)}")
    named = {key: value for key, value in data.items() if key != "family" and value is not None}
    _refuse_unknown(named, where="model")
    given = {key: value for key, value in named.items() if key not in NAMES}
    missing = [f"{key}: missing." for key in _REQUIRED if key not in given]
    refuse("this shape is incomplete:", missing, ModelError)
    merged, notes = {**FAMILY_DEFAULTS[family], **given}, _notes(data, family)
    _imply(merged, given, family, notes)
    try:
        return TransformerShape(**merged), tuple(notes)
    except TypeError as error:
        raise ModelError(f"invalid transformer shape: {error}.") from None


def _refuse_unknown(given: Mapping[str, Any], where: str) -> None:
    faults = [
        f"{where}.{key}: unknown key.{did_you_mean(key, _FIELDS)}"
        for key in given
        if key not in _FIELDS
    ]
    refuse(f"{where} has unknown keys:", faults, ModelError)


def _notes(data: Mapping[str, Any], family: str) -> list[str]:
    return [
        f"model.{key}: not specified, using {value!r} ({family} default)"
        for key, value in FAMILY_DEFAULTS[family].items()
        if key in data and data[key] is None
    ]


def _imply(merged: dict[str, Any], given: Mapping[str, Any], family: str, notes: list[str]) -> None:
    """Fields the case format has no key for, by what the architecture's own recipes do."""
    if family == "gpt":
        # GPT-2, GPT-3 and Megatron train with dropout 0.1; later GPT-likes (BLOOM, Nemotron) with none.
        merged.setdefault("dropout", 0.1 if merged["position"] == "learned" else 0.0)
        if merged["hidden_act"] == "gelu" and merged["position"] == "learned":
            merged["hidden_act"] = "gelu-tanh"  # GPT-2's; matters where nothing is fused
        merged.setdefault("embedding_norm", merged["position"] == "alibi")  # BLOOM
        if merged["position"] == "rope":  # Nemotron-4: no linear biases, layer norm keeps its own
            merged.setdefault("biases", "none")
            merged.setdefault("norm_bias", merged["norm"] == "layernorm")
    if given.get("intermediate_size") is None:
        hidden = int(given["hidden_size"])
        gated = str(merged["hidden_act"]).endswith("-gated")
        # Touvron et al. 2023 (arXiv 2302.13971, section 2.2): two thirds of 4·hidden, up to 256s
        ffn = -(-8 * hidden // 3 // 256) * 256 if gated else 4 * hidden
        merged["intermediate_size"] = ffn
        notes.append(f"model.intermediate_size: not specified, using {ffn}")
    experts = merged.get("num_experts")
    if not experts:
        notes.extend(_without_experts(given, family))
    if experts and merged.get("num_experts_per_tok") is None:
        merged["num_experts_per_tok"] = min(2, int(experts))
        notes.append("model.num_experts_per_tok: not specified, using 2")


def _without_experts(given: Mapping[str, Any], family: str) -> Iterator[str]:
    """What speaks of experts in a shape that has none."""
    if family == "moe":
        yield "model.num_experts: not specified, so the feed-forward layers are dense"
    for key in _OF_EXPERTS:
        if given.get(key):
            yield f"model.{key} = {given[key]} has no effect: model.num_experts is not specified"
