"""What a case says twice and not alike is named, with what was taken; what agrees is not mentioned."""

from __future__ import annotations

from typing import Any

import pytest

import foretrain
from foretrain.cases import scenario_from_case
from foretrain.errors import InputError
from foretrain.scenario import Scenario

LLAMA = {
    "family": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 32000,
}  # fmt: skip


def found(
    options: dict[str, Any], plan: dict[str, Any] | None = None, runtime: str = "fsdp2", **more: Any
) -> Scenario:
    case = {
        "id": "x", "model": LLAMA, "seq_len": 1024,
        "cluster": {"device": "h100", "devices_per_node": 8, "nodes": 2},
        "plan": {"dp": 16, **(plan or {})}, "batch": {"global": 64, "micro": 1}, "precision": "bf16",
        "optimizer": "adam", "runtime": runtime, "runtime_options": options, **more,
    }  # fmt: skip
    return scenario_from_case(case)


@pytest.mark.parametrize(
    ("options", "plan", "text", "told"),
    [
        ({"sharding_strategy": "SHARD_GRAD_OP"}, {"zero": 3}, "zero2", "sharding_strategy"),
        ({"sharding_strategy": "FULL_SHARD"}, {"zero": 1}, "zero1", "the plan is the first word"),
        ({"sharding_strategy": "NO_SHARD"}, {"zero": 2}, "zero2", "the plan is the first word"),
        ({"fsdp": True}, {"zero": 1}, "zero1", "runtime_options.fsdp = True contradicts plan.zero"),
        ({"reshard_after_forward": "never"}, {"zero": 3}, "zero2", "weights that stay gathered"),
        ({"reshard_after_forward": "always"}, {"zero": 2}, "zero2", "reshard_after_forward"),
        ({"sharding_strategy": "FULL_SHARD", "hsdp": True}, {}, "shard=8", "groups of 8 are used"),
        ({"dp_shard": 4, "dp_replicate": 2}, {"zero": 3}, "shard=4", "contradicts the 16 replicas"),
        ({"dp_replicate": 3}, {"zero": 3}, "zero3", "does not divide the 16 replicas"),
        ({"shard_size": 32}, {"zero": 3}, "zero3", "exceeds the 16 replicas"),
        ({"shard_size": 8}, {"zero": 0}, "zero0", "ZeRO 0 shards nothing"),
        ({"fsdp_shard_size": 8, "dp_shard": 4}, {"zero": 3}, "shard=8", "the former is used"),
    ],
)  # fmt: skip
def test_how_far_states_are_split(
    options: dict[str, Any], plan: dict[str, Any], text: str, told: str
) -> None:
    scenario = found(options, plan)
    assert text in scenario.plan.text
    assert [line for line in scenario.warnings if told in line], scenario.warnings


def test_what_software_makes_of_full_sharding_is_told() -> None:
    scenario = found({}, {"dp": 8, "pp": 2, "zero": 3, "recompute": "none"}, "torchtitan")
    assert "zero1" in scenario.plan.text
    assert [line for line in scenario.warnings if "plan.zero = 3 is predicted as ZeRO 1" in line]


@pytest.mark.parametrize(
    ("options", "plan", "word"),
    [
        ({"activation_checkpointing": True}, {"recompute": "none"}, "none"),
        ({"recompute_granularity": "full"}, {"recompute": "selective"}, "selective"),
        ({"recompute_modules": ["core_attn"]}, {"recompute": "full"}, "full"),
        ({"selective_checkpointing": 0.5}, {"recompute": "full"}, "full"),
        ({"recompute_num_layers": 4}, {"recompute": "selective"}, "selective"),
        ({"recompute_modules": ["core_attn"], "activation_checkpointing": False}, {}, "attention"),
        ({"recompute_modules": ["mlp"], "selective_checkpointing": 0.5}, {}, "fc1,act,fc2"),
    ],
)
def test_what_runs_again(options: dict[str, Any], plan: dict[str, Any], word: str) -> None:
    scenario = found(options, plan)
    assert scenario.plan.root.recompute == word
    assert [line for line in scenario.warnings if f"recompute={word} is used" in line]


