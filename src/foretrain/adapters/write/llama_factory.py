"""LLaMA-Factory: its YAML arguments, what its Trainer runs on (DDP, FSDP2 by Accelerate, or DeepSpeed), and a script.

Keys as in llamafactory/hparams (model_args.py, data_args.py, finetuning_args.py, training_args.py) of LLaMA-Factory
0.9.5 and TrainingArguments of Transformers; the model and its numbers are the checkpoint's.
"""

from __future__ import annotations

from typing import Any

from foretrain.adapters.write import accelerate, finetuning
from foretrain.adapters.write.exported import yaml_text
from foretrain.adapters.write.finetuning import (
    DEEPSPEED,
    EVERYWHERE,
    LEARNING_RATE,
    STEPS,
    back_end,
)
from foretrain.adapters.write.job import Account, ExportJob
from foretrain.adapters.write.launching import shell_script

TITLE = "LLaMA-Factory"
CONFIG = "llama_factory.yaml"
ACCELERATE = "accelerate.yaml"
HAS_ADAPTERS = True
PRECISIONS: dict[str, dict[str, Any]] = {
    "bf16": {"bf16": True},
    "fp16": {"fp16": True},
    "fp8": {"bf16": True, "fp8": True},
    "tf32": {"tf32": True},
    "fp32": {"tf32": False},
}

runtimes = finetuning.runtimes


def write(job: ExportJob, account: Account) -> dict[str, str]:
    finetuning.expect_language_model(job, TITLE)
    kind, model = back_end(job), job.question.workload.model
    steps = finetuning.passes(job, account, TITLE)
    document: dict[str, Any] = {
        "model_name_or_path": model.name,
        "do_train": True,
        **_tuning(job, account),
        "dataset": "c4_demo",
        "template": "default",
        "cutoff_len": model.seq_len,
        "packing": True,
        "output_dir": "outputs",
        "per_device_train_batch_size": job.micro,
        "gradient_accumulation_steps": steps,
        "max_steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "optim": finetuning.optimizer(job, account, TITLE),
        **_numbers(job, account),
        **_activations(job, account, kind),
        "flash_attn": "sdpa" if job.question.runtime.kernels.attention == "flash" else "auto",
    }
    if job.question.workload.optimizer.name == "sgd":
        document["optim_args"] = "momentum=0.9"
    finetuning.lost(job, account, TITLE)
    files: dict[str, str] = {}
    if kind == "fsdp":
        files[ACCELERATE] = accelerate.write(job, account)[ACCELERATE]
    elif kind == "deepspeed":
        document["deepspeed"] = DEEPSPEED
        files[DEEPSPEED] = finetuning.deepspeed_text(job, account, steps)
    else:
        document |= _replicated(job, account)
    return {
        CONFIG: yaml_text(document, job.title),
        **files,
        "launch.sh": _launch(job, account, kind),
    }


def _tuning(job: ExportJob, account: Account) -> dict[str, Any]:
    found = finetuning.adapters(job, account)
    if found is None:
        return {"stage": "pt", "finetuning_type": "full"}
    low, is_quantised = found
    names = finetuning.modules(low)
    keys: dict[str, Any] = {
        "stage": "pt",
        "finetuning_type": "lora",
        "lora_rank": low.rank,
        "lora_alpha": 2 * low.rank,
        "lora_target": "all" if set(names) == set(EVERYWHERE) else ",".join(names),
    }
    if is_quantised:
        keys |= {"quantization_bit": 4, "quantization_method": "bnb", "quantization_type": "nf4"}
    return keys


def _numbers(job: ExportJob, account: Account) -> dict[str, Any]:
    name = job.question.workload.precision.name
    if name not in PRECISIONS:
        account.note(
            f"precision {name}: LLaMA-Factory supports {', '.join(PRECISIONS)}; bf16 is used"
        )
    return PRECISIONS.get(name, PRECISIONS["bf16"])


def _activations(job: ExportJob, account: Account, kind: str) -> dict[str, Any]:
    """Its own checkpointing is on unless turned off; with FSDP it is Accelerate's."""
    is_again = finetuning.recomputes(job, account, TITLE)
    if kind != "fsdp":
        if "activations" in job.words.offload:
            account.note("offload=activations: LLaMA-Factory supports it only with FSDP")
        if "optimizer" in job.words.offload and kind == "ddp":
            account.note("offload=optimizer: LLaMA-Factory supports it only with FSDP or DeepSpeed")
        account.says("offload")
    return {"disable_gradient_checkpointing": not is_again or kind == "fsdp"}


def _replicated(job: ExportJob, account: Account) -> dict[str, Any]:
    for name in ("tp", "cp", "exchange"):
        account.cannot(name, "LLaMA-Factory supports it only with FSDP (zero2, zero3)")
    for name in ("ep", "etp"):
        account.cannot(name, "LLaMA-Factory does not support expert parallelism")
    account.says("zero", "shard", "buckets")
    return {"ddp_bucket_cap_mb": max(1, round(job.bucket_bytes / 2**20))}


def _launch(job: ExportJob, account: Account, kind: str) -> str:
    model = 'model_name_or_path="$BASE_MODEL" "$@"'
    start = (
        (
            f'exec accelerate launch --config_file {ACCELERATE} --machine_rank "${{NODE_RANK:-0}}" \\',
            '    --main_process_ip "${MASTER_ADDR:-localhost}" --main_process_port "${MASTER_PORT:-29500}" \\',
            f"    -m llamafactory.launcher {CONFIG} {model}",
        )
        if kind == "fsdp"
        else (
            f'export NNODES="${{NNODES:-{job.nodes}}}" NODE_RANK="${{NODE_RANK:-0}}"',
            f'export NPROC_PER_NODE="${{NPROC_PER_NODE:-{max(job.per_node)}}}" FORCE_TORCHRUN=1',
            'export MASTER_ADDR="${MASTER_ADDR:-localhost}" MASTER_PORT="${MASTER_PORT:-29500}"',
            f"exec llamafactory-cli train {CONFIG} {model}",
        )
    )
    lines = ('BASE_MODEL="${BASE_MODEL:?set BASE_MODEL to a checkpoint of the model}"', *start)
    return shell_script(job, account, lines)
