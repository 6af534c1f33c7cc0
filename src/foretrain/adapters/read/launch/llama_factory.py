"""LLaMA-Factory's YAML arguments, and the file of Accelerate or DeepSpeed beside them. The model is the checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foretrain.adapters.read.launch import accelerate, finetuning
from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.settings import Settings, yaml_settings
from foretrain.adapters.write.finetuning import EVERYWHERE
from foretrain.adapters.write.llama_factory import ACCELERATE, CONFIG
from foretrain.model.lora import Adapters

_MARK = "finetuning_type:"


def is_here(files: Mapping[str, str]) -> bool:
    return any(_MARK in text for text in files.values())


def read(files: Mapping[str, str]) -> Launch:
    name = next((n for n, text in files.items() if _MARK in text), CONFIG)
    s = yaml_settings(files, name)
    micro = s.count("per_device_train_batch_size", 8)
    each = s.count("gradient_accumulation_steps")
    is_again = not s.switch("disable_gradient_checkpointing")
    plan: dict[str, Any] = {"micro": micro, "recompute": "full" if is_again else "none"}
    launch = Launch(
        plan=plan,
        seq=s.optional("cutoff_len"),
        precision=_precision(s),
        optimizers=finetuning.optimizers(s, "optim"),
        devices=finetuning.devices(files),
        adapters=_adapters(s),
    )
    if s.value("deepspeed"):
        launch = finetuning.on_deepspeed(files, launch)
    elif ACCELERATE in files:
        launch = _on_accelerate(files, launch)
    else:
        bucket = s.value("ddp_bucket_cap_mb")
        own = {"buckets": s.count("ddp_bucket_cap_mb") * 2.0**20} if bucket is not None else {}
        launch = replace(launch, plan={**plan, "zero": 0, **own})
    kept = launch.plan.get("tp", 1) * launch.plan.get("cp", 1)
    samples = finetuning.batch(s, micro, each, kept, launch.devices)
    s.close()
    return replace(launch, batch=samples)


def _on_accelerate(files: Mapping[str, str], launch: Launch) -> Launch:
    """What is run again is said by either file."""
    own = accelerate.read({ACCELERATE: files[ACCELERATE]})
    again = "full" in (own.plan.get("recompute"), launch.plan["recompute"])
    plan = {**own.plan, **launch.plan, "recompute": "full" if again else "none"}
    return replace(launch, plan=plan, devices=own.devices)


def _precision(s: Settings) -> str:
    for name in ("fp8", "fp16", "bf16", "tf32"):
        if s.switch(name):
            return name
    return "fp32"


def _adapters(s: Settings) -> Adapters | None:
    if s.text("finetuning_type", "lora") != "lora":
        return None
    names = s.text("lora_target", "all")
    targets = EVERYWHERE if names == "all" else tuple(name.strip() for name in names.split(","))
    return Adapters(s.count("lora_rank", 8), targets)
