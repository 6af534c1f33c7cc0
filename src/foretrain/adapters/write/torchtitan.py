"""torchtitan v0.2.2: its TOML job configuration, the model as a module that it imports, and a launch script.

Keys as in torchtitan/config/job_config.py of v0.2.2, the last release that reads TOML. A configuration can only choose
among models that are registered, so `exported_model.py` registers one of this size (`experimental.custom_import`).
"""

from __future__ import annotations

from typing import Any

from foretrain.adapters.write.job import Account, ExportJob, is_even, parts_of, recomputed
from foretrain.adapters.write.launching import torchrun_script
from foretrain.adapters.write.toml import toml_text
from foretrain.adapters.write.torchtitan_model import MODULE, has_pipelines, model_module
from foretrain.plan.schedules import DEFAULT

TITLE = "torchtitan"
CONFIG = "torchtitan.toml"
SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zb-v": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
# How keys and values go round in context parallelism: with alltoall every rank sends its own to the next one
# (torch.distributed.tensor.experimental, _AllToAllRotater).
EXCHANGES = {"ring": "alltoall", "all-gather": "allgather"}
OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW"}
# The format of products, and the converter that goes lower (components/quantization).
PRECISIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "bf16": ("bfloat16", {}),
    "fp32": ("float32", {}),
    "fp8": ("bfloat16", {"float8": {"recipe_name": "tensorwise"}}),
    "mxfp8": ("bfloat16", {"mx": {"recipe_name": "mxfp8_cublas"}}),
}
STEPS = 100  # places to put numbers: plans say nothing of them
LEARNING_RATE = 1e-4


def runtimes(job: ExportJob) -> tuple[str, ...]:
    return ("torchtitan",)


def write(job: ExportJob, account: Account) -> dict[str, str]:
    shape = job.transformer(TITLE)
    stages = job.words.pp
    if stages > 1 and not has_pipelines(shape):
        account.cannot(
            "pp", "torchtitan's Qwen3 does not support pipelines; all stages become replicas"
        )
        stages = 1
    account.says("pp")
    name = job.question.workload.precision.name
    dtype, lower = PRECISIONS.get(name, PRECISIONS["bf16"])
    if name not in PRECISIONS:
        account.note(f"precision {name}: torchtitan supports {', '.join(PRECISIONS)}; bf16 is used")
    document: dict[str, Any] = {
        "job": {"dump_folder": "outputs"},
        "model": {
            "name": MODULE,
            "flavor": MODULE,
            "converters": [f"quantize.linear.{kind}" for kind in lower],
        },
        "optimizer": _optimizer(job, account),
        "training": {
            "dataset": "c4_test",
            "steps": STEPS,
            **_batch(job, account, stages),
            **_numbers(job, account),
            "mixed_precision_param": dtype,
        },
        "parallelism": {
            **_degrees(job, account, stages),
            **_experts(job, account, stages),
            **_pipeline(job, account, stages),
        },
        "activation_checkpoint": _recompute(job, account),
        "compile": {"enable": job.question.runtime.kernels.fuses_elementwise},
        "experimental": {"custom_import": MODULE},
    }
    if lower:
        document["quantize"] = {"linear": lower}
    account.cannot("tables", "torchtitan does not shard recommender embedding tables")
    account.cannot("buckets", "torchtitan reduces gradients per block")
    account.ranks(("tp", "cp", "dp", "pp"), why="torchtitan uses the rank order tp-cp-dp-pp")
    return {
        CONFIG: toml_text(document, job.title),
        f"{MODULE}.py": model_module(job, account, shape),
        "launch.sh": _launch(job, account),
    }


def _optimizer(job: ExportJob, account: Account) -> dict[str, Any]:
    name = job.question.workload.optimizer.name
    if name not in OPTIMIZERS:
        account.note(f"optimizer {name}: torchtitan supports Adam and AdamW; AdamW is used")
    return {"name": OPTIMIZERS.get(name, "AdamW"), "lr": LEARNING_RATE}


