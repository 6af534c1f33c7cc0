"""Cases of software of which no measurement is at hand: every switch is honoured, or said not to be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretrain.cases import scenario_from_case
from foretrain.cases.switches import recompute_from
from foretrain.model.precision import precision
from foretrain.plan.strategy import of_repetition
from foretrain.scenario import Scenario
from foretrain.simulate import answer

LLAMA = {
    "family": "llama", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 32000,
}  # fmt: skip
LATENT = {
    **LLAMA, "family": "moe", "num_key_value_heads": 16, "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 1024, "num_shared_experts": 1, "first_dense_layers": 2,
    "q_lora_rank": 512, "kv_lora_rank": 256, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}  # fmt: skip


def asked(
    runtime: str, options: dict[str, Any] | None = None, *, plan: dict[str, Any] | None = None,
    model: dict[str, Any] = LLAMA, nodes: int = 2, device: str = "h100", **more: Any,
) -> Scenario:  # fmt: skip
    case = {
        "id": "x", "model": model, "seq_len": 2048,
        "cluster": {"device": device, "devices_per_node": 8, "nodes": nodes},
        "devices": 8 * nodes, "plan": plan or {}, "batch": {"global": 16 * nodes, "micro": 1},
        "precision": "bf16", "optimizer": "adam", "runtime": runtime,
        "runtime_options": options or {}, **more,
    }  # fmt: skip
    return scenario_from_case(case)


def seconds(*args: Any, **more: Any) -> float:
    return answer(asked(*args, **more)).step_seconds


def test_a_switch_nobody_knows_is_told() -> None:
    warnings = asked("torchtitan", {"flux_capacity": 3, "container": "25.09", "attn_implx": None})
    assert [w for w in warnings.warnings if "flux_capacity" in w and "unknown; ignored" in w]
    assert warnings.unknown_switches == 1
    assert len(warnings.warnings) == 1  # labels and nulls say nothing


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ({"attn_impl": "torch"}, "attention", "unfused"),
        ({"attn_impl": "triton", "attention": None}, "attention", "triton"),
        ({"torch_compile": "yes"}, "fuses_elementwise", True),
        ({"moe_flex_dispatcher_backend": "hybridep"}, "sends_tokens_once", True),
        ({"moe_token_dispatcher_type": "alltoall"}, "sends_tokens_once", False),
        ({"mixed_precision": "DEFAULT"}, "gradient_bytes", 4.0),
        ({"cuda_graph_impl": "full_iteration"}, "uses_cuda_graphs", True),
    ],
)
def test_switches_under_their_own_softwares_names(
    options: dict[str, Any], field: str, value: object
) -> None:
    question = asked("composer", options)
    assert question.runtime.option(field) == value
    assert not [
        one for one in question.warnings if "has no effect" not in one
    ]  # a model without experts


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "dp16 zero3"),
        ({"sharding_strategy": "SHARD_GRAD_OP"}, "dp16 zero2"),
        ({"sharding_strategy": "HYBRID_SHARD"}, "dp16 zero3 shard=8"),
        ({"hsdp": True}, "dp16 zero3 shard=8"),
        ({"dp_replicate": 4, "dp_shard": -1}, "dp16 zero3 shard=4"),
        ({"fsdp_shard_size": 16}, "dp16 zero3"),
        ({"reshard_after_forward": "never"}, "dp16 zero2"),
    ],
)
def test_how_far_weights_are_split(options: dict[str, Any], text: str) -> None:
    assert asked("fsdp2", options, plan={"zero": 3}).plan.text == text


def test_pipelines_of_torchtitan_gather_once_in_a_step() -> None:
    plan = {"pp": 2, "zero": 3, "recompute": "none"}
    assert asked("torchtitan", plan=plan).plan.text == "pp2 dp8 zero1 recompute=none"
    kept = {"reshard_after_forward": "always"}
    assert asked("torchtitan", kept, plan=plan).plan.text == "pp2 dp8 zero3 recompute=none"
    assert seconds("torchtitan", plan=plan) < seconds("torchtitan", kept, plan=plan)


def test_a_switch_fills_in_the_stage_of_sharding_that_the_plan_leaves_open() -> None:
    assert "zero3" in asked("megatron-bridge", {"use_megatron_fsdp": True}).plan.text
    assert "zero1" in asked("megatron-bridge", {"fsdp": True}, plan={"zero": 1}).plan.text


@pytest.mark.parametrize(
    ("options", "stated", "word"),
    [
        ({"activation_checkpointing": True}, None, "full"),
        ({"activation_checkpointing": True}, "none", None),  # the plan stands
        ({"selective_ac_option": "2"}, "selective", "full*0.5"),
        ({"selective_ac_option": "op"}, None, "selective"),
        ({"selective_checkpointing": 0.25}, "selective", "full*0.25"),
        ({"recompute_num_layers": 4}, "full", "full*0.5"),
        ({"recompute_modules": ["core_attn", "mlp"]}, "selective", "attention,fc1,act,fc2"),
    ],
)
def test_what_runs_again(options: dict[str, Any], stated: str | None, word: str | None) -> None:
    question = asked("fsdp", options, plan={"recompute": stated})
    assert question.plan.root.recompute == (word or "none")


def test_what_a_runtime_runs_again_where_nothing_is_said() -> None:
    assert asked("composer").plan.root.recompute == "full"
    assert asked("torchtitan").plan.root.recompute == "selective"
    assert asked("fms-fsdp").plan.root.recompute == "none"


def test_layers_that_run_again_may_be_given_stage_by_stage() -> None:
    options = {"layers_per_stage": [7, 8, 9, 8], "recompute_layers_per_stage": [2, 1, 0, 0]}
    word = recompute_from(options, None, (), 8)
    assert word == "full@0,1,7"
    chosen = [of_repetition(word, index) for index in range(32)]
    assert [index for index, each in enumerate(chosen) if each == "full"] == [0, 1, 7]
    assert recompute_from({**options, "recompute_layers_per_stage": [0] * 4}, None, (), 8) == "none"


def test_a_share_of_the_layers_runs_again() -> None:
    chosen = [of_repetition("full*0.25", index) for index in range(8)]
    assert [index for index, word in enumerate(chosen) if word == "full"] == [3, 7]
    plans = [{"recompute": word} for word in ("none", "selective", "full")]
    times = [seconds("fms-fsdp", plan=plan) for plan in plans]
    assert times[0] < times[1] < times[2]
    assert times[1] == pytest.approx((times[0] + times[2]) / 2, rel=0.02)


def test_modules_of_latent_attention() -> None:
    own = asked("megatron-bridge", model=LATENT, plan={"ep": 8}).plan.root.recompute
    assert own == "q_up,kv_up,rope"
    stated = asked("nemo", {"recompute_modules": "moe_act, mla_up_proj, warp"}, model=LATENT)
    assert stated.plan.root.recompute == "experts_act,q_up,kv_up,rope"
    assert any("warp" in warning for warning in stated.warnings)


def test_older_attention_takes_longer() -> None:
    times = [seconds("composer", {"attention": a}) for a in ("flash", "triton", "flash1", "torch")]
    assert times == sorted(times)
    assert len({*times}) == 4


def test_copies_of_gathered_blocks_take_their_time() -> None:
    """14 bytes a parameter and micro-batch: out of two gathers (2 + 2 each), into an fp32 reduction (2 + 4)."""
    with_copies = asked("fsdp2", nodes=1)
    bare = with_copies.runtime.with_features({"gather_copies": None})
    more = (
        answer(with_copies).step_seconds - answer(replace(with_copies, runtime=bare)).step_seconds
    )
    parameters = with_copies.workload.model.parameters
    least = 2 * 14 * parameters / 3.35e12  # two micro-batches at the rate of the data sheet
    assert least < more < 3 * least


def test_micro_batches_left_open() -> None:
    batch = {"batch": {"global": 64, "micro": None}}
    assert asked("torchtitan", **batch).plan.schedule.micro_batch == 4
    assert asked("torchtitan", {"grad_accum": 2}, **batch).plan.schedule.micro_batch == 2
    assert asked("megatron-bridge", **batch).plan.schedule.micro_batch == 4
    piped = asked(
        "megatron-bridge", plan={"pp": 2}, **batch
    )  # 8 micro-batches a stage are too many to ask for
    assert piped.plan.schedule.micro_batch == 1


@pytest.mark.parametrize(
    ("word", "name"),
    [("amp_bf16", "bf16"), ("FP8-CS", "fp8"), ("fp8_mx", "mxfp8"), ("fp4", "nvfp4")],
)
def test_precisions_under_other_names(word: str, name: str) -> None:
    assert precision(word).name == name


def test_words_that_have_a_stand_in() -> None:
    plan = {"pp": 2, "schedule": "LoopedBFS"}
    question = asked("torchtitan", plan=plan, optimizer="decoupled_adamw")
    assert question.plan.schedule.kind == "1f1b"
    assert question.workload.optimizer.name == "adamw"
    assert sum("falling back to" in warning for warning in question.warnings) == 2
    zero_bubble = asked("torchtitan", plan={"pp": 2, "schedule": "zero-bubble"})
    assert zero_bubble.plan.schedule.kind == "zb-h1"


@pytest.mark.parametrize(
    ("word", "name"), [("ZBV", "zb-v"), ("ZBVZeroBubble", "zb-v"), ("DualPipeV", "dualpipev")]
)
def test_schedules_as_stacks_call_them(word: str, name: str) -> None:
    question = asked("torchtitan", plan={"pp": 2, "schedule": word})
    assert question.plan.schedule.kind == name
    assert not any("falling back" in warning for warning in question.warnings)


def test_narrower_formats_and_newer_devices_are_faster() -> None:
    plan = {"zero": 1}
    model = {**LLAMA, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336}
    rows = [
        seconds("megatron-bridge", device=device, precision=form, model=model, plan=plan, nodes=1)
        for device in ("b200-sxm", "gb300-nvl72")
        for form in ("bf16", "mxfp8", "nvfp4")
    ]
    assert rows[0] > rows[1] > rows[2]
    assert rows[3] > rows[4] > rows[5]
    assert all(new < old for old, new in zip(rows[:3], rows[3:], strict=True))


def test_a_device_under_a_longer_name_is_taken_for_its_kin() -> None:
    question = asked("torchtitan", device="h100-96gb-hbm2e")
    assert question.cluster.devices[0].name == "h100-sxm5-96gb"
    assert any("falling back to" in line for line in question.assumptions)


def test_values_nobody_knows_are_told() -> None:
    options = {"sharding_strategy": "SIDEWAYS", "activation_checkpoint_mode": "now and then"}
    assert len(asked("composer", options).warnings) == 2


def test_a_batch_left_open_is_accumulated_in_pipelines_alone() -> None:
    open_batch = {"batch": {"global": None, "micro": 2}}
    assert asked("torchtitan", **open_batch).workload.global_batch == 32
    assert asked("megatron", **open_batch).workload.global_batch == 32
    piped = asked("megatron", plan={"pp": 2}, **open_batch)
    assert piped.workload.global_batch == 2 * 8 * 8
