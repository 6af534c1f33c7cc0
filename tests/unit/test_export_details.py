"""What is known of a model besides its graph is in its launch files; what is not, is written with a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from support.megatron_reader import parse

import foretrain
from foretrain.adapters.write import Exported, export
from foretrain.model import zoo
from foretrain.model.details import NO_DETAILS, RopeScaling
from foretrain.resolving import ask


def made(model: Any, target: str, plan: str = "zero1", **more: Any) -> Exported:
    asked = ask(
        model, on="1 x dgx-h100", plan=plan, batch=64, micro_batch=1, runtime=target, **more
    )
    return export(asked, target)


def megatron(model: Any, plan: str = "zero1") -> dict[str, Any]:
    return vars(parse(made(model, "megatron", plan).files))


def test_deepseeks_routing_and_positions() -> None:
    args = megatron("deepseek-v3", "pp2 ep4 zero1")
    wanted = {
        "moe_router_score_function": "sigmoid",
        "moe_router_num_groups": 8,
        "moe_router_group_topk": 4,
        "moe_router_topk_scaling_factor": 2.5,
        "moe_router_enable_expert_bias": True,
        "moe_router_bias_update_rate": 0.001,
        "moe_router_load_balancing_type": ["seq_aux_loss"],
        "moe_aux_loss_coeff": 0.0001,
        "moe_shared_expert_intermediate_size": 2048,
        "qk_layernorm": True,
        "rope_type": "yarn",
        "rotary_scaling_factor": 40.0,
        "mscale": 1.0,
        "norm_epsilon": 1e-6,
        "init_method_std": 0.006,
    }
    assert {name: args[name] for name in wanted} == wanted


def test_a_module_of_multi_token_prediction_has_its_weight() -> None:
    asked = ask(
        "deepseek-v3", on="1 x dgx-h100", plan="ep8 zero1", batch=64, micro_batch=1,
        runtime="megatron", runtime_options={"mtp": True},
    )  # fmt: skip
    args = vars(parse(export(asked, "megatron").files))
    assert (args["mtp_num_layers"], args["mtp_loss_scaling_factor"]) == (1, 0.3)


def test_weights_that_do_not_sum_to_one_are_chosen_after_the_softmax() -> None:
    args = megatron("deepseek-v2-lite", "ep8 zero1")
    assert (args["moe_router_score_function"], args["moe_router_pre_softmax"]) == ("softmax", True)
    assert args["moe_router_num_groups"] is None
    assert args["mscale"] == 0.707
    args = megatron("mixtral-8x7b", "ep8 zero1")
    assert not args["moe_router_pre_softmax"]
    assert (args["rotary_base"], args["moe_aux_loss_coeff"]) == (1_000_000, 0.02)


def test_llamas_positions() -> None:
    args = megatron("llama3-8b")
    assert (args["rotary_base"], args["use_rope_scaling"]) == (500_000, False)
    args = megatron("llama3.2-1b")
    assert (args["use_rope_scaling"], args["rope_scaling_factor"]) == (True, 32.0)
    assert megatron("nemotron4-15b")["rotary_percent"] == 0.5
    assert megatron("qwen3-8b")["qk_layernorm"]


def test_what_a_target_has_no_words_for_is_told() -> None:
    scaled = zoo.build("llama3-8b")
    for scaling, line in (
        (RopeScaling("yarn", 4.0), "rope scaling yarn, factor 4: not supported by Megatron-LM"),
        (
            RopeScaling("llama3", 8.0, low_freq_factor=2.0),
            "low_freq_factor is 2; Megatron-LM has 1",
        ),
    ):
        model = replace(scaled, details=replace(scaled.details, rope_scaling=scaling))
        assert any(line in one for one in made(model, "megatron").cannot)
    assert any(
        "rope scaling llama3, factor 8" in one for one in made("llama3.1-8b", "nanotron").cannot
    )
    told = made("deepseek-v2-lite", "nanotron").cannot
    assert any(one.startswith("rope scaling yarn") for one in told)


@pytest.mark.parametrize("target", ["megatron", "nanotron", "torchrun"])
def test_defaults_of_what_is_not_known_are_told(target: str) -> None:
    stack = "fsdp2" if target == "torchrun" else target
    plan = "zero3" if target == "torchrun" else "zero1"
    model = replace(zoo.build("llama3-8b"), details=NO_DETAILS)
    asked = ask(model, on="1 x dgx-h100", plan=plan, batch=64, micro_batch=1, runtime=stack)
    without = export(asked, target)
    lines = {
        "epsilon of norms 1e-05: not known of llama3-8b",
        "rotary base 10000: not known of llama3-8b",
    }
    assert lines <= set(without.assumptions)
    assert all(f"# Assumed: {line}\n" in without.files["launch.sh"] for line in lines)
    known = ask("llama3-8b", on="1 x dgx-h100", plan=plan, batch=64, micro_batch=1, runtime=stack)
    assert export(known, target).assumptions == ()


def test_the_command_lists_them_with_the_other_assumptions() -> None:
    model = replace(zoo.build("llama3-8b"), details=NO_DETAILS)
    told = foretrain.export(model, to="megatron", on="1 x dgx-h100", plan="zero1", batch=64)
    assert "rotary base 10000: not known of llama3-8b" in told.to_dict()["assumptions"]


def test_nanotron_and_the_script_have_base_and_epsilon() -> None:
    document = yaml.safe_load(made("qwen2.5-7b", "nanotron").files["nanotron.yaml"])
    config = document["model"]["model_config"]
    assert (config["rope_theta"], config["rms_norm_eps"]) == (1e6, 1e-6)
    asked = ask(
        "llama3-8b", on="1 x dgx-h100", plan="zero3", batch=64, micro_batch=1, runtime="fsdp2"
    )
    script = export(asked, "torchrun").files["launch.sh"]
    assert "--rope-base 500000.0" in script
    assert "--norm-eps 1e-05" in script