@pytest.mark.parametrize(
    ("batch", "passes", "micro", "told"),
    [
        ({"global": 64, "micro": 1}, 2, 1, "contradicts batch.global = 64 and batch.micro = 1"),
        ({"global": 64}, 3, None, "does not divide batch.global = 64 over 16 replicas"),
    ],
)
def test_counted_micro_batches(
    batch: dict[str, int], passes: int, micro: int | None, told: str
) -> None:
    scenario = found({"grad_accum": passes}, batch=batch)
    assert micro in (None, scenario.plan.schedule.micro_batch)
    assert [line for line in scenario.warnings if told in line]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"fp8_recipe": "MXFP8"}, "fp8_recipe = 'MXFP8' contradicts precision = bf16"),
        ({"precision_mode": "amp_fp8"}, "precision_mode"),
        ({"fp8": True}, "fp8 = True contradicts precision = bf16"),
        ({"precision": "fp16"}, "precision = 'fp16' contradicts precision = bf16"),
    ],
)
def test_number_formats(options: dict[str, Any], told: str) -> None:
    scenario = found(options)
    assert scenario.workload.precision.name == "bf16"
    assert [line for line in scenario.warnings if told in line]
    assert not [line for line in scenario.warnings if "unknown; ignored" in line]


def test_a_format_among_the_options_counts_where_no_other_is_stated() -> None:
    assert found({"precision": "fp16"}, precision=None).workload.precision.name == "fp16"


@pytest.mark.parametrize(
    ("options", "more", "told"),
    [
        ({"attn_impl": "torch", "attention": "flash"}, {}, "attention = 'flash' is used"),
        ({"cuda_graphs": False, "cuda_graph_impl": "local"}, {}, "cuda_graph_impl = 'local' is used"),
        ({"compile": False}, {"compile": True}, "compile = False contradict each other"),
        ({"schedule_name": "gpipe"}, {}, "schedule_name = gpipe contradicts plan.schedule = 1f1b"),
    ],
)  # fmt: skip
def test_switches_of_the_software(options: dict[str, Any], more: dict[str, Any], told: str) -> None:
    plan = {"dp": 8, "pp": 2, "schedule": "1f1b"} if "schedule_name" in options else {}
    scenario = found(options, plan, **more)
    assert [line for line in scenario.warnings if told in line], scenario.warnings


@pytest.mark.parametrize(
    ("options", "plan"),
    [
        ({"sharding_strategy": "FULL_SHARD", "fsdp": True}, {"zero": 3}),
        ({"dp_shard": 4, "dp_replicate": 4, "hsdp": True}, {"zero": 3}),
        ({"dp_shard": -1, "dp_replicate": 4}, {"zero": 3}),
        ({"activation_checkpointing": True}, {"recompute": "full"}),
        ({"activation_checkpoint_mode": "selective", "selective_ac_option": "2"}, {}),
        ({"recompute_granularity": "selective", "recompute_modules": ["core_attn"]}, {}),
        ({"recompute_num_layers": 4}, {"recompute": "full"}),
        ({"grad_accum": 4, "num_microbatches": 4}, {}),
        ({"attn_impl": "flash", "attention": "flash"}, {}),
        ({"cuda_graphs": True, "cuda_graph_impl": "local"}, {}),
    ],
)
def test_what_agrees_is_not_mentioned(options: dict[str, Any], plan: dict[str, Any]) -> None:
    assert not found(options, plan).warnings


@pytest.mark.parametrize(
    "options",
    [
        {"attn_impl": "torch", "attention": "flash"},
        {"cuda_graphs": False, "cuda_graph_impl": "local"},
        {"cuda_graphs": True, "uses_cuda_graphs": False},
        {"overlaps_gradients": True, "overlap_grad_reduce": False},
        {"moe_a2a_overlap": False, "expert_overlap": 1.0},
    ],
)
def test_a_question_must_not_contradict_itself(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"contradict each other\. Specify only one of them"):
        foretrain.predict(
            "gpt2", on="1 x dgx-h100", batch=8, plan="dp8", runtime="fsdp2", runtime_options=options
        )


def test_a_field_that_is_named_is_the_last_word_in_any_order() -> None:
    options = {"host_seconds_per_kernel": 1e-4, "compile": True}
    turned = dict(reversed(options.items()))
    assert found(options).runtime == found(turned).runtime
    assert found(options).runtime.host.host_seconds_per_kernel == 1e-4


@pytest.mark.parametrize(
    "options",
    [
        {"grad_accum": "bogus"},
        {"num_microbatches": -3},
        {"fsdp_shard_size": "all"},
        {"hsdp_replicas": 1.5},
        {"recompute_num_layers": "some"},
    ],
)
def test_counts_that_are_none_are_named(options: dict[str, Any]) -> None:
    (key,) = options
    told = [line for line in found(options).warnings if f"runtime_options.{key}" in line]
    assert told
    assert "unknown; ignored" in told[0]


def test_words_of_experts_in_a_shape_without_them_are_named() -> None:
    shape = {"family": "moe", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
    model = {**shape, "vocab_size": 1000, "num_experts_per_tok": 2}
    told = found({}, {"dp": 16}, model=model).assumptions
    assert any("num_experts: not specified, so" in line for line in told)
    assert any("num_experts_per_tok = 2 has no effect" in line for line in told)
