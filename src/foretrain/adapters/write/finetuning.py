"""What Axolotl and LLaMA-Factory share: Hugging Face's Trainer on DDP, FSDP2 or DeepSpeed, of all weights or of adapters."""

from __future__ import annotations

import json

from foretrain.adapters.write import accelerate, deepspeed
from foretrain.adapters.write.job import Account, ExportJob
from foretrain.errors import ModelError
from foretrain.model.lora import Adapters, adapters_in

DEEPSPEED = "ds_config.json"
STEPS = 100  # places to put numbers: plans say nothing of them
LEARNING_RATE = deepspeed.LEARNING_RATE  # the Trainer compares both files
QUANTISED = 1.0  # bytes of a frozen weight below which it is kept in 4 bits
OPTIMIZERS = {
    "adam": "adamw_torch",
    "adamw": "adamw_torch",
    "sgd": "sgd",
    "plain-sgd": "sgd",
    "adagrad": "adagrad",
}
EVERYWHERE = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def back_end(job: ExportJob) -> str:
    """What shards the states: ZeRO-1 is DeepSpeed's alone; ZeRO-2 and ZeRO-3 are FSDP's too."""
    if job.words.zero == 1 or job.question.runtime.name in deepspeed.runtimes(job):
        return "deepspeed"
    return "fsdp" if job.words.zero else "ddp"


def runtimes(job: ExportJob, *own: str) -> tuple[str, ...]:
    """The presets of what shards the states; before them those of the target."""
    if back_end(job) == "deepspeed":
        return deepspeed.runtimes(job)
    known = accelerate.runtimes(job)
    return (*own, *known) if job.words.zero else known


def expect_language_model(job: ExportJob, title: str) -> None:
    model = job.question.workload.model
    if model.seq_len is None:
        raise ModelError(
            f"{title} fine-tunes language models; {model.name} is not one. Export to torchrun, deepspeed "
            "or accelerate, which take the model from a script."
        )


def passes(job: ExportJob, account: Account, title: str) -> int:
    """Micro-batches that a rank adds up, when lost degrees have become replicas."""
    words = job.words
    kept = {"fsdp": words.tp * words.cp, "deepspeed": words.tp, "ddp": 1}[back_end(job)]
    each = job.micro * (job.devices // kept)
    steps = max(1, round(job.batch / each))
    account.says("micro", "dp")
    if job.batch % each:
        account.note(
            f"batch {job.batch}: not divisible by micro-batch {job.micro} x {job.devices // kept} "
            f"replicas, which {title} uses for this plan; gradients are accumulated over "
            f"{steps} micro-batches"
        )
    return steps


def deepspeed_text(job: ExportJob, account: Account, steps: int) -> str:
    """DeepSpeed's file with the Trainer's batches, which must be the same (transformers/integrations/deepspeed.py): ranks of
    lost stages are replicas."""
    document = json.loads(deepspeed.write(job, account)[DEEPSPEED])
    document["gradient_accumulation_steps"] = steps
    if "train_batch_size" in document:
        document["train_batch_size"] = job.micro * steps * job.devices
    return json.dumps(document, indent=2) + "\n"


def lost(job: ExportJob, account: Account, title: str) -> None:
    """What the Trainer has no settings for."""
    account.cannot(
        "pp", f"{title} does not support pipeline parallelism; all ranks become replicas"
    )
    for name in ("vpp", "schedule", "layers"):
        account.cannot(name, f"{title} does not support pipeline parallelism")
    account.cannot("sp", "determined by the model's own tensor-parallel plan")
    account.cannot("tables", f"{title} does not shard recommender embedding tables")
    account.ranks(("tp", "cp", "dp"), why=f"{title} uses the rank order tp-cp-dp")


def recomputes(job: ExportJob, account: Account, title: str) -> bool:
    if job.words.recompute == "full":
        account.says("recompute")
    account.cannot("recompute", f"{title} recomputes whole layers or none; none is used")
    return job.words.recompute == "full"


def optimizer(job: ExportJob, account: Account, title: str) -> str:
    name = job.question.workload.optimizer.name
    if name not in OPTIMIZERS:
        account.note(
            f"optimizer {name}: {title} has AdamW, SGD and Adagrad of PyTorch; AdamW is used"
        )
    return OPTIMIZERS.get(name, "adamw_torch")


def adapters(job: ExportJob, account: Account) -> tuple[Adapters, bool] | None:
    """The adapters of the model, and whether frozen weights are kept in 4 bits; None where all weights are trained."""
    workload = job.question.workload
    if workload.model.trained_parameters == workload.model.parameters:
        return None
    found = adapters_in(workload.model)
    if found is None:
        raise ModelError(f"{workload.model.name} has frozen weights, but no low-rank adapters.")
    for name in found.targets:
        if name.startswith("linear_"):
            account.note(
                f"{name}: one adapter for several projections; PEFT has one for each, which has more "
                "weights"
            )
    stored = workload.precision.frozen_bytes
    is_quantised = stored is not None and stored < QUANTISED
    if stored is not None and not is_quantised and stored != workload.precision.weight_bytes:
        account.note(
            f"frozen weights of {stored:g} bytes: kept in the format of training, or in 4 bits"
        )
    return found, is_quantised


def modules(found: Adapters) -> list[str]:
    """PEFT's names of what has an adapter."""
    parts = {"linear_qkv": EVERYWHERE[:3], "linear_fc1": EVERYWHERE[4:6]}
    return [module for name in found.targets for module in parts.get(name, (name,))]
