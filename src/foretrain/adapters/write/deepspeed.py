"""DeepSpeed: its JSON configuration, and a script that starts a training script with it.

Keys as in https://www.deepspeed.ai/docs/config-json/ and deepspeed/runtime/config.py. The model and what changes its
code (pipelines, experts, checkpoints) are the training script's; the JSON has no words for them.
"""

from __future__ import annotations

import json
from typing import Any

from foretrain.adapters.write.job import Account, ExportJob
from foretrain.adapters.write.launching import shell_script

TITLE = "DeepSpeed"
SCHEDULES = ("1f1b",)  # what its pipelines run
LEARNING_RATE = 1e-4  # a place to put one: plans say nothing of it

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"type": "Adam", "params": {"lr": LEARNING_RATE, "adam_w_mode": False}},
    "adamw": {"type": "AdamW", "params": {"lr": LEARNING_RATE}},
    "lamb": {"type": "Lamb", "params": {"lr": LEARNING_RATE}},
    "adagrad": {"type": "Adagrad", "params": {"lr": LEARNING_RATE}},
    "sgd": {"type": "SGD", "params": {"lr": LEARNING_RATE, "momentum": 0.9}},
    "plain-sgd": {"type": "SGD", "params": {"lr": LEARNING_RATE}},
}
UNTESTED = ("sgd", "plain-sgd")  # torch's own, which ZeRO takes when told to


def runtimes(job: ExportJob) -> tuple[str, ...]:
    return ("deepspeed", "deepspeed-2021", "megatron-deepspeed")


def write(job: ExportJob, account: Account) -> dict[str, str]:
    document: dict[str, Any] = {
        **_batch(job),
        "train_micro_batch_size_per_gpu": job.micro,
        "gradient_accumulation_steps": job.micro_batches,
        **_numbers(job, account),
        "zero_optimization": _zero(job, account),
        **_tensor(job, account),
        **_activations(job, account),
    }
    account.says("micro", "dp")
    _script_only(job, account)
    text = json.dumps(document, indent=2) + "\n"
    return {"ds_config.json": text, "launch.sh": _launch(job, account)}


def _batch(job: ExportJob) -> dict[str, Any]:
    """DeepSpeedConfig counts ranks of AutoTP as replicas and refuses a batch that does not (runtime/config.py,
    _batch_assertion); it makes one of the other two numbers, which are right."""
    return {"train_batch_size": job.batch} if job.words.tp == 1 else {}


def _numbers(job: ExportJob, account: Account) -> dict[str, Any]:
    workload = job.question.workload
    config: dict[str, Any] = {}
    optimizer, precision = workload.optimizer.name, workload.precision
    if optimizer in OPTIMIZERS:
        config["optimizer"] = OPTIMIZERS[optimizer]
    else:
        account.note(f"optimizer {optimizer}: not built into DeepSpeed; the script must create it")
    if optimizer in UNTESTED and job.words.zero:
        config["zero_allow_untested_optimizer"] = True
    if precision.name in ("bf16", "fp16"):
        config[precision.name] = {"enabled": True}
    elif precision.quantises:
        config[precision.attention] = {"enabled": True}
        account.note(
            f"precision {precision.name}: DeepSpeed's JSON supports no lower GEMM precision "
            f"than {precision.attention}; the script's layers must implement it"
        )
    elif precision.name != "fp32":
        account.note(f"precision {precision.name}: set through torch in the script; fp32 is used")
    if precision.gradient_bytes == 2 and job.gradient_bytes == 4:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
        config["communication_data_type"] = "fp32"
    return config


