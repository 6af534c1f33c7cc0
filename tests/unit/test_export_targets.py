"""torchtitan, Megatron Bridge, MaxText, Axolotl and LLaMA-Factory: files against published keys, plan and model."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
import yaml
from support.published import faults, table
from test_export_published import CASES, question

import foretrain
from foretrain.adapters.read.launch import read
from foretrain.adapters.read.launch.python import CALLED, assigned
from foretrain.adapters.read.launch.rerun import as_run
from foretrain.adapters.write import Exported, export
from foretrain.errors import FileError, InputError, ModelError
from foretrain.model.load import load_model
from foretrain.model.lora import Adapters, adapters_in, with_adapters, without_adapters
from foretrain.resolving import ask

TARGETS = ("torchtitan", "megatron-bridge", "maxtext", "axolotl", "llama-factory")
CONFIGS = {
    "torchtitan": "torchtitan.toml",
    "megatron-bridge": "recipe.py",
    "maxtext": "maxtext.yml",
    "axolotl": "axolotl.yaml",
    "llama-factory": "llama_factory.yaml",
}
# More of what these targets have words for.
MORE: dict[str, tuple[str, str, str, int, dict[str, Any]]] = {
    "titan-3d": ("llama3-70b", "16 x dgx-h100", "tp8 pp4 vpp5 sp zero1 recompute=selective", 128, {"runtime": "torchtitan"}),
    "titan-uneven": ("llama3-8b", "2 x dgx-h100", "pp2 layers=15,17 zero1 recompute=full*0.5", 64, {"runtime": "torchtitan"}),
    "titan-v": ("llama3-8b", "2 x dgx-h100", "pp4 dualpipev zero1 recompute=none", 64, {"runtime": "torchtitan"}),
    "titan-qwen": ("qwen3-30b-a3b", "2 x dgx-h100", "tp2 ep8 sp zero3 shard=8", 64, {"runtime": "torchtitan", "precision": "fp8"}),
    "deepseek": ("deepseek-v3", "128 x dgx-h100", "tp2 pp16 ep32 sp zero1", 2048, {"runtime": "megatron-bridge"}),
    "jax": ("mixtral-8x7b", "8 x dgx-h100", "tp2 ep8 sp zero3 shard=32", 256, {"runtime": "maxtext"}),
    "jax-stages": ("llama3-70b", "8 x dgx-h100", "pp4 tp2 cp2 cp=ring gpipe zero1", 256, {"runtime": "maxtext"}),
    "meshes": ("llama3-8b", "2 x dgx-h100", "tp2 cp2 zero2 shard=4 recompute=full", 64, {"runtime": "fsdp2"}),
}  # fmt: skip
EVERY = CASES | MORE


def asked(name: str) -> Any:
    if name in CASES:
        return question(name)
    model, on, plan, batch, more = MORE[name]
    return ask(model, on=on, plan=plan, batch=batch, **more)


@cache
def made_of(name: str, target: str) -> Exported | None:
    """None: the target refuses the model."""
    try:
        return export(asked(name), target)
    except ModelError:
        return None


def document(made: Exported) -> Any:
    text = made.files[CONFIGS[made.target]]
    if made.target == "torchtitan":
        return tomllib.loads(text)
    if made.target == "megatron-bridge":
        container = assigned(text, "recipe.py")["cfg"]
        assert container.pop(CALLED) == "_pretrain_common"
        return container
    return yaml.safe_load(text)


# --- the files of each target ------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", EVERY)
def test_documents_keep_to_the_published_keys(name: str, target: str) -> None:
    made = made_of(name, target)
    if made is None:
        assert (name, target) == ("masked", "megatron-bridge")
        return
    assert list(faults(document(made), table(target)["keys"], target)) == []


@pytest.mark.parametrize("target", TARGETS)
def test_the_tables_can_say_no(target: str) -> None:
    made = made_of("sharded", target)
    assert made is not None
    keys, good = table(target)["keys"], document(made)
    assert list(faults(good | {"paralelism": {}}, keys, "")) == [".paralelism: unknown"]
    needed = next(key for key in keys if key.endswith("!"))[:-1]
    assert list(faults({k: v for k, v in good.items() if k != needed}, keys, "")) == [
        f".{needed}: missing"
    ]
    wrong = {
        "torchtitan": ("activation_checkpoint", {"mode": "some"}),
        "megatron-bridge": ("checkpoint", {"ckpt_format": "torch"}),
        "maxtext": ("remat_policy", "none"),
        "axolotl": ("fsdp_version", 3),
        "llama-factory": ("packing", 1),
    }
    key, value = wrong[target]
    assert len(list(faults(good | {key: value}, keys, ""))) == 1


@pytest.mark.parametrize("name", EVERY)
def test_torchtitan_builds_its_meshes(name: str) -> None:
    """parallel_dims.py, train.py and pipeline_parallel.py of v0.2.2."""
    made, scenario = made_of(name, "torchtitan"), asked(name)
    assert made is not None
    config = document(made)
    p, t = config["parallelism"], config["training"]
    tp, cp, pp = (p[f"{a}_parallel_degree"] for a in ("tensor", "context", "pipeline"))
    copies, shards = p["data_parallel_replicate_degree"], p["data_parallel_shard_degree"]
    assert copies * shards * cp * tp * pp == scenario.cluster.device_count
    assert t["global_batch_size"] % (t["local_batch_size"] * copies * shards) == 0
    assert t["seq_len"] % (tp * 2 * cp) == 0
    if copies > 1 and shards * cp == 1:
        assert copies == scenario.cluster.device_count  # DDP goes with nothing else
    if pp > 1:
        assert t["local_batch_size"] % p["pipeline_parallel_microbatch_size"] == 0
        _expect_stages(config, made, pp)
    if p.get("expert_parallel_degree", 1) > 1:
        assert p["expert_tensor_parallel_degree"] in (1, tp)


def _expect_stages(config: Mapping[str, Any], made: Exported, pp: int) -> None:
    p, layers = config["parallelism"], _titan_model(made)["n_layers"]
    is_looped = p["pipeline_parallel_schedule"] not in ("1F1B", "GPipe")
    named = p.get("module_fqns_per_model_part")
    if named is None:
        each = p["pipeline_parallel_layers_per_stage"]
        stages = -(-layers // each)
    else:
        stages = len(named)
        flat = [module for part in named for module in part]
        inner = [f"layers.{i}" for i in range(layers)]
        assert flat == ["tok_embeddings", *inner, "norm", "output"]
    assert stages % pp == 0
    assert (stages // pp > 1) == is_looped


def _titan_model(made: Exported) -> dict[str, Any]:
    arguments = assigned(made.files["exported_model.py"], "exported_model.py")["ARGS"]
    assert isinstance(arguments, dict)
    return arguments


@pytest.mark.parametrize("name", EVERY)
def test_torchtitan_is_told_the_model(name: str) -> None:
    made = made_of(name, "torchtitan")
    assert made is not None
    arguments = _titan_model(made)
    kind = arguments.pop(CALLED)
    inner = {"moe_args": "MoEArgs", "rope_scaling_args": "RoPEScalingArgs"}
    for key, name_of_class in inner.items():
        if key in arguments:
            assert arguments[key].pop(CALLED) == name_of_class
    assert list(faults(arguments, table("torchtitan")["models"][kind], kind)) == []
    compile(made.files["exported_model.py"], "exported_model.py", "exec")


def test_torchtitan_rounds_the_feed_forward_layer_to_itself() -> None:
    """FeedForward of models/llama3/model/model.py: 2/3 of four widths, times the multiplier, rounded up."""
    for name in ("llama3-8b", "llama2-7b", "llama3-70b", "llama3.1-405b"):
        made = export(ask(name, on="1 x dgx-h100", plan="zero3", batch=8), "torchtitan")
        m = _titan_model(made)
        wide = int(m["ffn_dim_multiplier"] * int(2 * (4 * m["dim"]) / 3))
        step = m["multiple_of"]
        assert step * ((wide + step - 1) // step) == asked_ffn(name)


def asked_ffn(name: str) -> int:
    shape = load_model(name).shape
    assert shape is not None
    return shape.ffn


@pytest.mark.parametrize("name", EVERY)
def test_bridge_recipes_say_plan_and_model(name: str) -> None:
    """Checks of ConfigContainer.validate and of TransformerConfig."""
    made, scenario = made_of(name, "megatron-bridge"), asked(name)
    if made is None:
        return
    cfg = document(made)
    model = cfg["model"]
    ranks = model["tensor_model_parallel_size"] * model["pipeline_model_parallel_size"]
    ranks *= model.get("context_parallel_size", 1)
    assert scenario.cluster.device_count % ranks == 0
    each = cfg["train"]["micro_batch_size"] * (scenario.cluster.device_count // ranks)
    assert cfg["train"]["global_batch_size"] % each == 0
    assert model["seq_length"] == cfg["dataset"]["seq_length"] == scenario.workload.seq_len
    shape = scenario.workload.model.shape
    assert (model["num_layers"], model["hidden_size"]) == (
        shape.num_hidden_layers,
        shape.hidden_size,
    )
    assert model["vocab_size"] == shape.vocab_size == cfg["tokenizer"]["vocab_size"] + 1
    assert (model[CALLED] == "MLAModelProvider") == shape.is_latent
    if model["pipeline_model_parallel_size"] > 1:
        assert "pipeline_dtype" in model
    precision = cfg["mixed_precision"]
    assert precision is None or precision["0"] in table("megatron-bridge")["precisions"]
    compile(made.files["recipe.py"], "recipe.py", "exec")


@pytest.mark.parametrize("name", EVERY)
def test_maxtext_fills_nodes_and_pipelines(name: str) -> None:
    """Axes within nodes multiply to a node, axes over them to all nodes (base.yml); micro-batches are a multiple of the
    stages, or the export says so (types.py)."""
    made, scenario = made_of(name, "maxtext"), asked(name)
    assert made is not None
    keys = document(made)
    inner, outer, stages = 1, 1, keys["ici_pipeline_parallelism"] * keys["dcn_pipeline_parallelism"]
    for key, value in keys.items():
        inner *= value if key.startswith("ici_") else 1
        outer *= value if key.startswith("dcn_") else 1
    assert (inner, outer) == (8, scenario.cluster.node_count)
    samples = keys["per_device_batch_size"] * inner * outer * keys["gradient_accumulation_steps"]
    assert samples == scenario.workload.global_batch
    if stages > 1:
        told = any("requires a multiple of the" in line for line in made.cannot)
        assert told == bool(keys["num_pipeline_microbatches"] % stages)
        assert keys["pipeline_parallel_layers"] % stages == 0


@pytest.mark.parametrize("target", ["axolotl", "llama-factory"])
@pytest.mark.parametrize("name", EVERY)
def test_trainers_add_up_to_the_batch(name: str, target: str) -> None:
    """Micro-batch x accumulation x ranks with samples of their own; or the export says what it is instead."""
    made, scenario = made_of(name, target), asked(name)
    assert made is not None
    keys = document(made)
    launch = read(target, made.files)
    own = keys.get("micro_batch_size") or keys["per_device_train_batch_size"]
    ranks = scenario.cluster.device_count // (launch.words().tp * launch.words().cp)
    samples = own * keys["gradient_accumulation_steps"] * ranks
    assert samples == launch.batch
    told = any(line.startswith("batch ") for line in made.cannot)
    assert told == (samples != scenario.workload.global_batch)
    assert ("deepspeed" in keys) == ("ds_config.json" in made.files)


@pytest.mark.parametrize("name", EVERY)
def test_axolotl_meshes_hold_every_process(name: str) -> None:
    """get_accelerate_parallelism of utils/distributed.py; DeepSpeed and FSDP exclude each other (validation.py)."""
    made, scenario = made_of(name, "axolotl"), asked(name)
    assert made is not None
    keys = document(made)
    assert not ("deepspeed" in keys and "fsdp_config" in keys)
    if "fsdp_config" not in keys:
        return
    sizes = ("dp_shard", "dp_replicate", "tensor_parallel", "context_parallel", "expert_parallel")
    product = 1
    for size in sizes:
        product *= keys.get(f"{size}_size", 1)
    assert product == scenario.cluster.device_count
    assert not keys["sample_packing"] or keys["micro_batch_size"] == 1


@pytest.mark.parametrize(("model", "plan"), [("mixtral-8x7b", "ep8 zero3"), ("deepseek-v2-lite", "pp2 ep8 zero1")])  # fmt: skip
def test_torchtitan_runs_mixtures_without_the_loss_that_balances_them(
    model: str, plan: str
) -> None:
    made = foretrain.export(model, to="torchtitan", on="2 x dgx-h100", plan=plan, batch=64)
    assert made.runs == ""
    assert [line.split(" (")[0] for line in made.cannot] == ["loss that balances experts"]


def test_details_are_carried() -> None:
    """Rotary base and scaling, epsilon, router (DeepSeek-V3; Llama 3.1)."""
    deepseek = asked("deepseek")
    model = _titan_model(export(deepseek, "torchtitan"))
    experts = model["moe_args"]
    assert (experts["score_func"], experts["route_norm"], experts["route_scale"]) == (
        "sigmoid",
        True,
        2.5,
    )
    assert (experts["num_expert_groups"], experts["num_limited_groups"]) == (8, 4)
    assert (model["rope_factor"], model["norm_eps"]) == (40.0, 1e-6)
    keys = document(export(deepseek, "maxtext"))
    assert (keys["routed_score_func"], keys["routed_bias"], keys["rope_type"]) == (
        "sigmoid",
        True,
        "yarn",
    )
    fields = document(export(deepseek, "megatron-bridge"))["model"]
    assert (fields["moe_router_score_function"], fields["moe_router_group_topk"]) == ("sigmoid", 4)
    llama = ask("llama3.1-8b", on="1 x dgx-h100", plan="zero3", batch=8)
    model = _titan_model(export(llama, "torchtitan"))
    assert (model["rope_theta"], model["rope_scaling_args"]["scaling_factor"]) == (500_000.0, 8.0)
    keys = document(export(llama, "maxtext"))
    assert (keys["rope_type"], keys["rope_max_timescale"]) == ("llama3.1", 500_000)
    plain = ask("llama3-8b", on="1 x dgx-h100", plan="zero3", batch=8)
    model = _titan_model(export(plain, "torchtitan"))
    assert (
        model["rope_scaling_args"]["scaling_factor"] == 1.0
    )  # not stretched, where its default is


def test_a_lost_pipeline_keeps_both_files_of_the_trainer_alike() -> None:
    """DeepSpeed's batches are the Trainer's (transformers/integrations/deepspeed.py)."""
    scenario = ask("llama3-8b", on="2 x dgx-h100", plan="pp4 zero1", batch=64, runtime="deepspeed")
    for target in ("axolotl", "llama-factory"):
        made = export(scenario, target)
        own = json.loads(made.files["ds_config.json"])
        keys = document(made)
        steps = keys["gradient_accumulation_steps"]
        assert own["gradient_accumulation_steps"] == steps
        assert own["train_batch_size"] == own["train_micro_batch_size_per_gpu"] * steps * 16


# --- adapters ------------------------------------------------------------------------------------------------

LORA = {"peft": "lora", "lora_rank": 8, "lora_targets": ["q_proj", "v_proj"]}


def tuned(target: str, plan: str = "zero3", **options: Any) -> Exported:
    return foretrain.export(
        "llama3-8b", to=target, on="1 x dgx-h100", plan=plan, batch=64, runtime_options=options
    )


def test_adapters_are_set_where_the_target_trains_them() -> None:
    keys = document(tuned("axolotl", **LORA))
    assert (keys["adapter"], keys["lora_r"]) == ("lora", 8)
    assert (keys["lora_target_modules"], keys["load_in_4bit"]) == (["q_proj", "v_proj"], False)
    keys = document(tuned("llama-factory", **LORA))
    assert (keys["finetuning_type"], keys["lora_rank"]) == ("lora", 8)
    assert keys["lora_target"] == "q_proj,v_proj"
    for target in ("axolotl", "llama-factory"):
        made = tuned(target, **LORA)
        assert list(faults(document(made), table(target)["keys"], target)) == []
        assert made.runs == ""


@pytest.mark.parametrize(
    ("target", "old", "new"),
    [("axolotl", "lora_r: 8", "lora_r: 64"), ("llama-factory", "lora_rank: 8", "lora_rank: 64")],
)
def test_other_adapters_are_another_run(target: str, old: str, new: str) -> None:
    scenario = ask(
        "llama3-8b",
        on="1 x dgx-h100",
        plan="zero3",
        batch=64,
        runtime="fsdp2",
        runtime_options=LORA,
    )
    made = export(scenario, target)
    assert as_run(read(target, made.files), scenario, scenario.runtime).sha256 == scenario.sha256
    files = {name: text.replace(old, new) for name, text in made.files.items()}
    other = as_run(read(target, files), scenario, scenario.runtime).workload.model
    trained = scenario.workload.model.trained_parameters
    assert other.trained_parameters == 8 * trained


def test_one_adapter_for_several_projections_is_another_run() -> None:
    """PEFT has one for each, with more weights: both figures are given, or are the same."""
    made = tuned("axolotl", peft="lora", lora_rank=8, lora_targets=["linear_qkv"])
    assert any(line.startswith("linear_qkv: one adapter") for line in made.cannot)
    assert document(made)["lora_target_modules"] == ["q_proj", "k_proj", "v_proj"]


def test_frozen_weights_in_four_bits() -> None:
    keys = document(tuned("axolotl", "zero0", **LORA | {"peft": "qlora"}))
    assert (keys["adapter"], keys["load_in_4bit"]) == ("qlora", True)
    keys = document(tuned("llama-factory", "zero0", **LORA | {"peft": "qlora"}))
    assert (keys["quantization_bit"], keys["quantization_type"]) == (4, "nf4")


def test_all_weights_are_trained_without_adapters() -> None:
    assert "adapter" not in document(tuned("axolotl"))
    assert document(tuned("llama-factory"))["finetuning_type"] == "full"


def test_other_targets_refuse_adapters() -> None:
    for target in ("torchtitan", "megatron-bridge", "maxtext"):
        with pytest.raises(ModelError, match="axolotl or llama-factory"):
            tuned(target, "", **LORA)


@pytest.mark.parametrize("model", ["llama2-7b", "gpt2", "qwen3-8b"])
@pytest.mark.parametrize("beside", [("q_proj", "v_proj"), ("all-linear",), ("linear_qkv", "linear_proj"), ("mlp",)])  # fmt: skip
def test_adapters_are_read_from_a_model(model: str, beside: tuple[str, ...]) -> None:
    bare = load_model(model)
    with_them = with_adapters(bare, Adapters(8, beside))
    found = adapters_in(with_them)
    assert found is not None
    assert found.rank == 8
    assert with_adapters(bare, found).blocks == with_them.blocks
    assert without_adapters(with_them).blocks == bare.blocks
    assert adapters_in(bare) is None


# --- files of strangers ----------------------------------------------------------------------------------------


def test_python_is_read_and_not_run() -> None:
    text = (
        "import os\nos.abort()\na = 1\nb.c = 'x'\nb.c = [1, 2]\nf = g.H(2, x=-1, y=K.z, w=os.abort())\n"
        "for i in range(3): b.d = i + 1\n"
    )
    found = assigned(text, "x.py")
    assert found == {
        "a": 1,
        "b": {"c": [1, 2]},
        "f": {CALLED: "H", "0": 2, "x": -1, "y": "K.z", "w": {CALLED: "abort"}},
    }
    with pytest.raises(FileError, match="not Python"):
        assigned("a = (", "x.py")


def test_a_torchtitan_file_of_ones_own() -> None:
    """Defaults of job_config.py where nothing is said; the ends count as layers (generate_llm_fqn_per_model_part)."""
    text = (
        "[training]\nlocal_batch_size = 4\nseq_len = 4096\n[parallelism]\ndata_parallel_shard_degree = 4\n"
        'pipeline_parallel_degree = 4\npipeline_parallel_schedule = "Interleaved1F1B"\n'
        "tensor_parallel_degree = 2\n[activation_checkpoint]\nmode = 'selective'\n"
    )
    module = "ARGS = TransformerModelArgs(dim=4096, n_layers=32, n_heads=32, vocab_size=32000)\n"
    launch = read("torchtitan", {"mine.toml": text, "exported_model.py": module})
    words = launch.words()
    assert (words.tp, words.pp, words.vpp, words.zero, words.sp) == (2, 4, 2, 1, True)
    assert words.layers == (4, 5, 4, 4, 4, 4, 4, 3)
    assert str(words.recompute).startswith("full@1,3,5,7,10,12,")  # every second layer of a part
    assert (launch.batch, launch.seq, launch.devices) == (16, 4096, 32)
    with pytest.raises(InputError, match="memory_budget cannot be predicted"):
        read("torchtitan", {"a.toml": text.replace("'selective'", "'memory_budget'")})
