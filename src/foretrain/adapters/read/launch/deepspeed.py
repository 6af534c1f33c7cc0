"""DeepSpeed's JSON configuration. Pipelines, experts, sequences and what is run again are the training script's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.settings import Settings, json_settings
from foretrain.adapters.write.deepspeed import OPTIMIZERS

CONFIG = "ds_config.json"
SCRIPT = ("pp", "cp", "ep", "etp", "layers", "recompute")


def is_here(files: Mapping[str, str]) -> bool:
    return CONFIG in files or any('"zero_optimization"' in text for text in files.values())


def read(files: Mapping[str, str]) -> Launch:
    name = (
        CONFIG
        if CONFIG in files
        else next(f for f, text in files.items() if '"zero_optimization"' in text)
    )
    s = json_settings(files, name)
    tp = s.count("tensor_parallel.autotp_size", 1, 0) or 1
    plan: dict[str, Any] = {
        "tp": tp,
        "zero": s.count("zero_optimization.stage", 0, 0),
        "micro": s.optional("train_micro_batch_size_per_gpu"),
    }
    if plan["zero"]:
        elements = s.count("zero_optimization.reduce_bucket_size", 500_000_000)
        plan["buckets"] = elements * _gradient_bytes(s)
    if s.text("zero_optimization.offload_optimizer.device", "none") != "none":
        plan["offload"] = ("optimizer",)
    if s.switch("activation_checkpointing.cpu_checkpointing"):
        plan["offload"] = (*plan.get("offload", ()), "activations")
    devices = _devices(files)
    launch = Launch(
        plan=plan,
        script=SCRIPT,
        batch=s.optional("train_batch_size"),
        precision="bf16"
        if s.switch("bf16.enabled")
        else "fp16"
        if s.switch("fp16.enabled")
        else "fp32",
        optimizers=_optimizers(s),
        passes=s.optional("gradient_accumulation_steps"),
        options=_options(s, plan["zero"]),
        devices=devices,
    )
    s.close()
    return launch


def _options(s: Settings, zero: int) -> dict[str, Any]:
    options: dict[str, Any] = {
        "overlaps_gradients": s.switch("zero_optimization.overlap_comm", zero == 3) and zero > 0,
        "gradient_bytes": _gradient_bytes(s),
    }
    if zero:
        options["scatters_gradients"] = s.switch("zero_optimization.reduce_scatter", True)
    ahead = "zero_optimization.stage3_prefetch_bucket_size"
    if zero == 3 and s.count(ahead, 50_000_000, 0) == 0:
        options["prefetched_blocks"] = 0
    return options


def _gradient_bytes(s: Settings) -> float:
    low = s.switch("bf16.enabled") or s.switch("fp16.enabled")
    kept = s.one_of("data_types.grad_accum_dtype", ("fp32", "bf16", "fp16", ""), "")
    return 2.0 if low and kept != "fp32" else 4.0


def _optimizers(s: Settings) -> tuple[str, ...]:
    kind = s.text("optimizer.type")
    if not kind:
        return ()
    params = s.value("optimizer.params")
    params = params if isinstance(params, Mapping) else {}
    same = [name for name, row in OPTIMIZERS.items() if row["type"].lower() == kind.lower()]
    if kind == "SGD":
        same = ["sgd" if params.get("momentum") else "plain-sgd"]
    if kind == "Adam" and params.get("adam_w_mode", True):
        same = ["adamw"]
    if not same:
        s.faults.append(f"optimizer.type: {kind!r} is not one of {', '.join(OPTIMIZERS)}.")
    return tuple(same)


def _devices(files: Mapping[str, str]) -> int | None:
    for text in files.values():
        each = re.search(r"--num_gpus[ =](\d{1,9})", text)
        nodes = re.search(r"--num_nodes[ =](\d{1,9})", text)
        if each:
            return int(each[1]) * (int(nodes[1]) if nodes else 1)
    return None
