"""Axolotl: its YAML configuration on DDP, FSDP2 or DeepSpeed, and a script that starts it.

Keys as in axolotl/utils/schemas (config.py, fsdp.py, peft.py, training.py) of Axolotl 0.19; the model and its numbers are the checkpoint's.
"""

from __future__ import annotations

from typing import Any

from foretrain.adapters.write import finetuning
from foretrain.adapters.write.exported import yaml_text
from foretrain.adapters.write.finetuning import DEEPSPEED, LEARNING_RATE, STEPS, back_end
from foretrain.adapters.write.job import Account, ExportJob
from foretrain.adapters.write.launching import shell_script

TITLE = "Axolotl"
CONFIG = "axolotl.yaml"
HAS_ADAPTERS = True
# ring_attn_func by how keys and values are exchanged; the second gathers them and takes packed samples.
EXCHANGES = {"ring": "batch_ring", "all-gather": "varlen_llama3"}
PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp8": {"bf16": True, "fp8": True},
    "tf32": {"bf16": False, "tf32": True},
    "fp32": {"bf16": False, "tf32": False},
}


def runtimes(job: ExportJob) -> tuple[str, ...]:
    return finetuning.runtimes(job, "axolotl")


def write(job: ExportJob, account: Account) -> dict[str, str]:
    finetuning.expect_language_model(job, TITLE)
    kind, model = back_end(job), job.question.workload.model
    steps = finetuning.passes(job, account, TITLE)
    document: dict[str, Any] = {
        "base_model": model.name,
        "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}],
        "output_dir": "./outputs",
        "sequence_len": model.seq_len,
        "sample_packing": kind == "fsdp" and _gathers(job),
        "pad_to_sequence_len": True,
        "micro_batch_size": job.micro,
        "gradient_accumulation_steps": steps,
        "max_steps": STEPS,
        "num_epochs": 1,
        "learning_rate": LEARNING_RATE,
        "optimizer": finetuning.optimizer(job, account, TITLE),
        **_numbers(job, account),
        **_adapters(job, account),
        **_activations(job, account, kind),
        "attn_implementation": "flash_attention_2",
    }
    if job.question.workload.optimizer.name == "sgd":
        document["optim_args"] = {"momentum": 0.9}
    finetuning.lost(job, account, TITLE)
    files: dict[str, str] = {}
    if kind == "fsdp":
        document |= _fsdp(job, account)
    elif kind == "deepspeed":
        _no_contexts(account)
        document |= _deepspeed(job)
        files[DEEPSPEED] = finetuning.deepspeed_text(job, account, steps)
    else:
        document |= _replicated(job, account)
    return {CONFIG: yaml_text(document, job.title), **files, "launch.sh": _launch(job, account)}


def _gathers(job: ExportJob) -> bool:
    """Keys and values are gathered for packed samples, of which there is one in a micro-batch (validation.py)."""
    return job.words.cp > 1 and job.words.exchange == "all-gather" and job.micro == 1


def _numbers(job: ExportJob, account: Account) -> dict[str, Any]:
    precision = job.question.workload.precision
    if precision.name not in PRECISIONS:
        account.note(
            f"precision {precision.name}: Axolotl supports {', '.join(PRECISIONS)}; bf16 is used"
        )
    return PRECISIONS.get(precision.name, PRECISIONS["bf16"])


def _adapters(job: ExportJob, account: Account) -> dict[str, Any]:
    found = finetuning.adapters(job, account)
    if found is None:
        return {}
    low, is_quantised = found
    return {
        "adapter": "qlora" if is_quantised else "lora",
        "load_in_4bit": is_quantised,
        "lora_r": low.rank,
        "lora_alpha": 2 * low.rank,
        "lora_dropout": 0.0,
        "lora_target_modules": finetuning.modules(low),
    }


