"""Hugging Face `config.json` → `Details`: what of a model leaves its graph as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from foretrain.model.details import Details, RopeScaling

Config = Mapping[str, Any]

# Under which keys configurations have them, the usual one first.
_KEYS: dict[str, tuple[str, ...]] = {
    "norm_eps": (
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_epsilon",
        "norm_eps",
    ),
    "initializer_range": ("initializer_range",),
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "partial_rotary_factor": ("partial_rotary_factor", "rotary_pct"),
    "scoring_func": ("scoring_func",),
    "norm_topk_prob": ("norm_topk_prob",),
    "n_group": ("n_group",),
    "topk_group": ("topk_group",),
    "routed_scaling_factor": ("routed_scaling_factor",),
    "router_aux_loss_coef": ("router_aux_loss_coef", "aux_loss_alpha"),
}
# What the code of an architecture does without a key for it (transformers, modeling_*.py).
_BY_KIND: dict[str, dict[str, Any]] = {
    "mixtral": {"scoring_func": "softmax", "norm_topk_prob": True},
    "qwen3_moe": {"scoring_func": "softmax"},
    "deepseek_v2": {"scoring_func": "softmax"},
    "deepseek_v3": {"scoring_func": "sigmoid"},
    "glm4_moe": {"scoring_func": "sigmoid"},
}
_WITH_BIAS = ("deepseek_v3", "glm4_moe")
_BIAS_RATE = 0.001  # DeepSeek-AI 2024, arXiv 2412.19437, section 4.2; configurations do not have it
_SCALING = tuple(field.name for field in fields(RopeScaling))


def details_from_config(config: Config, kind: str) -> Details:
    """Those that a configuration has, whatever it calls them."""
    given: dict[str, Any] = dict(_BY_KIND.get(kind, {}))
    for name, keys in _KEYS.items():
        found = next((config[key] for key in keys if config.get(key) is not None), None)
        if found is not None:
            given[name] = found
    given |= _positions(config)
    if given.get("scoring_func") and given.get("router_aux_loss_coef") is not None:
        given["balance"] = "seq_aux_loss" if config.get("seq_aux") else "aux_loss"
    if kind in _WITH_BIAS and config.get("topk_method", "noaux_tc") == "noaux_tc":
        given["bias_update_rate"] = _BIAS_RATE
    return Details.of(given, f"{kind} configuration")


def _positions(config: Config) -> dict[str, Any]:
    """Newer configurations have all of rotary positions in `rope_parameters`."""
    together = config.get("rope_parameters")
    scaling = config.get("rope_scaling") or together
    given: dict[str, Any] = {}
    if isinstance(together, Mapping) and together.get("rope_theta") is not None:
        given["rope_theta"] = together["rope_theta"]
    if not isinstance(scaling, Mapping):
        return given
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind is None or kind == "default":
        return given
    known = {name: scaling[name] for name in _SCALING if scaling.get(name) is not None}
    return given | {"rope_scaling": known | {"rope_type": kind}}
