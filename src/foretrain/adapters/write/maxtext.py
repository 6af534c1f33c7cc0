"""MaxText: a YAML configuration on top of its base.yml, and a script that starts pre-training with it.

Keys as in src/MaxText/configs/base.yml; policies of rematerialisation as in layers/decoders.py, get_remat_policy.
"""

from __future__ import annotations

from math import gcd
from typing import Any

from foretrain.adapters.write.exported import yaml_text
from foretrain.adapters.write.job import Account, ExportJob
from foretrain.adapters.write.launching import shell_script
from foretrain.adapters.write.maxtext_model import model_keys

TITLE = "MaxText"
CONFIG = "maxtext.yml"
EXCHANGES = {"ring": "ring", "all-gather": "all_gather"}
ATTENTIONS = {"cudnn": "cudnn_flash_te", "unfused": "dot_product"}
OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "plain-sgd": "sgd"}
# precision: format of activations, what products are quantised to
PRECISIONS = {"bf16": ("bfloat16", ""), "fp32": ("float32", ""), "fp8": ("bfloat16", "fp8")}
# What each policy runs again: all but the products it keeps. The last product of a layer is needed by no gradient.
POLICIES = {
    "minimal_with_context": "norm,elementwise",
    "minimal": "norm,elementwise,attention",
    "save_dot_with_context_except_mlp": "norm,elementwise,*fc1",
    "save_dot_except_mlp": "norm,elementwise,attention,*fc1",
    "save_qkv_proj": "norm,elementwise,attention,proj,*fc1",
    "full": "full",
}
# Axes of the mesh, from neighbouring devices outwards.
AXES = ("tensor", "tensor_sequence", "context", "expert", "fsdp", "data", "pipeline")
STEPS = 100  # places to put numbers: plans say nothing of them
LEARNING_RATE = 1e-4


def runtimes(job: ExportJob) -> tuple[str, ...]:
    return ("maxtext",)


def write(job: ExportJob, account: Account) -> dict[str, str]:
    shape = job.transformer(TITLE)
    document: dict[str, Any] = {
        "base_config": "base.yml",
        "run_name": "exported",
        "hardware": "gpu",
        "steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "dataset_type": "synthetic",
        "enable_checkpointing": False,
        **model_keys(job, account, shape),
        **_batch(job, account),
        **_mesh(job, account),
        **_pipeline(job, account),
        "remat_policy": _policy(job, account),
        **_numbers(job, account),
    }
    account.cannot("tables", "MaxText does not shard recommender embedding tables")
    account.cannot("buckets", "XLA decides which gradients are reduced together")
    account.ranks(
        ("tp", "cp", "dp", "pp"), why="MaxText orders axes tensor, context, data, pipeline"
    )
    return {CONFIG: yaml_text(document, job.title), "launch.sh": _launch(job, account)}


def _batch(job: ExportJob, account: Account) -> dict[str, Any]:
    """Samples per device of one pass of all micro-batches of a pipeline, or of one that is added up."""
    words = job.words
    account.says("micro", "dp")
    passes = 1 if words.pp > 1 else job.micro_batches
    return {
        "per_device_batch_size": job.batch / (job.devices * passes),
        "gradient_accumulation_steps": passes,
        "max_target_length": job.question.workload.seq_len,
    }