def _zero(job: ExportJob, account: Account) -> dict[str, Any]:
    words, runtime = job.words, job.question.runtime
    gradients = runtime.gradients
    config: dict[str, Any] = {"stage": words.zero, **_overlap(job, account)}
    elements = max(1, round(job.bucket_bytes / job.gradient_bytes))
    if words.zero:
        config["reduce_bucket_size"] = elements
        config["reduce_scatter"] = gradients.scatters_gradients
        account.says("buckets")
    if words.zero in (1, 2):  # stage 3 gathers weights layer by layer
        config["allgather_bucket_size"] = elements
    if words.zero == 3 and not runtime.sharding.prefetched_blocks:
        config["stage3_prefetch_bucket_size"] = 0
    account.says("zero")
    account.cannot("buckets", "without ZeRO, DeepSpeed reduces 500,000,000 elements at once")
    account.cannot(
        "shard",
        "DeepSpeed shards over all replicas; zero_hpz_partition_size keeps a secondary copy of "
        "the weights per group instead, which is a different plan",
    )
    if "optimizer" in words.offload and words.zero:
        config["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    elif "optimizer" in words.offload:
        account.note(
            "offload=optimizer: DeepSpeed offloads optimizer states only with ZeRO (zero1 to zero3)"
        )
    return config


def _overlap(job: ExportJob, account: Account) -> dict[str, Any]:
    """Reductions beside the backward pass are the work of ZeRO's optimizers (runtime/engine.py, allreduce_gradients), which
    do without in pipelines (_configure_zero_optimizer)."""
    words, wants = job.words, job.question.runtime.gradients.overlaps_gradients
    if words.zero and words.pp == 1:
        return {"overlap_comm": wants}
    if wants and job.dp > 1:
        where = "in pipelines" if words.pp > 1 else "without ZeRO"
        account.note(
            f"gradient reductions beside the backward pass: {where} DeepSpeed reduces after it"
        )
    return {"overlap_comm": False} if words.zero else {}


def _tensor(job: ExportJob, account: Account) -> dict[str, Any]:
    words = job.words
    account.says("tp")
    account.cannot("sp", "DeepSpeed's AutoTP has no sequence parallelism")
    return {"tensor_parallel": {"autotp_size": words.tp}} if words.tp > 1 else {}


def _activations(job: ExportJob, account: Account) -> dict[str, Any]:
    words = job.words
    wants = "activations" in words.offload
    account.cannot(
        "recompute",
        "DeepSpeed's JSON configures activation checkpointing, but the script selects the "
        "blocks (deepspeed.checkpointing.checkpoint)",
    )
    if wants and words.recompute != "full":
        account.note("offload=activations: DeepSpeed offloads activations only at checkpoints")
    account.says("offload")
    if not wants or words.recompute != "full":
        return {}
    return {"activation_checkpointing": {"cpu_checkpointing": True}}


def _script_only(job: ExportJob, account: Account) -> None:
    stages = f"PipelineModule(num_stages={job.words.pp})"
    account.cannot("pp", f"pipelines are not set in the JSON; use {stages} in the script")
    account.cannot("vpp", "DeepSpeed pipelines have one chunk per stage")
    account.one_of("schedule", SCHEDULES, "DeepSpeed pipelines use 1F1B")
    account.cannot("layers", "set with PipelineModule(partition_method=…) in the script")
    account.cannot("cp", "DeepSpeed's sequence parallelism (Ulysses) is set up in the script")
    account.cannot("exchange", "DeepSpeed's sequence parallelism uses all-to-all (Ulysses)")
    account.cannot("ep", "set with deepspeed.moe.layer.MoE(ep_size=…) in the script")
    account.cannot("etp", "determined by the MoE layers in the script")
    account.cannot("tables", "DeepSpeed does not shard embedding tables")
    account.ranks(
        ("tp", "dp", "pp"),
        ("tp", "dp"),
        why="DeepSpeed orders ranks tensor-parallel first, then data-parallel, then pipeline",
    )
    if job.words.cp > 1:
        account.note(
            f"{job.dp} replicas: the batch sizes in the JSON assume this number; the script must "
            "create the groups of sequence parallelism, or DeepSpeed counts more and rejects the batch"
        )


def _launch(job: ExportJob, account: Account) -> str:
    nodes = f"--num_nodes {job.nodes} " if job.nodes > 1 else ""
    host = '--hostfile "${HOSTFILE:-hostfile}" ' if job.nodes > 1 else ""
    lines = (
        f"exec deepspeed {host}{nodes}--num_gpus {max(job.per_node)} \\",
        '    "${TRAIN_SCRIPT:-train.py}" --deepspeed --deepspeed_config ds_config.json "$@"',
    )
    note = "HOSTFILE lists the nodes, one 'name slots=devices' per line." if host else ""
    return shell_script(job, account, lines, note)