def _replicas(job: ExportJob, stages: int) -> int:
    return job.devices // (job.words.tp * job.words.cp * stages)


def _batch(job: ExportJob, account: Account, stages: int) -> dict[str, Any]:
    """A pipeline splits the local batch into its micro-batches; elsewhere local batches are added up."""
    account.says("micro", "dp")
    replicas, batch = _replicas(job, stages), job.batch
    local = job.micro * (job.micro_batches if stages > 1 else 1)
    if batch % (local * replicas):
        batch = max(1, round(batch / (local * replicas))) * local * replicas
        account.note(
            f"batch {job.batch}: not divisible by micro-batch {job.micro} x {replicas} replicas, "
            f"which torchtitan uses for this plan; {batch} is used"
        )
    return {
        "local_batch_size": local,
        "global_batch_size": batch,
        "seq_len": job.question.workload.seq_len,
    }


def _numbers(job: ExportJob, account: Account) -> dict[str, Any]:
    words = job.words
    if "optimizer" in words.offload:
        account.note("offload=optimizer: torchtitan also offloads weights and gradients")
    if "activations" in words.offload:
        account.note("offload=activations: torchtitan does not offload activations")
    account.says("offload")
    if job.gradient_bytes != 4:
        account.note("gradients reduced in 16 bit: torchtitan reduces them in fp32")
    return {
        "max_norm": 1.0,
        "enable_cpu_offload": "optimizer" in words.offload,
        "mixed_precision_reduce": "float32",
    }


def _degrees(job: ExportJob, account: Account, stages: int) -> dict[str, Any]:
    words, runtime = job.words, job.question.runtime
    replicas = _replicas(job, stages)
    if words.tp > 1 and not words.sp:
        account.note(
            f"tp{words.tp} without sp: torchtitan's tensor parallelism includes sequence "
            "parallelism; it is enabled"
        )
    account.says("tp", "sp", "cp", "exchange")
    shards = _shards(job, account, replicas, stages)
    return {
        "data_parallel_replicate_degree": replicas // shards,
        "data_parallel_shard_degree": shards,
        "fsdp_reshard_after_forward": "always" if words.zero == 3 else "never",
        "tensor_parallel_degree": words.tp,
        "enable_async_tensor_parallel": words.tp > 1 and runtime.tensor_parallel.tp_comm_overlap,
        "context_parallel_degree": words.cp,
        "context_parallel_rotate_method": EXCHANGES.get(words.exchange, "allgather"),
        "pipeline_parallel_degree": stages,
    }


