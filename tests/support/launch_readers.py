"""Exported files in the hands of those who will read them: the real parsers of DeepSpeed and Accelerate, the parser of the
training script, and what is recorded of Megatron-LM's and nanotron's. Each says what it refuses, and where what it
parsed is not the plan and the model that the files were read back as."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from foretrain.adapters.write.exported import Exported
from foretrain.adapters.write.job import ExportJob
from foretrain.scenario import Scenario
from support import megatron_reader
from support.published import faults as form_faults
from support.published import table


def judged(made: Exported, run: Scenario) -> list[str]:
    """What is wrong with files that run a scenario, by their own reader; empty: they are taken, and say what they should."""
    return list(READERS[made.target](made.files, run))


Rows = Iterator[tuple[str, Any, Any]]


def _unlike(rows: Rows) -> Iterator[str]:
    for what, parsed, meant in rows:
        if parsed != meant:
            yield f"{what}: parsed {parsed}, meant {meant}"


def megatron(files: Mapping[str, str], run: Scenario) -> Iterator[str]:
    try:
        args = megatron_reader.parse(files)
    except ValueError as error:
        yield f"Megatron-LM refuses: {error}"
        return
    yield from megatron_reader.refusals(args, run.cluster.device_count)
    yield from megatron_reader.differences(args, run)


# --- DeepSpeed --------------------------------------------------------------------------------------------


def deepspeed(files: Mapping[str, str], run: Scenario) -> Iterator[str]:
    """DeepSpeedConfig as deepspeed.initialize makes it: AutoTP has no model-parallel unit, a pipeline is one."""
    job = ExportJob.of(run)
    text = json.loads(files["ds_config.json"])
    try:
        parsed = deepspeed_config(text, job.devices, job.dp if job.words.pp > 1 else None)
    except Exception as error:  # whatever it raises, it does not start
        yield f"DeepSpeed refuses: {error}"
        return
    yield from form_faults(text, table("deepspeed")["keys"], "ds_config.json")
    if job.words.pp > 1 and parsed.zero_optimization_stage > 1:
        yield "DeepSpeed refuses: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"
    yield from _unlike(_of_deepspeed(parsed, text, job))


def deepspeed_config(document: Mapping[str, Any], world: int, replicas: int | None = None) -> Any:
    with quiet():
        from deepspeed.runtime import config

        unit = mock.Mock(get_data_parallel_world_size=lambda: replicas) if replicas else None
        ranks = mock.Mock(get_rank=lambda: 0, get_world_size=lambda: world)
        with mock.patch.object(config, "dist", ranks):
            return config.DeepSpeedConfig(dict(document), mpu=unit)


def _of_deepspeed(parsed: Any, text: Mapping[str, Any], job: ExportJob) -> Rows:
    words, workload = job.words, job.question.workload
    zero = parsed.zero_config
    yield "stage", int(parsed.zero_optimization_stage), words.zero
    yield "micro", parsed.train_micro_batch_size_per_gpu, job.micro
    yield "micro-batches", parsed.gradient_accumulation_steps, job.micro_batches
    if words.tp == 1:
        yield "batch", parsed.train_batch_size, job.batch
    yield "tp", max(1, parsed.tensor_parallel_config.autotp_size), words.tp
    low = workload.precision.attention if workload.precision.quantises else workload.precision.name
    yield "bf16", bool(parsed.bfloat16_config.enabled), low == "bf16"
    yield "fp16", bool(parsed.float16_config.enabled), low == "fp16"
    offload = zero.offload_optimizer is not None and zero.offload_optimizer.device == "cpu"
    yield "offload", offload, "optimizer" in words.offload and words.zero > 0
    if words.zero:
        elements = round(job.bucket_bytes / job.gradient_bytes)
        yield "bucket", abs(zero.reduce_bucket_size / elements - 1) < 0.01, True
    overlaps = job.question.runtime.gradients.overlaps_gradients
    yield "overlap", bool(zero.overlap_comm), overlaps and words.zero > 0 and words.pp == 1
    unread = set(text["zero_optimization"]) - READ_BY_STAGE[words.zero]
    yield f"keys that ZeRO-{words.zero} does not read", sorted(unread), []


# runtime/engine.py, _configure_zero_optimizer: what each stage's optimizer is given (of what is exported).
READ_BY_STAGE = {
    0: {"stage"},
    1: {
        "stage", "overlap_comm", "reduce_bucket_size", "reduce_scatter", "allgather_bucket_size",
        "offload_optimizer",
    },
    2: {
        "stage", "overlap_comm", "reduce_bucket_size", "reduce_scatter", "allgather_bucket_size",
        "offload_optimizer",
    },
    3: {
        "stage", "overlap_comm", "reduce_bucket_size", "reduce_scatter", "offload_optimizer",
        "stage3_prefetch_bucket_size",
    },
}  # fmt: skip


# --- Accelerate -------------------------------------------------------------------------------------------


def accelerate(files: Mapping[str, str], run: Scenario) -> Iterator[str]:
    """`accelerate launch` up to the environment of its processes, and what they make of that."""
    job = ExportJob.of(run)
    try:
        args, env, plugin, mesh = accelerated(files)
    except Exception as error:
        yield f"Accelerate refuses: {error}"
        return
    yield from form_faults(
        yaml.safe_load(files["accelerate.yaml"]), table("accelerate")["keys"], ""
    )
    yield from _unlike(_of_accelerate(args, env, plugin, mesh, job))


def accelerated(files: Mapping[str, str]) -> tuple[Any, dict[str, str], Any, Any]:
    with quiet(), tempfile.TemporaryDirectory() as folder:
        from accelerate.commands import launch
        from accelerate.parallelism_config import ParallelismConfig
        from accelerate.utils import FullyShardedDataParallelPlugin, dataclasses
        from accelerate.utils import launch as environment

        (Path(folder) / "accelerate.yaml").write_text(files["accelerate.yaml"])
        words = _launched(files["launch.sh"], Path(folder))
        args, _, _ = launch._validate_launch_command(
            launch.launch_command_parser().parse_args(words)
        )
        # which version of Transformer Engine and Transformers there is, is the machine's matter
        with mock.patch.object(environment, "is_fp8_available", return_value=True):
            env = environment.prepare_multi_gpu_env(args)
        kept = {k: v for k, v in env.items() if k.startswith(("FSDP", "ACCELERATE", "PARALLELISM"))}
        plugin = mesh = None
        with (
            mock.patch.dict(os.environ, kept),
            mock.patch.object(dataclasses, "compare_versions", return_value=True),
        ):
            if args.use_fsdp:
                plugin = FullyShardedDataParallelPlugin()
            if args.use_parallelism_config:
                mesh = ParallelismConfig()
    return args, kept, plugin, mesh


def _launched(script: str, folder: Path) -> list[str]:
    line = script[script.index("exec accelerate launch") :].replace("\\\n", " ")
    plain = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", line).replace('"$@"', "")
    words = shlex.split(plain)[3:]
    return [str(folder / word) if word == "accelerate.yaml" else word for word in words]


def _of_accelerate(
    args: Any, env: Mapping[str, str], plugin: Any, mesh: Any, job: ExportJob
) -> Rows:
    words = job.words
    yield "processes", args.num_processes, job.devices
    yield "machines", args.num_machines, job.nodes
    yield "FSDP", bool(args.use_fsdp), words.zero > 0
    steps = int(env.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 0)) or None
    yield "micro-batches", steps or job.micro_batches, job.micro_batches
    precision = job.question.workload.precision.name
    if precision in ("bf16", "fp16", "fp8"):
        yield "precision", env["ACCELERATE_MIXED_PRECISION"], precision
    if plugin is not None:
        yield "version", plugin.fsdp_version, 2
        yield "reshard", plugin.reshard_after_forward, words.zero == 3
        yield "checkpointing", plugin.activation_checkpointing, words.recompute == "full"
        host = type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy"
        yield "offload", host, "optimizer" in words.offload
    if mesh is not None:
        yield "ranks", mesh.total_size, job.devices
        yield "tp", mesh.tp_size, words.tp
        yield "cp", mesh.cp_size, words.cp
        shards = words.shard or job.dp * words.cp
        yield "shards", mesh.dp_shard_size * mesh.cp_size, shards


# --- the training script, nanotron ------------------------------------------------------------------------


def torchrun(files: Mapping[str, str], run: Scenario) -> Iterator[str]:
    job = ExportJob.of(run)
    space: dict[str, Any] = {"__name__": "train"}
    with quiet():
        exec(compile(files["train.py"], "train.py", "exec"), space)
    script = files["launch.sh"].replace("\\\n", " ")
    words = shlex.split(script[script.index("train.py ") :])[1:]
    errors = io.StringIO()
    try:
        with (
            mock.patch.object(sys, "argv", ["train.py", *(w for w in words if w != "$@")]),
            contextlib.redirect_stderr(errors),
        ):
            args = space["arguments"]()
    except SystemExit:
        yield f"train.py refuses: {errors.getvalue().strip()}"
        return
    if args.global_batch % (args.micro_batch * job.devices):
        yield "train.py refuses: --global-batch"
    yield from _unlike(_of_script(args, job))


def _of_script(args: Any, job: ExportJob) -> Rows:
    words, shape, details = job.words, job.shape, job.details
    yield "zero", args.zero, words.zero
    yield "shard", args.shard, words.shard or 0
    yield "micro", args.micro_batch, job.micro
    yield "batch", args.global_batch, job.batch
    yield "offload of state", args.offload_state, "optimizer" in words.offload
    if shape is not None:
        yield "hidden", args.hidden, shape.hidden_size
        yield "layers", args.layers, shape.num_hidden_layers
        yield "heads", (args.heads, args.kv_heads), (shape.num_attention_heads, shape.kv_heads)
        yield "vocabulary", args.vocab, shape.vocab_size
        yield "tied", args.tied, shape.tie_word_embeddings
        if details.norm_eps is not None:
            yield "epsilon", args.norm_eps, details.norm_eps
        if details.rope_theta is not None and shape.position == "rope":
            yield "rotary base", args.rope_base, details.rope_theta


def nanotron(files: Mapping[str, str], run: Scenario) -> Iterator[str]:
    """Its strict dataclasses as recorded, and the checks of Config and of the model's configuration."""
    document = yaml.safe_load(files["nanotron.yaml"])
    yield from form_faults(document, table("nanotron")["keys"], "nanotron.yaml")
    job = ExportJob.of(run)
    model, axes = document["model"]["model_config"], document["parallelism"]
    heads, groups = model["num_attention_heads"], model["num_key_value_heads"]
    tokens = document["tokens"]
    checks = (
        (heads % axes["tp"] == 0, "num_attention_heads must be divisible by tp"),
        (groups >= axes["tp"], "num_key_value_heads must be >= tp"),
        (heads % groups == 0, "num_attention_heads must be divisible by num_key_value_heads"),
        (
            "sliding_window_size" not in model or model["_attn_implementation"] != "ring",
            "a sliding window needs flash or flex attention",
        ),
        (model.get("is_llama_config") != model.get("is_qwen2_config"), "one kind of model"),
        (
            "moe_config" not in model
            or model["moe_config"]["top_k"] <= model["moe_config"]["num_experts"],
            "top_k cannot be greater than num_experts",
        ),
    )
    yield from (f"nanotron refuses: {what}" for holds, what in checks if not holds)
    yield from _unlike(_of_nanotron(model, axes, tokens, document, job))


