"""Accelerate's YAML configuration. The model and, without FSDP, what is run again are the training script's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.settings import Settings, yaml_settings

CONFIG = "accelerate.yaml"


def is_here(files: Mapping[str, str]) -> bool:
    return any(re.search(r"^distributed_type:", text, re.M) for text in files.values())


def read(files: Mapping[str, str]) -> Launch:
    name = next(
        (f for f, text in files.items() if re.search(r"^distributed_type:", text, re.M)), CONFIG
    )
    s = yaml_settings(files, name)
    devices = s.count("num_processes")
    script = "\n".join(text for file, text in files.items() if file != name)
    micro = re.search(r"--per_device_train_batch_size[ =](\d{1,9})", script)
    steps = re.search(r"ACCELERATE_GRADIENT_ACCUMULATION_STEPS:-(\d{1,9})", script)
    is_sharded = s.value("distributed_type") == "FSDP"
    plan: dict[str, Any] = _fsdp(s) if is_sharded else {"zero": 0}
    samples = None
    if micro and steps:
        plan["micro"] = int(micro[1])
        ranks = plan.get("tp", 1) * plan.get("cp", 1)
        samples = int(micro[1]) * int(steps[1]) * s.shares(devices, ranks, "num_processes")
    fp = s.one_of("mixed_precision", ("no", "fp16", "bf16", "fp8"), "no")
    launch = Launch(
        plan=plan,
        script=() if is_sharded else ("recompute",),
        batch=samples,
        precision="fp32" if fp == "no" else fp,
        devices=devices,
    )
    s.close()
    return launch


def _fsdp(s: Settings) -> dict[str, Any]:
    def size(name: str) -> int:
        return s.count(f"parallelism_config.parallelism_config_{name}_size")

    plan: dict[str, Any] = {
        "zero": 3 if s.switch("fsdp_config.fsdp_reshard_after_forward", True) else 2,
        "tp": size("tp"),
        "cp": size("cp"),
    }
    if size("dp_replicate") > 1:
        plan["shard"] = size("dp_shard") * size("cp")
    if s.switch("fsdp_config.fsdp_activation_checkpointing"):
        plan["recompute"] = "full"
    offload = (
        ("optimizer", "fsdp_offload_params"),
        ("activations", "fsdp_activation_checkpointing_offload"),
    )
    plan["offload"] = tuple(word for word, key in offload if s.switch(f"fsdp_config.{key}"))
    return plan
