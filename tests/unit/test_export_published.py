"""Exported files against the published keys of the software they are for (tables in `published/`)."""

from __future__ import annotations

import argparse
import json
import shlex
from functools import cache
from typing import Any

import pytest
import yaml
from support.megatron_reader import laid_out, parser
from support.published import faults, table

from foretrain.adapters.write import TARGETS, Exported, export
from foretrain.errors import ModelError
from foretrain.resolving import ask
from foretrain.runtime import presets
from foretrain.scenario import Scenario

# model, cluster, plan, batch, more of the question
CASES: dict[str, tuple[str, str, str, int, dict[str, Any]]] = {
    "megatron-sc21": ("gpt3-175b", "128 x dgx-a100-80gb", "tp8 pp16 vpp2 sp zero1 recompute=selective", 1536, {}),
    "uneven-stages": ("llama3.1-405b", "16 x dgx-h100", "tp8 pp16 sp zero1 recompute=full*0.5", 128, {"runtime": "nemo"}),
    "experts": ("mixtral-8x7b", "8 x dgx-h100", "tp2 ep8 etp1 sp zero1 recompute=experts_act,attention", 256, {"runtime": "megatron-bridge"}),
    "latent": ("deepseek-v2-lite", "2 x dgx-h100", "pp2 ep8 zero1 recompute=q_up,kv_up,rope", 64, {}),
    "sharded": ("llama3-8b", "2 x dgx-h100", "zero3 shard=8 recompute=full offload=optimizer+activations", 64, {"runtime": "fsdp2"}),
    "gradients": ("llama3-8b", "2 x dgx-h100", "tp2 zero2 buckets=100MB", 64, {"runtime": "deepspeed"}),
    "contexts": ("llama3-8b", "2 x dgx-h100", "tp2 cp4 cp=ring zero3", 64, {"precision": "fp8"}),
    "forward-first": ("qwen2.5-7b", "1 x dgx-h100", "pp2 dp4 gpipe layers=13,15", 64, {"runtime": "nanotron"}),
    "replicas": ("gpt2", "1 x dgx-h100", "offload=activations", 64, {"runtime": "ddp", "optimizer": "sgd", "precision": "fp16"}),
    "windows": ("mistral-7b", "1 x dgx-h100", "tp2 sp zero1 offload=optimizer", 64, {"optimizer": "adamw", "precision": "mxfp8"}),
    "masked": ("bert-large", "1 x dgx-a100-80gb", "zero1", 256, {"optimizer": "lamb", "precision": "fp16"}),
    "biases": ("bloom-176b", "24 x dgx-a100-80gb", "tp4 pp12 zero1 recompute=full", 768, {"runtime": "megatron-deepspeed"}),
    "own-order": ("gpt3-13b", "4 x dgx-h100", "tp4 pp2 order=tp-pp-dp sp zero1", 64, {"precision": "nvfp4"}),
    "plain": ("gpt2-xl", "1 x dgx-h100", "", 64, {"precision": "tf32", "optimizer": "none"}),
}  # fmt: skip
NO_TRANSFORMER = {
    "images": ("resnet50", "2 x dgx-a100-80gb", "zero1", 1024, {"optimizer": "plain-sgd", "precision": "fp16"}),
    "tables": ("dlrm-mlperf", "1 x dgx-a100-80gb", "tables=rows", 65536, {"optimizer": "adagrad", "precision": "fp32"}),
}  # fmt: skip


@cache
def question(name: str) -> Scenario:
    model, on, plan, batch, more = (CASES | NO_TRANSFORMER)[name]
    return ask(model, on=on, plan=plan, batch=batch, **more)


@cache
def made_of(name: str, target: str) -> Exported:
    return export(question(name), target)


def document(exported: Exported) -> Any:
    if exported.target == "deepspeed":
        return json.loads(exported.files["ds_config.json"])
    return yaml.safe_load(exported.files[f"{exported.target}.yaml"])


# --- documents --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CASES, *NO_TRANSFORMER])
@pytest.mark.parametrize("target", ["deepspeed", "accelerate", "nanotron"])
def test_documents_keep_to_the_published_keys(target: str, name: str) -> None:
    if target == "nanotron" and name in NO_TRANSFORMER:
        pytest.skip("nanotron trains transformers")
    made = made_of(name, target)
    assert list(faults(document(made), table(target)["keys"], target)) == []