def _of_nanotron(
    model: Mapping[str, Any], axes: Mapping[str, Any], tokens: Mapping[str, Any], document: Any, job: ExportJob
) -> Rows:  # fmt: skip
    words, shape, details = job.words, job.transformer("nanotron"), job.details
    found = tuple(axes[name] for name in ("dp", "pp", "tp", "context_parallel_size"))
    yield "degrees", found, (job.dp, words.pp, words.tp, words.cp)
    yield "micro", tokens["micro_batch_size"], job.micro
    yield "micro-batches", tokens["batch_accumulation_per_replica"], job.micro_batches
    yield "zero", document["optimizer"]["zero_stage"], words.zero
    yield "recompute", axes["recompute_layer"], words.recompute == "full"
    yield "hidden", model["hidden_size"], shape.hidden_size
    yield "layers", model["num_hidden_layers"], shape.num_hidden_layers
    yield "vocabulary", model["vocab_size"], shape.vocab_size
    if details.norm_eps is not None:
        yield "epsilon", model["rms_norm_eps"], details.norm_eps
    if details.rope_theta is not None:
        yield "rotary base", model["rope_theta"], details.rope_theta


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What other software says while it is imported and read is its own matter."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


READERS: dict[str, Callable[[Mapping[str, str], Scenario], Iterator[str]]] = {
    "megatron": megatron,
    "deepspeed": deepspeed,
    "torchrun": torchrun,
    "accelerate": accelerate,
    "nanotron": nanotron,
}