def _shards(job: ExportJob, account: Account, replicas: int, stages: int) -> int:
    """Replicas that hold shards of one copy; contexts always do."""
    words = job.words
    is_plain = words.tp == words.cp == stages == 1
    if words.zero == 0 and is_plain:
        return 1
    if words.zero == 0 and replicas * words.cp > 1:
        account.note(
            "replicas without shards (zero0): torchtitan supports them only with nothing else"
        )
    if words.zero == 1 and stages == 1:
        account.cannot("zero", "torchtitan shards gradients with optimizer states; zero2 is used")
    if words.zero == 2 and stages > 1:
        account.cannot("zero", "in pipelines torchtitan keeps gradients whole; zero1 is used")
    account.says("zero")
    whole, parts = replicas * words.cp, words.shard or replicas * words.cp
    if parts % words.cp or whole % parts:
        account.cannot("shard", "torchtitan's groups of shards hold whole replicas; all shard")
        parts = whole
    account.says("shard")
    return max(1, parts // words.cp)


def _experts(job: ExportJob, account: Account, stages: int) -> dict[str, Any]:
    words = job.words
    account.says("ep", "etp")
    if words.ep == 1:
        return {}
    inner = 1 if words.etp == 1 else words.tp
    return {
        "expert_parallel_degree": words.ep,
        "expert_tensor_parallel_degree": inner,
        "expert_parallel_comm_backend": "deepep"
        if job.question.runtime.expert_parallel.sends_tokens_once
        else "standard",
    }


def _pipeline(job: ExportJob, account: Account, stages: int) -> dict[str, Any]:
    words = job.words
    if stages == 1:
        for name in ("schedule", "vpp", "layers"):
            account.cannot(name, "torchtitan's Qwen3 does not support pipelines")
        return {}
    kind = job.question.plan.schedule.kind
    account.one_of(
        "schedule",
        SCHEDULES,
        f"torchtitan supports {', '.join(SCHEDULES)}; {'interleaved' if words.vpp > 1 else DEFAULT} is used",
    )
    fallback = "interleaved" if words.vpp > 1 else DEFAULT
    parts = parts_of(job)
    if parts is None:
        for name in ("layers", "vpp"):
            account.cannot(name, "torchtitan places whole layers; some stages have less than one")
        account.note("stages with less than a layer: torchtitan places whole layers")
    account.says("layers", "vpp")
    return {
        "pipeline_parallel_schedule": SCHEDULES.get(kind, SCHEDULES[fallback]),
        "pipeline_parallel_microbatch_size": job.micro,
        **_placed(parts),
    }


def _placed(parts: tuple[str, ...] | None) -> dict[str, Any]:
    """Layers of the pieces of the model: as many in each, or all modules by name."""
    if parts is None:
        return {}
    if is_even(parts):
        return {
            "pipeline_parallel_layers_per_stage": parts[0].count("t"),
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    named: list[list[str]] = []
    layer = 0
    for part in parts:
        count = part.count("t")
        first, last = ["tok_embeddings"] * ("E" in part), ["norm", "output"] * ("L" in part)
        named.append([*first, *(f"layers.{layer + i}" for i in range(count)), *last])
        layer += count
    return {"module_fqns_per_model_part": named}


def _recompute(job: ExportJob, account: Account) -> dict[str, Any]:
    word, selective = job.words.recompute or "none", job.question.runtime.plan.selective
    again = recomputed(job)
    every = _every(again)
    if word == "none":
        return {"mode": "none"}
    if word == "selective" and selective == "products":
        account.says("recompute")
        return {"mode": "selective", "selective_ac_option": "op"}
    if every:
        account.says("recompute")
        mode = {"mode": "selective", "selective_ac_option": str(every)}
        return {"mode": "full"} if every == 1 else mode
    account.cannot(
        "recompute",
        "torchtitan recomputes whole layers (all, or every n-th of a stage) or what its selective "
        "mode decides; recompute is off",
    )
    return {"mode": "none"}


def _every(again: tuple[tuple[str, ...], ...]) -> int:
    """The n for which every n-th layer of every part is recomputed, and no other; 0 for none."""
    for n in range(1, max(map(len, again), default=0) + 1):
        wanted = [["full" if (i + 1) % n == 0 else "none" for i in range(len(p))] for p in again]
        if all(list(part) == want for part, want in zip(again, wanted, strict=True)):
            return n if any("full" in part for part in again) else 0
    return 0


def _launch(job: ExportJob, account: Account) -> str:
    before = [
        'TORCHTITAN="${TORCHTITAN:?set TORCHTITAN to a checkout of torchtitan v0.2.2}"',
        'export PYTHONPATH="$PWD:$TORCHTITAN${PYTHONPATH:+:$PYTHONPATH}"',
    ]
    assets = "$TORCHTITAN/tests/assets"
    command = [
        f"-m torchtitan.train --job.config_file {CONFIG}",
        f'--model.hf_assets_path "${{TOKENIZER:-{assets}/tokenizer}}"',
        f'--training.dataset_path "${{DATASET:-{assets}/c4_test}}"',
    ]
    return torchrun_script(job, account, command, before=before)
