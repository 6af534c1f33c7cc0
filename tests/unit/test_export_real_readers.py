"""Every export goes to the reader of the software it is for: DeepSpeed's and Accelerate's own, the training script's, and
what is recorded of Megatron-LM's and nanotron's. What they parse is the plan and the model."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
from exported_plans import PAIRS, outcomes
from support.launch_readers import accelerated, deepspeed_config, judged
from support.megatron_reader import parse, refusals

from foretrain.adapters.read.launch import read
from foretrain.adapters.read.launch.rerun import as_run
from foretrain.adapters.write import Exported, export
from foretrain.resolving import ask
from foretrain.scenario import Scenario

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("deepspeed", "accelerate"))),
    reason="DeepSpeed and Accelerate read their own files here; the test extra has both",
)

MACHINES = {"small": "1 x dgx-a100-80gb", "two": "2 x dgx-h100", "eight": "8 x dgx-h100"}

# target: model, machines, plan, what else is asked. Every plan is one that the files say as a whole.
COMBINATIONS: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {
    "megatron": [
        ("gpt3-175b", "eight", "tp8 pp8 vpp2 sp zero1 recompute=selective", {"batch": 256}),
        ("llama3-8b", "two", "tp2 pp2 sp zero1 recompute=full", {"precision": "fp8"}),
        ("llama3.1-8b", "two", "tp2 cp4 cp=ring sp zero1", {}),
        ("llama3.1-405b", "eight", "tp8 pp8 sp zero1 recompute=full", {"runtime": "nemo"}),
        ("mixtral-8x7b", "eight", "tp2 ep8 etp1 sp zero1", {"runtime": "megatron-bridge"}),
        ("mixtral-8x22b", "eight", "pp4 ep8 zero1", {"optimizer": "adamw"}),
        ("qwen3-30b-a3b", "two", "ep8 zero1 recompute=experts_act,attention", {}),
        ("qwen3-8b", "small", "tp2 sp zero1 offload=optimizer", {"precision": "bf16"}),
        ("deepseek-v3", "eight", "pp8 ep8 zero1 recompute=full", {}),
        ("deepseek-v2-lite", "two", "pp2 ep8 zero1 recompute=q_up,kv_up,rope", {}),
        ("nemotron4-15b", "two", "tp4 pp2 sp zero1 order=tp-pp-dp", {"precision": "mxfp8"}),
        ("qwen2.5-7b", "two", "pp2 dp8 layers=13,15 zero1", {"precision": "nvfp4"}),
        ("gpt2-xl", "small", "buckets=64MB", {"optimizer": "sgd", "precision": "fp16"}),
        ("llama2-7b", "two", "zero3 shard=8", {}),
    ],
    "deepspeed": [
        ("llama3-8b", "two", "zero0", {}),
        ("llama3-8b", "two", "tp2 zero1", {}),
        ("llama3-8b", "two", "tp2 zero3", {}),
        ("llama3-8b", "two", "zero1 micro=2", {"precision": "fp16"}),
        ("llama3-70b", "eight", "zero3 recompute=full", {}),
        ("gpt2-xl", "small", "zero2 buckets=64MB", {}),
        ("gpt3-13b", "eight", "tp8 pp4 zero1", {}),
        ("bloom-176b", "eight", "tp4 pp2 zero1 recompute=full", {}),
        ("mixtral-8x7b", "eight", "ep8 zero1", {}),
        ("bert-large", "small", "zero2", {"optimizer": "lamb", "precision": "fp16"}),
        ("resnet50", "two", "zero0", {"optimizer": "sgd", "precision": "fp16", "batch": 1024}),
        ("dlrm-mlperf", "small", "zero0", {"optimizer": "adagrad", "precision": "fp32", "batch": 65536}),
        ("qwen2.5-7b", "two", "zero3 offload=optimizer", {}),
    ],
    "torchrun": [
        ("llama3-8b", "two", "zero3 recompute=full", {"runtime": "fsdp2"}),
        ("llama3-8b", "two", "zero3 shard=8 recompute=full*0.5 micro=2", {"runtime": "fsdp2"}),
        ("llama2-13b", "eight", "zero2", {"runtime": "fsdp2", "batch": 128}),
        ("qwen2.5-3b", "small", "zero3 recompute=selective", {"runtime": "fsdp2"}),
        ("qwen3-4b", "two", "zero3", {"runtime": "fsdp"}),
        ("gpt2", "small", "zero0", {"runtime": "ddp", "optimizer": "sgd", "precision": "fp16"}),
        ("gpt2-xl", "two", "zero0 buckets=64MB", {"runtime": "ddp"}),
        ("llama3.2-1b", "two", "zero0 recompute=full", {"runtime": "hf-eager"}),
        ("resnet50", "two", "zero0", {"runtime": "ddp", "batch": 1024}),
        ("vit-l", "small", "zero0", {"runtime": "ddp", "batch": 256}),
        ("bert-large", "small", "zero0", {"runtime": "ddp"}),
        ("mpt-7b", "two", "zero3", {"runtime": "fsdp2"}),
    ],
    "accelerate": [
        ("llama3-8b", "two", "zero3 recompute=full", {"runtime": "accelerate-fsdp"}),
        ("llama3-8b", "two", "tp2 zero3", {"runtime": "accelerate-fsdp"}),
        ("llama3-8b", "two", "tp2 cp2 zero3 recompute=full", {"runtime": "accelerate-fsdp"}),
        ("llama3.1-70b", "eight", "cp8 zero3", {"runtime": "accelerate-fsdp"}),
        ("llama3-8b", "two", "zero2 shard=8", {"runtime": "accelerate-fsdp"}),
        ("llama3-8b", "two", "zero3 shard=8 micro=2", {"runtime": "accelerate-fsdp"}),
        ("mixtral-8x7b", "eight", "zero3", {"runtime": "accelerate-fsdp"}),
        ("qwen3-8b", "small", "zero3 recompute=full offload=activations", {"runtime": "accelerate-fsdp"}),
        ("qwen2.5-7b", "two", "zero3 offload=optimizer", {"runtime": "accelerate-fsdp"}),
        ("gpt2", "two", "zero0", {"runtime": "ddp", "precision": "fp16"}),
        ("gpt2", "small", "zero0", {"runtime": "hf-eager"}),
        ("resnet50", "two", "zero0", {"runtime": "ddp", "batch": 1024}),
        ("gpt2-xl", "small", "zero3", {"runtime": "fsdp", "precision": "fp8"}),
    ],
    "nanotron": [
        ("llama3-8b", "two", "tp2 pp2 cp2 cp=ring sp zero1 recompute=full", {}),
        ("llama3-8b", "two", "tp2 pp4 gpipe zero1", {}),
        ("llama3.2-1b", "small", "zero0", {}),
        ("llama3.2-3b", "small", "zero1 buckets=64MB", {}),
        ("llama2-7b", "two", "tp4 zero1 micro=2", {}),
        ("llama2-70b", "eight", "tp8 pp4 zero1", {}),
        ("llama3-70b", "eight", "tp8 pp2 zero1 recompute=full", {}),
        ("mixtral-8x7b", "two", "tp8 pp2 zero1", {}),
        ("mistral-7b", "two", "tp2 zero1", {}),
        ("qwen2.5-7b", "two", "tp2 zero0", {"optimizer": "plain-sgd"}),
        ("qwen2.5-14b", "eight", "tp4 pp2 zero1", {}),
        ("qwen2.5-0.5b", "small", "zero1", {"precision": "fp32"}),
    ],
}  # fmt: skip
CASES = [(target, *row) for target, rows in COMBINATIONS.items() for row in rows]


@cache
def question(target: str, model: str, machines: str, plan: str, more: tuple[Any, ...]) -> Scenario:
    words = {"batch": 64, "runtime": target, **dict(more)}
    return ask(model, on=MACHINES[machines], plan=plan, **words)


def asked(target: str, row: tuple[Any, ...]) -> Scenario:
    return question(target, *row[:3], tuple(row[3].items()))


def test_every_target_has_a_dozen() -> None:
    assert all(len(rows) >= 12 for rows in COMBINATIONS.values())


@pytest.mark.parametrize(
    ("target", "row"), [(target, row) for target, *row in CASES], ids=lambda one: str(one)[:60]
)
def test_the_reader_takes_it_and_parses_the_plan_and_the_model(target: str, row: list[Any]) -> None:
    scenario = asked(target, tuple(row))
    made = export(scenario, target)
    run = as_run(read(target, made.files), scenario, scenario.runtime)
    assert judged(made, run) == []


# --- readers can say no ----------------------------------------------------------------------------------


def _made(target: str, row: int) -> tuple[Exported, Scenario]:
    scenario = asked(target, tuple(COMBINATIONS[target][row]))
    return export(scenario, target), scenario


def test_deepspeed_refuses_a_batch_that_counts_replicas_beside_autotp() -> None:
    """64 != 1 * 8 * 16: its ranks of tensor parallelism count as replicas."""
    made, scenario = _made("deepspeed", 1)
    text = json.loads(made.files["ds_config.json"])
    with pytest.raises(AssertionError, match=r"64 != 1 \* 8 \* 16"):
        deepspeed_config({**text, "train_batch_size": 64}, scenario.cluster.device_count)
    wrong = {**text, "zero_optimization": {**text["zero_optimization"], "stage3_prefetch": 1}}
    with pytest.raises(ValueError, match="stage3_prefetch"):
        deepspeed_config(wrong, scenario.cluster.device_count)


def test_accelerate_refuses_keys_it_does_not_know() -> None:
    made, _ = _made("accelerate", 0)
    files = dict(made.files)
    files["accelerate.yaml"] += "fsdp_versoin: 2\n"
    with pytest.raises(ValueError, match="fsdp_versoin"):
        accelerated(files)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("--sequence-parallel\n", "", "experts with tensor but no sequence parallelism"),
        ("--moe-router-score-function softmax", "--moe-router-score-function sigmoid\n--moe-router-topk 2", "score"),
        ("--expert-model-parallel-size 8", "--expert-model-parallel-size 3", "experts % expert parallel"),
        ("--rotary-base 1000000", "--rotary-base 10000", "rotary base"),
        ("--norm-epsilon 1e-05", "--norm-epsilon 0.001", "epsilon"),
        ("--num-layers 32", "--num-layer 32", "unrecognized arguments"),
    ],
)  # fmt: skip
def test_megatron_differences_are_seen(old: str, new: str, why: str) -> None:
    made, scenario = _made("megatron", 4)
    text = made.files["megatron_args.txt"]
    assert old in text
    files = {**made.files, "megatron_args.txt": text.replace(old, new)}
    spoiled = Exported("megatron", files)
    assert any(why in line for line in judged(spoiled, scenario))


def test_megatron_refuses_stages_that_no_layer_count_fills() -> None:
    made, scenario = _made("megatron", 11)
    text = made.files["megatron_args.txt"].replace("t*15L", "t*14L")
    args = parse({**made.files, "megatron_args.txt": text})
    assert any(
        "layers of the layout" in line for line in refusals(args, scenario.cluster.device_count)
    )


# --- plans that searches find ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "preset", ["megatron", "nemo", "deepspeed", "fsdp2", "accelerate-fsdp", "nanotron"]
)
def test_plans_drawn_from_the_space_are_taken_or_refused_with_a_reason(preset: str) -> None:
    """A sample of `tools/exported_plans.py`, which does all of them."""
    pairs = [PAIRS[5], PAIRS[9]] if preset != "fsdp2" else [PAIRS[0], PAIRS[2]]
    found = [one for pair in pairs for one in outcomes(preset, pair, plans=2, seed=7)]
    assert len(found) >= 4
    assert [one for one in found if one.kind == "wrong"] == []
    assert all(one.why for one in found if one.kind != "whole")