@pytest.mark.parametrize("target", ["deepspeed", "accelerate", "nanotron"])
def test_the_tables_can_say_no(target: str) -> None:
    """A misspelt key, a number for a switch, a missing key and an unknown value are found."""
    keys = table(target)["keys"]
    made = document(made_of("sharded", target))
    assert list(faults(made | {"zero_optimisation": {}}, keys, "")) == [
        ".zero_optimisation: unknown"
    ]
    needed = next(key for key in keys if key.endswith("!"))[:-1]
    without = {key: value for key, value in made.items() if key != needed}
    assert list(faults(without, keys, "")) == [f".{needed}: missing"]
    wrong = {
        "deepspeed": ("zero_optimization", {"stage": 4, "overlap_comm": 1}),
        "accelerate": ("fsdp_config", {"fsdp_version": 3, "fsdp_offload_params": 1}),
        "nanotron": ("logging", {"log_level": "loud", "iteration_step_info_interval": True}),
    }
    key, value = wrong[target]
    assert len(list(faults(made | {key: value}, keys, ""))) == 2


def test_deepspeed_batches_multiply() -> None:
    """train_batch_size = micro-batch x accumulation x replicas (DeepSpeed configuration documentation), where the ranks
    of AutoTP count as replicas (runtime/config.py): there it is left to be made of the other two."""
    seen = set()
    for name in (*CASES, *NO_TRANSFORMER):
        asked = question(name)
        made = document(made_of(name, "deepspeed"))
        parts = made["train_micro_batch_size_per_gpu"] * made["gradient_accumulation_steps"]
        assert parts * asked.plan.replicas == asked.workload.global_batch
        is_split = "tensor_parallel" in made
        assert made.get("train_batch_size") == (None if is_split else asked.workload.global_batch)
        seen.add(is_split)
    assert seen == {True, False}


def test_deepspeed_keys_are_those_its_stage_reads() -> None:
    """Stage 3 gathers weights layer by layer, stages 1 and 2 in buckets, stage 0 not at all (runtime/engine.py,
    _configure_zero_optimizer)."""
    keys = {
        0: set(),
        1: {"overlap_comm", "reduce_bucket_size", "reduce_scatter", "allgather_bucket_size"},
        2: {"overlap_comm", "reduce_bucket_size", "reduce_scatter", "allgather_bucket_size"},
        3: {"overlap_comm", "reduce_bucket_size", "reduce_scatter"},
    }
    for stage, read in keys.items():
        asked = ask("gpt2", on="1 x dgx-h100", plan=f"zero{stage}", batch=64, runtime="deepspeed")
        made = document(export(asked, "deepspeed"))["zero_optimization"]
        assert set(made) - {"stage"} == read


def test_accelerate_meshes_hold_every_process() -> None:
    """The sizes of a mesh multiply to the number of processes; replicas without shards are refused by Accelerate."""
    seen = 0
    for name in CASES:
        made = document(made_of(name, "accelerate"))
        sizes = made.get("parallelism_config")
        if sizes is None:
            continue
        seen += 1
        numbers = {key.removeprefix("parallelism_config_"): value for key, value in sizes.items()}
        copies, shards = numbers["dp_replicate_size"], numbers["dp_shard_size"]
        product = copies * shards * numbers["tp_size"] * numbers["cp_size"]
        assert product == made["num_processes"]
        assert copies == 1 or shards > 1
        assert made["fsdp_config"]["fsdp_version"] == 2
    assert seen >= 4


def test_nanotron_fills_the_cluster() -> None:
    for name in CASES:
        asked = question(name)
        made = document(made_of(name, "nanotron"))
        axes = made["parallelism"]
        ranks = axes["dp"] * axes["pp"] * axes["tp"] * axes["context_parallel_size"]
        assert ranks == asked.cluster.device_count
        tokens = made["tokens"]
        step = tokens["micro_batch_size"] * tokens["batch_accumulation_per_replica"] * axes["dp"]
        assert step == asked.workload.global_batch


# --- Megatron-LM's arguments ---------------------------------------------------------------------------


def parsed(name: str) -> argparse.Namespace:
    text = made_of(name, "megatron").files["megatron_args.txt"]
    return parser().parse_args(shlex.split(text))


@pytest.mark.parametrize("name", CASES)
def test_megatron_arguments_parse_and_agree(name: str) -> None:
    """The checks are those of validate_args in megatron/training/arguments.py and of TransformerConfig."""
    asked, args = question(name), parsed(name)
    cp = args.context_parallel_size or 1
    ranks = args.tensor_model_parallel_size * args.pipeline_model_parallel_size * cp
    assert asked.cluster.device_count % ranks == 0
    replicas = asked.cluster.device_count // ranks
    assert args.global_batch_size % (args.micro_batch_size * replicas) == 0
    assert args.max_position_embeddings >= args.seq_length
    assert cp == 1 or args.seq_length % (2 * cp) == 0
    assert (
        args.num_layers % args.pipeline_model_parallel_size == 0
        or args.pipeline_model_parallel_layout
    )
    assert not (args.num_virtual_stages_per_pipeline_rank and args.pipeline_model_parallel_layout)
    assert not args.overlap_param_gather or (
        args.use_distributed_optimizer and args.overlap_grad_reduce
    )
    assert not args.tp_comm_overlap or args.sequence_parallel
    assert not args.optimizer_cpu_offload or args.use_precision_aware_optimizer
    assert not args.use_precision_aware_optimizer or (
        args.use_distributed_optimizer and args.optimizer == "adam"
    )
    assert not args.cpu_offloading_num_layers or args.recompute_granularity is None
    assert (args.recompute_method is None) == (args.recompute_granularity != "full")
    assert not args.use_megatron_fsdp or args.ckpt_format == "fsdp_dtensor"
    assert not (args.fp16 and args.bf16)
    assert not (args.fp16 and args.expert_model_parallel_size)
    if args.num_experts and args.expert_model_parallel_size:
        assert args.num_experts % args.expert_model_parallel_size == 0
    assert "moe_act" not in (args.recompute_modules or ()) or args.moe_grouped_gemm
    assert not args.no_overlap_p2p_communication or args.pipeline_model_parallel_size > 2