def _mesh(job: ExportJob, account: Account) -> dict[str, Any]:
    """Sizes of the axes: within nodes (ici), and over them (dcn)."""
    sizes = dict.fromkeys(AXES, 1) | _axes(job, account)
    left, inner = max(job.per_node), {}
    for axis in AXES:
        inner[axis] = gcd(sizes[axis], left)
        left //= inner[axis]
    if left > 1:
        account.note("axes that do not divide into nodes: MaxText's meshes fill every node")
    return {
        **{f"ici_{axis}_parallelism": inner[axis] for axis in AXES},
        **{f"dcn_{axis}_parallelism": sizes[axis] // inner[axis] for axis in AXES},
        "context_parallel_strategy": EXCHANGES[job.words.exchange],
        "shard_optimizer_over_data": job.words.zero in (1, 2),
    }


def _axes(job: ExportJob, account: Account) -> dict[str, int]:
    words = job.words
    experts = words.ep
    if job.dp % experts:
        account.cannot("ep", "MaxText's expert axis takes data-parallel replicas alone; 1 is used")
        experts = 1
    if words.etp not in (None, words.tp):
        account.cannot("etp", "MaxText splits experts over the same tensor axis as the rest")
    account.says("tp", "sp", "cp", "exchange", "pp", "ep", "etp")
    beside = [f"{name}{size}" for name, size in (("ep", experts), ("cp", words.cp)) if size > 1]
    if beside and words.zero < 3:
        account.note(
            f"{' '.join(beside)} without zero3: MaxText also shards weights over these axes"
        )
    if words.zero == 2:
        account.cannot(
            "zero", "MaxText shards weights (zero3) or optimizer states (zero1); zero1 is used"
        )
    account.says("zero")
    replicas = job.dp // experts
    shards = _shards(job, account, replicas, words.cp * experts)
    return {
        "tensor_sequence" if words.sp else "tensor": words.tp,
        "context": words.cp,
        "expert": experts,
        "fsdp": shards,
        "data": replicas // shards,
        "pipeline": words.pp,
    }


def _shards(job: ExportJob, account: Account, replicas: int, beside: int) -> int:
    """The axis of shards; `beside`: ranks of other axes that hold shards too."""
    words = job.words
    if words.zero < 3:
        account.cannot("shard", "MaxText shards optimizer states over all replicas")
        return 1
    parts = max(1, (words.shard or replicas * beside) // beside)
    if parts * beside != (words.shard or parts * beside) or replicas % parts:
        account.cannot("shard", "MaxText's groups of shards hold whole replicas; all shard")
        parts = replicas
    account.says("shard")
    return parts


def _pipeline(job: ExportJob, account: Account) -> dict[str, Any]:
    words, layers = job.words, job.transformer(TITLE).num_hidden_layers
    account.one_of(
        "schedule", ("gpipe",), "MaxText's pipelines run all forwards first; that is used"
    )
    account.cannot(
        "vpp", "circular pipelines of MaxText are another schedule; stages have one chunk"
    )
    account.cannot("layers", "every stage of MaxText has as many layers")
    if words.pp == 1:
        return {}
    if job.micro_batches % words.pp:
        account.note(
            f"{job.micro_batches} micro-batches: MaxText requires a multiple of the {words.pp} stages"
        )
    if layers % words.pp:
        account.note(
            f"{layers} layers on {words.pp} stages: MaxText pipelines a multiple of the stages; the "
            "layers that are left are replicated over them"
        )
    return {
        "num_layers_per_pipeline_stage": max(1, layers // words.pp),
        "pipeline_parallel_layers": layers // words.pp * words.pp,
        "num_pipeline_microbatches": job.micro_batches,
        "scan_layers": False,
    }


def _policy(job: ExportJob, account: Account) -> str:
    word = job.words.recompute or "none"
    asked = set(word.split(","))
    for policy, again in POLICIES.items():
        if asked == set(again.split(",")):
            account.says("recompute")
            return policy
    if word == "none":
        account.note(
            "no recomputation: MaxText recomputes norms and element-wise work at least; "
            "minimal_with_context is used"
        )
        return "minimal_with_context"
    if word == "selective" and job.question.runtime.plan.selective == "attention":
        account.cannot(
            "recompute", "MaxText recomputes norms and element-wise work too; minimal is used"
        )
        return "minimal"
    account.cannot("recompute", "MaxText has no such policy; full is used")
    return "full"


def _numbers(job: ExportJob, account: Account) -> dict[str, Any]:
    words, workload = job.words, job.question.workload
    name, kind = workload.precision.name, workload.optimizer.name
    if name not in PRECISIONS:
        account.note(
            f"precision {name}: MaxText on GPUs supports {', '.join(PRECISIONS)}; bf16 is used"
        )
    if kind not in OPTIMIZERS:
        account.note(f"optimizer {kind}: MaxText supports AdamW and plain SGD; AdamW is used")
    if "activations" in words.offload:
        account.note(
            "offload=activations: MaxText offloads single projections (qkv_proj_offloaded), which is "
            "another plan; none is offloaded"
        )
    account.says("offload")
    dtype, quantised = PRECISIONS.get(name, PRECISIONS["bf16"])
    return {
        "optimizer_memory_host_offload": "optimizer" in words.offload,
        "dtype": dtype,
        "weight_dtype": "float32",
        "grad_dtype": "float32" if job.gradient_bytes == 4 else "bfloat16",
        "quantization": quantised,
        "attention": ATTENTIONS.get(job.question.runtime.kernels.attention, "cudnn_flash_te"),
        "opt_type": OPTIMIZERS.get(kind, "adamw"),
        "gradient_clipping_threshold": 1.0 if job.question.runtime.update.clips_gradients else 0.0,
    }


def _launch(job: ExportJob, account: Account) -> str:
    """base.yml is looked for among MaxText's own configurations (pyconfig.py, _load_config)."""
    lines = (
        f'export NNODES="${{NNODES:-{job.nodes}}}" NODE_RANK="${{NODE_RANK:-0}}"',
        'export JAX_COORDINATOR_IP="${MASTER_ADDR:-localhost}" JAX_COORDINATOR_PORT="${MASTER_PORT:-29500}"',
        'MAXTEXT="${MAXTEXT:?set MAXTEXT to a checkout of MaxText}"',
        'export PYTHONPATH="$MAXTEXT/src${PYTHONPATH:+:$PYTHONPATH}"',
        f'exec python3 -m MaxText.train {CONFIG} base_output_directory="${{OUTPUT:-outputs}}" "$@"',
    )
    note = (
        f"Run this on each of the {job.nodes} nodes, with MASTER_ADDR the first node and "
        f"NODE_RANK 0 to {job.nodes - 1}."
    )
    return shell_script(job, account, lines, note if job.nodes > 1 else "")
