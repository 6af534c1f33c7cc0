"""What is known of a model besides its graph, as arguments of Megatron-LM."""

from __future__ import annotations

from typing import Any

from foretrain.adapters.write.job import Account
from foretrain.adapters.write.megatron_model import Arguments
from foretrain.model.details import Details, RopeScaling
from foretrain.model.shape import TransformerShape

_TITLE = "Megatron-LM"

# What has no argument: the function that stretches positions as Llama 3.1 does (models/common/embeddings/
# rotary_pos_embedding.py, RotaryEmbedding._apply_scaling), and fields of MLATransformerConfig
# (transformer/transformer_config.py).
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_YARN = {"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}


def detail_arguments(
    shape: TransformerShape, details: Details, account: Account, arguments: Arguments
) -> None:
    arguments.add("norm-epsilon", account.either(details.norm_eps, 1e-5, "epsilon of norms"))
    std = account.either(details.initializer_range, 0.02, "standard deviation of first weights")
    arguments.add("init-method-std", std)
    if shape.position == "rope":
        _positions(shape, details, account, arguments)
    if shape.num_experts:
        _routing(shape, details, account, arguments)
    if shape.num_nextn_predict_layers:
        weight = account.either(details.mtp_loss_weight, 0.1, "weight of multi-token prediction")
        arguments.add("mtp-loss-scaling-factor", weight)


def _positions(
    shape: TransformerShape, details: Details, account: Account, arguments: Arguments
) -> None:
    base = account.either(details.rope_theta, 10_000.0, "rotary base")
    arguments.add("rotary-base", round(base))
    if base != round(base):
        account.note(
            f"rotary base {base:g}: Megatron-LM takes whole numbers; {round(base)} is used"
        )
    if details.partial_rotary_factor is not None and details.partial_rotary_factor != 1:
        arguments.add("rotary-percent", details.partial_rotary_factor)
    scaling = details.rope_scaling
    if shape.is_latent:
        _latent(scaling, account, arguments)
    elif scaling is not None and scaling.rope_type == "llama3":
        arguments.add("use-rope-scaling")
        arguments.add("rope-scaling-factor", scaling.factor)
        _fixed(scaling, _LLAMA3, account)
    elif scaling is not None and scaling.rope_type == "linear" and scaling.factor % 1 == 0:
        arguments.add("rotary-seq-len-interpolation-factor", round(scaling.factor))
    elif scaling is not None:
        account.note(f"{scaling.title}: not supported by Megatron-LM for this attention; left out")


def _latent(scaling: RopeScaling | None, account: Account, arguments: Arguments) -> None:
    """Latent attention stretches positions by YaRN unless it is told not to."""
    if scaling is None or scaling.rope_type != "yarn":
        arguments.add("rope-type", "rope")
        if scaling is not None:
            account.note(f"{scaling.title}: Megatron-LM's latent attention has YaRN; left out")
        return
    arguments.add("rope-type", "yarn")
    arguments.add("rotary-scaling-factor", scaling.factor)
    arguments.add("mscale", 1.0 if scaling.mscale is None else scaling.mscale)
    arguments.add("mscale-all-dim", scaling.mscale_all_dim or 0.0)
    _fixed(scaling, _YARN, account)


def _fixed(scaling: RopeScaling, values: dict[str, Any], account: Account) -> None:
    for name, value in values.items():
        own = getattr(scaling, name)
        if own is not None and own != value:
            account.note(f"{scaling.title}: {name} is {own:g}; Megatron-LM has {value:g}")


def _routing(
    shape: TransformerShape, details: Details, account: Account, arguments: Arguments
) -> None:
    chosen = shape.num_experts_per_tok or 1
    score = account.either(details.scoring_func, "softmax", "router's score function")
    arguments.add("moe-router-score-function", score)
    is_normed = account.either(
        details.norm_topk_prob, True, "weights of the chosen experts sum to one:"
    )
    is_before = score == "softmax" and (not is_normed or chosen == 1)
    if is_before:
        arguments.add("moe-router-pre-softmax")
    if score == "sigmoid" and not is_normed and chosen > 1:
        account.note(
            "weights of experts that do not sum to one: Megatron-LM normalises sigmoid scores"
        )
    if details.n_group is not None and details.n_group > 1:
        arguments.add("moe-router-num-groups", details.n_group)
        arguments.add("moe-router-group-topk", details.topk_group or 1)
    _scaled(details, account, arguments, is_read=is_before or score == "sigmoid")
    if details.bias_update_rate is not None and score == "sigmoid":
        arguments.add("moe-router-enable-expert-bias")
        arguments.add("moe-router-bias-update-rate", details.bias_update_rate)
    elif details.bias_update_rate is not None:
        account.note("balance by a bias of experts: Megatron-LM has it for sigmoid scores only")
    balance = account.either(details.balance, "none", "loss that balances experts:")
    arguments.add("moe-router-load-balancing-type", balance)
    if balance != "none":
        coefficient = account.either(
            details.router_aux_loss_coef, 0.01, "weight of the loss that balances experts"
        )
        arguments.add("moe-aux-loss-coeff", coefficient)


def _scaled(details: Details, account: Account, arguments: Arguments, *, is_read: bool) -> None:
    factor = details.routed_scaling_factor
    if factor is None or factor == 1:
        return
    if is_read:
        arguments.add("moe-router-topk-scaling-factor", factor)
    else:
        account.note(
            f"weights of experts times {factor:g}: Megatron-LM scales softmax weights only where "
            "they do not sum to one; left out"
        )
