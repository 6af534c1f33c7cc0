"""Files of torchtitan, Megatron Bridge, MaxText, Axolotl and LLaMA-Factory against what is recorded of their readers: what these
refuse, and where what the files say is not the plan and the model that they were read back as."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from foretrain.adapters.read.launch.python import CALLED, assigned
from foretrain.adapters.write.job import ExportJob
from foretrain.scenario import Scenario
from support.published import faults, table

Files = Mapping[str, str]
Checks = Iterator[tuple[bool, str]]
Rows = Iterator[tuple[str, Any, Any]]


def _said(name: str, checks: Checks, rows: Rows) -> Iterator[str]:
    yield from (f"{name} refuses: {what}" for holds, what in checks if not holds)
    yield from (f"{what}: says {one}, meant {other}" for what, one, other in rows if one != other)


# --- torchtitan -------------------------------------------------------------------------------------------


def torchtitan(files: Files, run: Scenario) -> Iterator[str]:
    config = tomllib.loads(files["torchtitan.toml"])
    yield from faults(config, table("torchtitan")["keys"], "torchtitan.toml")
    model = assigned(files["exported_model.py"], "exported_model.py")["ARGS"]
    kind = model.pop(CALLED)
    for value in model.values():
        if isinstance(value, dict):
            value.pop(CALLED)
    yield from faults(model, table("torchtitan")["models"][kind], kind)
    job = ExportJob.of(run)
    checks = _titan_checks(config, model, kind, job)
    yield from _said("torchtitan", checks, _titan_rows(config, model, job))


def _degrees(p: Mapping[str, Any]) -> tuple[int, ...]:
    names = ("tensor", "context", "pipeline", "expert")
    return tuple(p.get(f"{name}_parallel_degree", 1) for name in names)


def _titan_checks(
    config: Mapping[str, Any], model: Mapping[str, Any], kind: str, job: ExportJob
) -> Checks:
    """parallel_dims.py, train.py, pipeline_parallel.py, parallelize.py of the models; PyTorch's schedules.py."""
    p, t = config["parallelism"], config["training"]
    tp, cp, pp, ep = _degrees(p)
    copies, shards = p["data_parallel_replicate_degree"], p["data_parallel_shard_degree"]
    local, batch = t["local_batch_size"], t["global_batch_size"]
    yield copies * shards * cp * tp * pp == job.devices, "degrees do not multiply to the world"
    yield batch % (local * copies * shards) == 0, "global_batch_size"
    yield t["seq_len"] % (tp * 2 * cp) == 0, "seq_len is not divisible by tp and 2 cp"
    yield copies == 1 or shards * cp > 1 or copies == job.devices, "DDP goes with nothing else"
    yield ep == 1 or p["expert_tensor_parallel_degree"] in (1, tp), "etp is neither 1 nor tp"
    if pp == 1:
        return
    yield kind != "Qwen3ModelArgs", "its Qwen3 has no pipelines"
    micro, schedule = p["pipeline_parallel_microbatch_size"], p["pipeline_parallel_schedule"]
    count = local // micro
    yield local % micro == 0, "pipeline_parallel_microbatch_size"
    yield schedule != "1F1B" or count >= pp, "1F1B needs a micro-batch per stage"
    yield schedule != "DualPipeV" or count >= 2 * pp, "DualPipeV needs two micro-batches per rank"
    named = p.get("module_fqns_per_model_part")
    each = p.get("pipeline_parallel_layers_per_stage", 1)
    stages = len(named) if named else -(-model["n_layers"] // each)
    yield stages % pp == 0, "stages are not a multiple of the ranks"
    yield (stages // pp > 1) == (schedule not in ("1F1B", "GPipe")), "stages of a rank"
    yield schedule not in ("ZBVZeroBubble", "DualPipeV") or stages == 2 * pp, "V has two chunks"


def _titan_rows(config: Mapping[str, Any], model: Mapping[str, Any], job: ExportJob) -> Rows:
    words, shape, details = job.words, job.transformer("torchtitan"), job.details
    p, t = config["parallelism"], config["training"]
    yield "degrees", _degrees(p), (words.tp, words.cp, words.pp, words.ep)
    micro = p["pipeline_parallel_microbatch_size"] if words.pp > 1 else t["local_batch_size"]
    yield "micro", micro, job.micro
    yield "batch", t["global_batch_size"], job.batch
    yield "sequence", t["seq_len"], job.question.workload.seq_len
    sizes = (shape.hidden_size, shape.num_hidden_layers, shape.num_attention_heads)
    yield "sizes", (model["dim"], model["n_layers"], model["n_heads"]), sizes
    yield "vocabulary", model["vocab_size"], shape.vocab_size
    if details.norm_eps is not None:
        yield "epsilon", model["norm_eps"], details.norm_eps
    if details.rope_theta is not None and shape.position == "rope":
        yield "rotary base", model["rope_theta"], details.rope_theta
    if shape.num_experts:
        experts = model["moe_args"]
        chosen = (shape.num_experts, shape.num_experts_per_tok or 1)
        yield "experts", (experts["num_experts"], experts["top_k"]), chosen
        if details.scoring_func is not None:
            yield "router", experts["score_func"], details.scoring_func


# --- Megatron Bridge ----------------------------------------------------------------------------------------


def megatron_bridge(files: Files, run: Scenario) -> Iterator[str]:
    cfg = assigned(files["recipe.py"], "recipe.py")["cfg"]
    cfg.pop(CALLED)
    yield from faults(cfg, table("megatron-bridge")["keys"], "recipe.py")
    job = ExportJob.of(run)
    yield from _said("Megatron Bridge", _bridge_checks(cfg, job), _bridge_rows(cfg, job))


def _bridge_checks(cfg: Mapping[str, Any], job: ExportJob) -> Checks:
    """ConfigContainer.validate, TransformerConfig.__post_init__."""
    model, ddp = cfg["model"], cfg["ddp"]
    tp, pp = model["tensor_model_parallel_size"], model["pipeline_model_parallel_size"]
    cp, ep = model.get("context_parallel_size", 1), model.get("expert_model_parallel_size", 1)
    yield job.devices % (tp * pp * cp) == 0, "the world is not divisible by the degrees"
    each = cfg["train"]["micro_batch_size"] * (job.devices // (tp * pp * cp))
    yield cfg["train"]["global_batch_size"] % each == 0, "global_batch_size"
    yield cp == 1 or model["seq_length"] % (2 * cp) == 0, "seq_length is not divisible by 2 cp"
    yield pp == 1 or "pipeline_dtype" in model, "pipeline_dtype"
    yield tp > 1 or not model["sequence_parallel"], "sequence_parallel without tp"
    yield model["num_attention_heads"] % tp == 0, "heads are not divisible by tp"
    yield ep == 1 or model["num_moe_experts"] % ep == 0, "experts are not divisible by ep"
    latent = model.get("multi_latent_attention", False)
    yield (model[CALLED] == "MLAModelProvider") == latent, "latent attention has a provider"
    yield "mla_up_proj" not in model.get("recompute_modules", ()) or latent, "mla_up_proj"
    is_sharded = ddp.get("use_megatron_fsdp", False)
    kept = cfg.get("checkpoint", {}).get("ckpt_format")
    yield not is_sharded or kept == "fsdp_dtensor", "Megatron-FSDP's checkpoints"
    precision = cfg["mixed_precision"]
    known = table("megatron-bridge")["precisions"]
    yield precision is None or precision["0"] in known, "mixed_precision"


def _bridge_rows(cfg: Mapping[str, Any], job: ExportJob) -> Rows:
    model, words, shape = cfg["model"], job.words, job.transformer("Megatron Bridge")
    details = job.details
    found = tuple(
        model.get(f"{name}_parallel_size", 1)
        for name in ("tensor_model", "pipeline_model", "context", "expert_model")
    )
    yield "degrees", found, (words.tp, words.pp, words.cp, words.ep)
    yield "micro", cfg["train"]["micro_batch_size"], job.micro
    yield "batch", cfg["train"]["global_batch_size"], job.batch
    yield "sequence", model["seq_length"], job.question.workload.seq_len
    yield "zero", cfg["ddp"]["use_distributed_optimizer"], words.zero > 0
    sizes = (shape.num_hidden_layers, shape.hidden_size, shape.num_attention_heads)
    yield "sizes", (model["num_layers"], model["hidden_size"], model["num_attention_heads"]), sizes
    yield "vocabulary", model["vocab_size"], shape.vocab_size
    yield "tokenizer", cfg["tokenizer"]["vocab_size"], shape.vocab_size - 1
    if details.norm_eps is not None:
        yield "epsilon", model["layernorm_epsilon"], details.norm_eps
    if details.rope_theta is not None and shape.position == "rope":
        yield "rotary base", model["rotary_base"], details.rope_theta
    if shape.num_experts and details.scoring_func is not None:
        yield "router", model["moe_router_score_function"], details.scoring_func


# --- MaxText -------------------------------------------------------------------------------------------------


def maxtext(files: Files, run: Scenario) -> Iterator[str]:
    keys = yaml.safe_load(files["maxtext.yml"])
    yield from faults(keys, table("maxtext")["keys"], "maxtext.yml")
    job = ExportJob.of(run)
    yield from _said("MaxText", _maxtext_checks(keys, job), _maxtext_rows(keys, job))


def _size(keys: Mapping[str, Any], *axes: str) -> int:
    product = 1
    for axis in axes:
        product *= keys[f"ici_{axis}_parallelism"] * keys[f"dcn_{axis}_parallelism"]
    return product


def _maxtext_checks(keys: Mapping[str, Any], job: ExportJob) -> Checks:
    """base.yml (meshes), types.py (pipelines)."""
    inner = outer = 1
    for key, value in keys.items():
        inner *= value if key.startswith("ici_") else 1
        outer *= value if key.startswith("dcn_") else 1
    yield (inner, outer) == (max(job.per_node), job.nodes), "axes do not fill the nodes"
    stages = _size(keys, "pipeline")
    if stages > 1:
        yield keys["num_pipeline_microbatches"] % stages == 0, "micro-batches of the stages"
        each = keys["num_layers_per_pipeline_stage"]
        yield keys["pipeline_parallel_layers"] == each * stages, "pipelined layers"


def _maxtext_rows(keys: Mapping[str, Any], job: ExportJob) -> Rows:
    words, shape, details = job.words, job.transformer("MaxText"), job.details
    found = (_size(keys, "tensor", "tensor_sequence"), _size(keys, "pipeline"))
    yield "degrees", found, (words.tp, words.pp)
    yield "others", (_size(keys, "context"), _size(keys, "expert")), (words.cp, words.ep)
    samples = keys["per_device_batch_size"] * job.devices * keys["gradient_accumulation_steps"]
    yield "batch", samples, job.batch
    yield "sequence", keys["max_target_length"], job.question.workload.seq_len
    sizes = (shape.hidden_size, shape.num_hidden_layers, shape.num_attention_heads)
    names = ("base_emb_dim", "base_num_decoder_layers", "base_num_query_heads")
    yield "sizes", tuple(keys[name] for name in names), sizes
    yield "vocabulary", keys["vocab_size"], shape.vocab_size
    if details.norm_eps is not None:
        yield "epsilon", keys["normalization_layer_epsilon"], details.norm_eps
    if details.rope_theta is not None and shape.position == "rope":
        yield "rotary base", keys["rope_max_timescale"], details.rope_theta
    if shape.num_experts and details.scoring_func is not None:
        yield "router", keys["routed_score_func"], details.scoring_func


# --- Axolotl, LLaMA-Factory ----------------------------------------------------------------------------------


def axolotl(files: Files, run: Scenario) -> Iterator[str]:
    keys = yaml.safe_load(files["axolotl.yaml"])
    yield from faults(keys, table("axolotl")["keys"], "axolotl.yaml")
    job = ExportJob.of(run)
    rows = _trainer_rows(keys, files, job, "micro_batch_size")
    yield from _said("Axolotl", _axolotl_checks(keys, job), rows)


def _axolotl_checks(keys: Mapping[str, Any], job: ExportJob) -> Checks:
    """utils/schemas/validation.py; utils/distributed.py."""
    yield not ("deepspeed" in keys and "fsdp_config" in keys), "DeepSpeed with FSDP"
    yield keys.get("adapter") != "qlora" or keys["load_in_4bit"], "qlora without 4 bits"
    away = keys.get("activation_offloading", False)
    yield not away or keys["gradient_checkpointing"], "activation_offloading alone"
    cp = keys.get("context_parallel_size", 1)
    is_packed = keys["sample_packing"] and cp > 1
    yield not is_packed or keys["micro_batch_size"] == 1, "packed samples in micro-batches"
    if "fsdp_config" in keys:
        product = 1
        for size in ("dp_shard", "dp_replicate", "tensor_parallel", "context_parallel", "expert_parallel"):  # fmt: skip
            product *= keys.get(f"{size}_size", 1)
        yield product == job.devices, "the mesh does not hold every process"


def llama_factory(files: Files, run: Scenario) -> Iterator[str]:
    keys = yaml.safe_load(files["llama_factory.yaml"])
    yield from faults(keys, table("llama-factory")["keys"], "llama_factory.yaml")
    job = ExportJob.of(run)
    rows = _trainer_rows(keys, files, job, "per_device_train_batch_size")
    yield from _said("LLaMA-Factory", _factory_checks(keys), rows)
    if "accelerate.yaml" in files:
        form = table("accelerate")["keys"]
        yield from faults(yaml.safe_load(files["accelerate.yaml"]), form, "accelerate.yaml")


def _factory_checks(keys: Mapping[str, Any]) -> Checks:
    """hparams/parser.py, _verify_model_args; finetuning_args.py."""
    is_low = keys["finetuning_type"] == "lora"
    yield "quantization_bit" not in keys or is_low, "quantised weights without adapters"
    yield "lora_rank" not in keys or is_low, "lora_rank of full fine-tuning"


def _trainer_rows(keys: Mapping[str, Any], files: Files, job: ExportJob, micro: str) -> Rows:
    words = job.words
    yield "micro", keys[micro], job.micro
    ranks = job.devices // (words.tp * words.cp)
    yield "batch", keys[micro] * keys["gradient_accumulation_steps"] * ranks, job.batch
    if "deepspeed" in keys:
        own = json.loads(files["ds_config.json"])
        yield from faults_of(own)
        yield "stage", own["zero_optimization"]["stage"], words.zero
        same = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        found = (keys[micro], keys["gradient_accumulation_steps"])
        yield "batches of both files", tuple(own[name] for name in same), found
        rate = own.get("optimizer", {}).get("params", {}).get("lr", keys["learning_rate"])
        yield "learning rate of both files", rate, keys["learning_rate"]


def faults_of(document: Mapping[str, Any]) -> Rows:
    for fault in faults(document, table("deepspeed")["keys"], "ds_config.json"):
        yield "ds_config.json", fault, ""


READERS = {
    "torchtitan": torchtitan,
    "megatron-bridge": megatron_bridge,
    "maxtext": maxtext,
    "axolotl": axolotl,
    "llama-factory": llama_factory,
}
