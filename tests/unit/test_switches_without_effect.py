"""A switch is understood, refused, or said to have no effect; it never passes in silence."""

from __future__ import annotations

from typing import Any

import pytest

from foretrain.cases import scenario_from_case
from foretrain.errors import InputError
from foretrain.resolving.resolve import ask
from foretrain.scenario import Scenario

ON = "1 x dgx-h100"


def asked(options: dict[str, Any], model: str = "llama3-8b", **words: Any) -> Scenario:
    given = {"on": ON, "plan": "dp8", "batch": 64, "micro_batch": 1, **words}
    return ask(model, **given, runtime_options=options)


def case(options: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "model": {"zoo": "llama3-8b"},
        "seq_len": 4096,
        "cluster": {"device": "h100-sxm", "devices_per_node": 8, "nodes": 1},
        "batch": {"global": 64, "micro": 1},
        "precision": "bf16",
        "runtime": "megatron",
        "runtime_options": options,
        **changes,
    }


# --- float8 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("off", "bf16"),
        ("false", "bf16"),
        (False, "bf16"),
        ("none", "bf16"),
        (True, "fp8"),
        ("on", "fp8"),
        ("rowwise", "fp8"),
        ("tensorwise", "fp8"),
        ("mxfp8", "mxfp8"),
    ],
)
def test_float8_is_a_switch_or_a_recipe(stated: Any, name: str) -> None:
    assert asked({"float8": stated}, precision="bf16").workload.precision.name == name


def test_float8_nonsense_is_refused_and_in_a_case_ignored() -> None:
    with pytest.raises(InputError, match=r"float8 = 'nonsense'.*rowwise"):
        asked({"float8": "nonsense"})
    found = scenario_from_case(case({"float8": "nonsense"}))
    assert found.workload.precision.name == "bf16"
    assert any("float8 = nonsense: unknown; ignored" in line for line in found.warnings)


@pytest.mark.parametrize(
    ("stated", "precision"), [(True, "fp32"), (True, "fp16"), ("off", "fp8"), (False, "mxfp8")]
)
def test_float8_overruled_by_the_precision_is_told(stated: Any, precision: str) -> None:
    found = asked({"float8": stated}, precision=precision)
    assert found.workload.precision.name == precision
    told = f"float8 = {stated} has no effect with precision {precision}"
    assert any(told in line for line in found.warnings)


# --- values that a case states and nobody knows -----------------------------------------------------------


def test_an_unknown_value_of_a_case_changes_nothing() -> None:
    """Megatron prefers cuDNN's attention on Hopper, which a word nobody knows must not turn off."""
    usual, bogus = (scenario_from_case(case(o)) for o in ({}, {"attention": "bogus"}))
    assert any("attention = bogus: unknown; ignored" in line for line in bogus.warnings)
    assert bogus.runtime == usual.runtime
    assert bogus.runtime.kernels.attention == "cudnn"


# --- words that would change nothing ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"precision": "fp32"}, "--precision"),
        ({"steps": 100}, "--steps"),
        ({"stages": 3}, "pp in the plan"),
        ({"schedule_name": "gpipe"}, "--plan"),
        ({"recompute_granularity": "full"}, "recompute=full"),
        ({"placement": [4, 4]}, "--on"),
        ({"topology": "x"}, "--on"),
        ({"task": "foo"}, "MLM+NSP pretraining"),
        ({"peft": "lora", "lora_alpha": "abc"}, "lora_alpha = 'abc'"),
        ({"peft": "lora", "training": "full"}, "contradict"),
        ({"peft": False, "training": "lora"}, "contradict"),
    ],
)
def test_words_of_another_option_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(options)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"moe_capacity_factor": 1.5}, "llama3-8b has no experts"),
        ({"max_predictions": 20}, "masked tokens"),
        ({"nccl_ub": True}, "not modeled"),
        ({"limit_all_gathers": True}, "not modeled"),
    ],
)
def test_switches_without_effect_are_told(options: dict[str, Any], told: str) -> None:
    (key,) = options
    assert any(key in line and told in line for line in asked(options).warnings)


def test_a_case_may_have_words_of_other_options() -> None:
    words = {"steps": 100, "stages": "a, b", "schedule_name": "1f1b", "training": "full"}
    assert scenario_from_case(case(words)).warnings == ()
    both = scenario_from_case(case({"peft": "lora", "training": "full"}))
    assert any("contradict" in line and "lora is used" in line for line in both.warnings)


