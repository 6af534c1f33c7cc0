"""Hugging Face Accelerate: its YAML configuration (DDP or FSDP), and a script that launches with it.

Keys as in accelerate/commands/config/config_args.py and commands/launch.py, and
https://huggingface.co/docs/accelerate/usage_guides/fsdp; the model is the training script's.
"""

from __future__ import annotations

from typing import Any

from foretrain.adapters.write.exported import yaml_text
from foretrain.adapters.write.job import Account, ExportJob
from foretrain.adapters.write.launching import shell_script

TITLE = "Accelerate"


def runtimes(job: ExportJob) -> tuple[str, ...]:
    return ("accelerate-fsdp", "fsdp2", "fsdp") if job.words.zero else ("ddp", "hf-eager")


def write(job: ExportJob, account: Account) -> dict[str, str]:
    is_sharded = job.words.zero > 0
    document: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if is_sharded else "MULTI_GPU" if job.devices > 1 else "NO",
        "mixed_precision": _precision(job, account),
        "num_machines": job.nodes,
        "num_processes": job.devices,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "use_cpu": False,
        "debug": False,
        "enable_cpu_affinity": False,
    }
    if job.question.workload.precision.quantises:
        document["fp8_config"] = {"backend": "TE"}
    if is_sharded:
        document["fsdp_config"] = _fsdp(job, account)
        sizes = _sizes(job, account)
        if sizes:
            document["parallelism_config"] = sizes
    else:
        _replicated(job, account)
    _never(job, account)
    steps = _steps(job, account)
    config = yaml_text(document, job.title)
    return {"accelerate.yaml": config, "launch.sh": _launch(job, account, steps)}


def _precision(job: ExportJob, account: Account) -> str:
    precision = job.question.workload.precision
    if precision.name in ("bf16", "fp16", "fp8"):
        return precision.name
    if precision.quantises:
        account.note(f"precision {precision.name}: Accelerate supports fp8, which is used")
        return "fp8"
    if precision.name != "fp32":
        account.note(f"precision {precision.name}: set through torch in the script; fp32 is used")
    return "no"


def _fsdp(job: ExportJob, account: Account) -> dict[str, Any]:
    words = job.words
    if words.zero > 1:
        account.says("zero")
    account.cannot("zero", "FSDP always shards gradients with optimizer states; zero2 is used")
    whole = words.recompute == "full"
    if whole:
        account.says("recompute")
    account.cannot(
        "recompute", "FSDP activation checkpointing covers whole blocks or none; none is used"
    )
    if "activations" in words.offload and not whole:
        account.note("offload=activations: Accelerate offloads activations only at checkpoints")
    if "optimizer" in words.offload:
        account.note("offload=optimizer: FSDP also offloads weights and gradients")
    account.says("offload")
    return {
        "fsdp_version": 2,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_reshard_after_forward": words.zero == 3,
        "fsdp_offload_params": "optimizer" in words.offload,
        "fsdp_activation_checkpointing": whole,
        "fsdp_activation_checkpointing_offload": whole and "activations" in words.offload,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
    }


def _sizes(job: ExportJob, account: Account) -> dict[str, Any]:
    """The mesh, where it is more than one group of shards."""
    words = job.words
    replicas = job.dp * words.pp  # ranks of lost stages train samples of their own
    shards = (words.shard or job.dp * words.cp) * (1 if words.shard else words.pp)
    if shards % words.cp:
        account.cannot(
            "shard", f"Accelerate's shard groups must contain whole groups of cp {words.cp}"
        )
        shards = replicas * words.cp
    if words.shard and shards == words.cp and replicas > 1:
        account.cannot("shard", "Accelerate shards over more than one replica or not at all")
        shards = replicas * words.cp
    account.says("tp", "cp", "shard")
    if words.exchange == "all-gather":
        account.says("exchange")
    account.cannot("exchange", "Accelerate supports all-gather of keys and values, or all-to-all")
    inner = shards // words.cp
    if words.tp == 1 and words.cp == 1 and inner == replicas:
        return {}
    config: dict[str, Any] = {
        "parallelism_config_dp_replicate_size": replicas // inner,
        "parallelism_config_dp_shard_size": inner,
        "parallelism_config_tp_size": words.tp,
        "parallelism_config_cp_size": words.cp,
    }
    if words.cp > 1:
        config["parallelism_config_cp_comm_strategy"] = "allgather"
    return config


def _replicated(job: ExportJob, account: Account) -> None:
    for name in ("tp", "cp", "exchange"):
        account.cannot(name, "Accelerate supports it only with FSDP (zero2, zero3)")
    account.cannot("recompute", "without FSDP, recomputation is set in the script")
    account.cannot("offload", "Accelerate supports offload only with FSDP (zero2, zero3)")
    account.says("zero", "shard")


def _never(job: ExportJob, account: Account) -> None:
    account.says("dp")
    account.cannot(
        "pp", "Accelerate does not support pipeline parallelism; all ranks become replicas"
    )
    for name in ("vpp", "schedule", "layers"):
        account.cannot(name, "Accelerate does not support pipeline parallelism")
    account.cannot("sp", "determined by the model's own tensor-parallel plan")
    for name in ("ep", "etp"):
        account.cannot(name, "Accelerate does not support expert parallelism")
    account.cannot("tables", "Accelerate does not shard embedding tables")
    account.cannot(
        "buckets",
        "set with DistributedDataParallelKwargs(bucket_cap_mb=…) in the script; FSDP "
        "reduces per block",
    )
    account.ranks(
        ("tp", "cp", "dp"),
        why="Accelerate uses the rank order tp-cp-dp",
    )


def _steps(job: ExportJob, account: Account) -> int:
    """Micro-batches a rank adds up, when lost degrees have become replicas."""
    words = job.words
    kept = words.tp * words.cp if words.zero else 1
    each = job.micro * (job.devices // kept)
    account.says("micro")
    if job.batch % each == 0:
        return job.batch // each
    account.note(
        f"batch {job.batch}: not divisible by micro-batch {job.micro} x {job.devices // kept} "
        "replicas, which Accelerate uses for this plan; gradients are accumulated over "
        f"{max(1, round(job.batch / each))} micro-batches"
    )
    return max(1, round(job.batch / each))


def _launch(job: ExportJob, account: Account, steps: int) -> str:
    lines = (
        f'export ACCELERATE_GRADIENT_ACCUMULATION_STEPS="${{ACCELERATE_GRADIENT_ACCUMULATION_STEPS:-{steps}}}"',
        "exec accelerate launch --config_file accelerate.yaml \\",
        '    --machine_rank "${NODE_RANK:-0}" --main_process_ip "${MASTER_ADDR:-localhost}" \\',
        '    --main_process_port "${MASTER_PORT:-29500}" \\',
        f'    "${{TRAIN_SCRIPT:-train.py}}" --per_device_train_batch_size {job.micro} "$@"',
    )
    note = "Accelerate counts micro-batches; the micro-batch size is an argument of the script."
    return shell_script(job, account, lines, note)
