"""What is known of a transformer besides its graph: numbers that a run needs and no prediction depends on.

They have the names that Hugging Face configurations use. None: not known; a launch file then has a default, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from foretrain.errors import ModelError, did_you_mean, refuse
from foretrain.limits import shown

SCORES = ("softmax", "sigmoid")
BALANCES = ("aux_loss", "seq_aux_loss", "none")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary positions are stretched beyond the length of pre-training.

    `llama3`: by parts of the spectrum (Llama team 2024, released configurations); `yarn`: Peng et al. 2023, arXiv 2309.00071.
    """

    rope_type: str
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    @property
    def title(self) -> str:
        return f"rope scaling {self.rope_type}, factor {self.factor:g}"


@dataclass(frozen=True, slots=True)
class Details:
    """Numbers of a model that leave its graph as it is.

    `scoring_func`: of the router; `norm_topk_prob`: whether the weights of the chosen experts sum to one; `n_group`,
    `topk_group`: groups of experts, and those a token may choose from; `bias_update_rate`: of the balancing without a loss
    (Wang et al. 2024, arXiv 2408.15664); `balance`, `router_aux_loss_coef`: the loss that balances experts.
    """

    norm_eps: float | None = None
    initializer_range: float | None = None
    rope_theta: float | None = None
    rope_scaling: RopeScaling | None = None
    partial_rotary_factor: float | None = None
    scoring_func: str | None = None
    norm_topk_prob: bool | None = None
    n_group: int | None = None
    topk_group: int | None = None
    routed_scaling_factor: float | None = None
    bias_update_rate: float | None = None
    balance: str | None = None
    router_aux_loss_coef: float | None = None
    mtp_loss_weight: float | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any], where: str = "the model") -> Details:
        """Those that a mapping has among other keys; every wrong value is named."""
        given = {name: data[name] for name in NAMES if data.get(name) is not None}
        faults = [line for name, value in given.items() for line in _faults(name, value)]
        refuse(f"{where} has invalid details:", faults, ModelError)
        scaling = given.get("rope_scaling")
        if isinstance(scaling, Mapping):
            given["rope_scaling"] = RopeScaling(**scaling)
        return cls(**given)


NAMES = tuple(field.name for field in fields(Details))
NO_DETAILS = Details()
_OF_SCALING = tuple(field.name for field in fields(RopeScaling))
_COUNTS = ("n_group", "topk_group", "original_max_position_embeddings")
_WORDS = {"scoring_func": SCORES, "balance": BALANCES}
_SHARES = ("partial_rotary_factor",)


def _faults(name: str, value: Any) -> list[str]:
    if name == "rope_scaling":
        return [] if isinstance(value, RopeScaling) else _scaling_faults(value)
    if name in _WORDS:
        known = _WORDS[name]
        return [] if value in known else [f"{name}: {shown(value)} is not {' or '.join(known)}."]
    if name == "rope_type":  # those that a target does not know are told there
        return [] if isinstance(value, str) else [f"{name}: {shown(value)} is not a text."]
    if name == "norm_topk_prob":
        return [] if isinstance(value, bool) else [f"{name}: {shown(value)} is not true or false."]
    return _number_faults(name, value)


def _number_faults(name: str, value: Any) -> list[str]:
    kinds = (int,) if name in _COUNTS else (int, float)
    if isinstance(value, bool) or type(value) not in kinds:
        what = "a whole number" if name in _COUNTS else "a number"
        return [f"{name}: {shown(value)} is not {what}."]
    least = 1.0 if name in _COUNTS else 0.0
    most = 1.0 if name in _SHARES else 1e12
    return (
        []
        if least <= value <= most
        else [f"{name}: {shown(value)} is not from {least:g} to {most:g}."]
    )


def _scaling_faults(value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        return [f"rope_scaling: {shown(value)} is not a mapping."]
    unknown = [name for name in value if name not in _OF_SCALING]
    faults = [
        f"rope_scaling.{name}: unknown key.{did_you_mean(str(name), _OF_SCALING)}"
        for name in unknown
    ]
    if "rope_type" not in value:
        faults.append("rope_scaling.rope_type: missing.")
    for name, one in value.items():
        if name in _OF_SCALING and one is not None:
            faults += [f"rope_scaling.{line}" for line in _faults(name, one)]
    return faults
