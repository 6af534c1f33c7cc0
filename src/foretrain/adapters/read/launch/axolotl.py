"""Axolotl's YAML configuration. The model is the checkpoint's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.adapters.read.launch import finetuning
from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.settings import Settings, yaml_settings
from foretrain.adapters.write.axolotl import CONFIG, EXCHANGES
from foretrain.adapters.write.finetuning import EVERYWHERE
from foretrain.model.lora import Adapters

_MARK = "base_model:"


def is_here(files: Mapping[str, str]) -> bool:
    return any(_MARK in text and "micro_batch_size:" in text for text in files.values())


def read(files: Mapping[str, str]) -> Launch:
    name = next((n for n, text in files.items() if _MARK in text), CONFIG)
    s = yaml_settings(files, name)
    world = finetuning.devices(files)
    plan = _plan(s)
    micro, each = s.count("micro_batch_size"), s.count("gradient_accumulation_steps")
    launch = Launch(
        plan=plan | {"micro": micro},
        batch=finetuning.batch(s, micro, each, plan["tp"] * plan["cp"], world),
        seq=s.optional("sequence_len"),
        precision=_precision(s),
        optimizers=finetuning.optimizers(s, "optimizer"),
        devices=world,
        adapters=_adapters(s),
    )
    if s.value("deepspeed"):
        launch = finetuning.on_deepspeed(files, launch)
    s.close()
    return launch


def _plan(s: Settings) -> dict[str, Any]:
    cp, ep = s.count("context_parallel_size"), s.count("expert_parallel_size")
    plan: dict[str, Any] = {"tp": s.count("tensor_parallel_size"), "cp": cp, "ep": ep}
    is_again = s.switch("gradient_checkpointing") or s.switch(
        "fsdp_config.activation_checkpointing"
    )
    plan["recompute"] = "full" if is_again else "none"
    offload = ["activations"] if s.switch("activation_offloading") else []
    if cp > 1:
        way = s.one_of("ring_attn_func", EXCHANGES.values(), "batch_ring")
        plan["exchange"] = next(word for word, name in EXCHANGES.items() if name == way)
    if s.value("deepspeed"):
        return plan | ({"offload": tuple(offload)} if offload else {})
    plan["zero"] = 0
    if s.value("fsdp_config") is not None:
        plan["zero"] = 3 if s.switch("fsdp_config.reshard_after_forward", True) else 2
        if s.switch("fsdp_config.offload_params"):
            offload.insert(0, "optimizer")
        if s.count("dp_replicate_size") > 1:
            plan["shard"] = s.count("dp_shard_size") * cp * ep
    elif s.value("ddp_bucket_cap_mb") is not None:
        plan["buckets"] = s.count("ddp_bucket_cap_mb") * 2.0**20
    return plan | {"offload": tuple(offload)}


def _precision(s: Settings) -> str:
    if s.switch("fp8"):
        return "fp8"
    if s.switch("fp16"):
        return "fp16"
    if s.value("bf16") not in (False, None):
        return "bf16"
    return "tf32" if s.switch("tf32") else "fp32"


def _adapters(s: Settings) -> Adapters | None:
    if s.value("adapter") is None:
        return None
    names = s.value("lora_target_modules")
    if s.switch("lora_target_linear") or names == "all-linear" or not names:
        return Adapters(s.count("lora_r"), EVERYWHERE)
    return Adapters(
        s.count("lora_r"), tuple(map(str, names if isinstance(names, list) else [names]))
    )