def _activations(job: ExportJob, account: Account, kind: str) -> dict[str, Any]:
    is_again = finetuning.recomputes(job, account, TITLE)
    is_away = "activations" in job.words.offload
    if is_away and not is_again:
        account.note("offload=activations: Axolotl offloads activations only with recompute=full")
    if "optimizer" in job.words.offload and kind == "ddp":
        account.note("offload=optimizer: Axolotl supports it only with FSDP or DeepSpeed")
    account.says("offload")
    keys: dict[str, Any] = {"gradient_checkpointing": is_again and kind != "fsdp"}
    if is_away and is_again:
        keys |= {"gradient_checkpointing": True, "activation_offloading": True}
    return keys


def _fsdp(job: ExportJob, account: Account) -> dict[str, Any]:
    words = job.words
    account.says("zero", "tp", "cp")
    is_gathered = _gathers(job)
    if words.exchange == "ring" or is_gathered:
        account.says("exchange")
    account.cannot(
        "exchange",
        "Axolotl gathers keys and values only of micro-batches of one sample; ring is used",
    )
    account.cannot("buckets", "FSDP reduces per block")
    if "optimizer" in words.offload:
        account.note("offload=optimizer: FSDP also offloads weights and gradients")
    replicas = job.dp * words.pp  # ranks of lost stages train samples of their own
    experts = words.ep
    if replicas % experts:
        account.cannot("ep", "Axolotl's experts lie on data-parallel replicas alone; 1 is used")
        experts = 1
    shards = replicas // experts
    if words.shard:
        shards = max(1, words.shard // (words.cp * experts))
        if words.shard % (words.cp * experts) or replicas % (shards * experts) or shards == 1:
            account.cannot(
                "shard", "Axolotl's groups of shards hold several whole replicas; all shard"
            )
            shards = replicas // experts
    account.says("shard", "ep", "etp")
    keys: dict[str, Any] = {
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": words.zero == 3,
            "offload_params": "optimizer" in words.offload,
            "activation_checkpointing": words.recompute == "full"
            and "activations" not in words.offload,
            "state_dict_type": "SHARDED_STATE_DICT",
            "cpu_ram_efficient_loading": True,
        },
        "dp_shard_size": shards,
        "dp_replicate_size": max(1, replicas // (shards * experts)),
        "tensor_parallel_size": words.tp,
        "context_parallel_size": words.cp,
    }
    if words.cp > 1:
        keys["ring_attn_func"] = EXCHANGES["all-gather" if is_gathered else "ring"]
    if experts > 1:
        keys["plugins"] = ["axolotl.integrations.expert_parallel.ExpertParallelPlugin"]
        keys["expert_parallel_size"] = experts
    return keys


def _no_contexts(account: Account) -> None:
    for name in ("cp", "exchange", "ep", "etp"):
        account.cannot(name, "Axolotl supports it with FSDP (zero2, zero3), not with DeepSpeed")


def _deepspeed(job: ExportJob) -> dict[str, Any]:
    return {"deepspeed": DEEPSPEED, "tensor_parallel_size": job.words.tp}


def _replicated(job: ExportJob, account: Account) -> dict[str, Any]:
    for name in ("tp", "cp", "exchange", "ep", "etp"):
        account.cannot(name, "Axolotl supports it only with FSDP (zero2, zero3)")
    account.says("zero", "shard", "buckets")
    return {"ddp_bucket_cap_mb": max(1, round(job.bucket_bytes / 2**20))}


def _launch(job: ExportJob, account: Account) -> str:
    lines = (
        f'NNODES="${{NNODES:-{job.nodes}}}"',
        f'NPROC_PER_NODE="${{NPROC_PER_NODE:-{max(job.per_node)}}}"',
        'BASE_MODEL="${BASE_MODEL:?set BASE_MODEL to a checkpoint of the model}"',
        f'exec axolotl train {CONFIG} --launcher torchrun --base-model "$BASE_MODEL" "$@" -- \\',
        '    --nnodes "$NNODES" --nproc-per-node "$NPROC_PER_NODE" --node-rank "${NODE_RANK:-0}" \\',
        '    --master-addr "${MASTER_ADDR:-localhost}" --master-port "${MASTER_PORT:-29500}"',
    )
    return shell_script(job, account, lines)