def test_a_list_of_projections_is_told_once() -> None:
    with pytest.raises(InputError) as caught:
        asked({"peft": "lora", "lora_targets": "x"})
    assert str(caught.value).count("Known:") == 1


# --- words of a plan ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        ("dp8 gpipe", "gpipe in the plan has no effect: pp is 1"),
        ("pp2 dp4 interleaved", "vpp is 1"),
        ("dp8 cp=ring", "cp=ring in the plan has no effect"),
        ("dp8 sp", "sp in the plan has no effect: tp is 1"),
        ("tp2 dp4 etp1", "etp1 in the plan has no effect: llama3-8b has no experts"),
        ("dp8 tables=rows", "no embedding tables"),
    ],
)
def test_words_of_a_plan_without_effect_are_told(plan: str, told: str) -> None:
    assert any(told in line for line in asked({}, plan=plan).warnings)


def test_words_of_a_plan_with_effect_are_not_mentioned() -> None:
    found = asked({}, plan="tp2 pp2 dp2 sp gpipe recompute=full@0,31")
    assert not any("no effect" in line for line in found.warnings)


def test_layers_that_a_model_does_not_have_cannot_run_again() -> None:
    with pytest.raises(InputError, match=r"llama3-8b has 32 layers.*no layer 99"):
        asked({}, plan="dp8 recompute=full@0,99")


def test_tables_of_a_recommender_are_split() -> None:
    found = asked({}, model="dlrm-small", plan="dp8 tables=rows", batch=8192, micro_batch=1024)
    assert not any("no effect" in line for line in found.warnings)


# --- keys of a case ---------------------------------------------------------------------------------------------


def test_an_unknown_key_of_a_case_is_told_with_a_suggestion() -> None:
    found = scenario_from_case(case({}, optimiser="adam"))
    assert "optimiser: unknown key; ignored. Did you mean 'optimizer'?" in found.warnings
    assert not any("runtime_options.optimiser" in line for line in found.warnings)
    assert found.unknown_switches == 1


def test_a_switch_beside_the_keys_of_a_case_still_counts() -> None:
    assert scenario_from_case(case({}, attention="unfused")).runtime.kernels.attention == "unfused"
    assert scenario_from_case(case({}, attn_impl="unfused")).runtime.kernels.attention == "unfused"


def test_labels_and_idle_schedules_are_told() -> None:
    found = asked({"release": "25.02"}, plan="tp2 pp2 vpp2 1f1b")
    assert "release = '25.02' has no effect: it only says where a run comes from." in found.warnings
    assert "1f1b in the plan has no effect: vpp is 2, so interleaved is used." in found.warnings
    assert not scenario_from_case(case({"release": "25.02"})).warnings


# --- the stack and its options as they were named -----------------------------------------------------------------


def test_a_word_of_published_runs_does_not_replace_the_stack_of_a_question() -> None:
    with pytest.raises(InputError, match=r"framework = 'x'.*--runtime ddp-2020"):
        asked({"framework": "x"}, model="gpt2", runtime="ddp")
    run = case({"framework": "x"}, model={"zoo": "gpt2"}, seq_len=1024, runtime="ddp")
    assert scenario_from_case(run).runtime.name == "ddp-2020"


def test_a_switch_that_dates_a_stack_is_told() -> None:
    found = asked({"attention": "unfused"}, model="gpt2", runtime="deepspeed")
    assert found.runtime.name == "deepspeed-2021"
    told = "runtime deepspeed-2021: deepspeed with attention='unfused' (--set attention=…)"
    assert told in found.assumptions


@pytest.mark.parametrize(("options", "kept"), [({}, False), ({"keeps_transposed": True}, True)])
def test_an_option_is_the_last_word_on_any_device(options: dict[str, Any], kept: bool) -> None:
    found = asked(options, model="gpt2", on="1 x dgx-b200", precision="fp8", runtime="nemo")
    assert found.runtime.memory.keeps_transposed is kept


def test_all_faults_of_the_options_are_told_at_once() -> None:
    wrong = {
        "bogus": 1,
        "kernel_slowdown": 0,
        "attention": "zz",
        "bucket_cap_mb": -3,
        "precision": "fp8",
        "rl": True,
    }
    with pytest.raises(InputError) as caught:
        asked(wrong)
    told = [fault.replace(":", " ").split()[0] for fault in caught.value.faults]
    assert sorted(told) == sorted(wrong)