def test_megatron_parser_can_say_no() -> None:
    for wrong in (
        "--num-layer 3",
        "--num-layers three",
        "--normalization rms",
        "--recompute-modules nothing",
    ):
        with pytest.raises(ValueError):
            parser().parse_args(shlex.split(wrong))


def test_megatron_is_told_the_model_and_the_plan() -> None:
    args = parsed("megatron-sc21")
    assert (args.num_layers, args.hidden_size, args.num_attention_heads) == (96, 12288, 96)
    assert (args.tensor_model_parallel_size, args.pipeline_model_parallel_size) == (8, 16)
    assert args.num_virtual_stages_per_pipeline_rank == 2
    assert args.recompute_modules == ["core_attn"]
    args = parsed("experts")
    assert (args.num_experts, args.moe_router_topk) == (8, 2)
    assert (args.expert_model_parallel_size, args.expert_tensor_parallel_size) == (8, 1)
    args = parsed("latent")
    assert args.multi_latent_attention
    assert args.moe_layer_freq == "([0]*1+[1]*26)"
    args = parsed("sharded")
    assert args.data_parallel_sharding_strategy == "optim_grads_params"
    assert args.num_distributed_optimizer_instances == 2
    args = parsed("gradients")
    assert args.data_parallel_sharding_strategy == "optim_grads"
    assert args.ddp_bucket_size == 50_000_000  # elements of 2 bytes
    assert parsed("own-order").use_tp_pp_dp_mapping


def test_megatron_finds_the_script_of_bert() -> None:
    """It moved in May 2026 (NVIDIA/Megatron-LM pull request 4820)."""
    script = made_of("masked", "megatron").files["launch.sh"]
    assert '[ -f "$SCRIPT" ] || SCRIPT="$MEGATRON/pretrain_bert.py"' in script
    assert '"$SCRIPT" $(cat megatron_args.txt)' in script
    assert "PYTHONPATH" in script
    assert "pretrain_bert" not in made_of("sharded", "megatron").files["launch.sh"]


def test_megatron_places_layers_as_predicted() -> None:
    parts = laid_out(parsed("uneven-stages").pipeline_model_parallel_layout)
    assert [part.count("t") for part in parts] == [7, *[8] * 14, 7]
    assert parts[0].startswith("E")
    assert parts[-1].endswith("L")
    parts = laid_out(parsed("forward-first").pipeline_model_parallel_layout)
    assert [part.count("t") for part in parts] == [13, 15]


# --- all targets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*CASES, *NO_TRANSFORMER])
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_writes_or_says_why_not(target: str, name: str) -> None:
    if name in NO_TRANSFORMER and target in ("megatron", "nanotron"):
        with pytest.raises(ModelError, match="Export to torchrun"):
            export(question(name), target)
        return
    made = made_of(name, target)
    assert made.target == target
    assert all(text.endswith("\n") and "\r" not in text for text in made.files.values())
    assert made.files["launch.sh"].startswith("#!/bin/sh\n")
    assert all(line in made.files["launch.sh"] for line in made.cannot)
    assert len(set(made.cannot)) == len(made.cannot)
    assert export(question(name), target) == made  # same question, same bytes


@pytest.mark.parametrize("target", TARGETS)
def test_runtimes_of_targets_are_presets(target: str) -> None:
    """A question asked of the target's own software carries no warning about another."""
    from importlib import import_module

    from foretrain.adapters.write.job import ExportJob

    module = import_module(f"foretrain.adapters.write.{TARGETS[target]}")
    for plan in ("", "zero1", "zero3"):
        asked = ask("llama3-8b", on="1 x dgx-h100", plan=plan, batch=64)
        own = module.runtimes(ExportJob.of(asked))
        assert set(own) <= set(presets())
        again = ask("llama3-8b", on="1 x dgx-h100", plan=plan, batch=64, runtime=own[0])
        assert not export(again, target).warnings
        other = ask("llama3-8b", on="1 x dgx-h100", plan=plan, batch=64, runtime="maxtext")
        assert any("--runtime maxtext" in line for line in export(other, target).warnings)
