"""The arguments of the training script for data parallelism (`train.py` of the torchrun target)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.settings import (
    Settings,
    devices_of,
    file_of,
    flag_settings,
    flags,
    shell_words,
)

SCRIPT = "launch.sh"
MIB = 2**20


def is_here(files: Mapping[str, str]) -> bool:
    return "train.py" in files and "--global-batch" in files.get(SCRIPT, "")


def read(files: Mapping[str, str]) -> Launch:
    text = file_of(files, SCRIPT)
    words = shell_words(text, SCRIPT)
    after = words[words.index("train.py") + 1 :] if "train.py" in words else []
    s = flag_settings(flags([word for word in after if word != "$@"]), SCRIPT)
    zero = s.count("zero", 0, 0)
    plan: dict[str, Any] = {"zero": zero, "micro": s.optional("micro-batch")}
    if s.count("shard", 0, 0):
        plan["shard"] = s.count("shard")
    if zero < 2 and s.value("bucket-mb") is not None:
        plan["buckets"] = s.number("bucket-mb") * MIB
    plan["recompute"] = _recompute(s.text("recompute", "none"))
    offload = (("optimizer", "offload-state"), ("activations", "offload-activations"))
    plan["offload"] = tuple(word for word, flag in offload if s.switch(flag))
    kind = s.text("optimizer", "adamw")
    options = {"gradient_bytes": 4.0 if s.switch("reduce-fp32") else 2.0} if zero > 1 else {}
    launch = Launch(
        plan=plan,
        batch=s.optional("global-batch"),
        seq=s.optional("seq"),
        precision=s.text("precision", "bf16"),
        optimizers=(("sgd" if s.number("momentum") else "plain-sgd"),)
        if kind == "sgd"
        else (kind,),
        options=options,
        shape=_shape(s),
        devices=devices_of(text),
    )
    s.close()
    return launch


def _recompute(word: str) -> str:
    return word if word in ("none", "full", "attention") else f"full@{word}"


def _shape(s: Settings) -> dict[str, Any]:
    if s.value("hidden") is None:
        return {}
    act = s.text("activation", "silu")
    return {
        "hidden_size": s.count("hidden"),
        "num_hidden_layers": s.count("layers"),
        "num_attention_heads": s.count("heads"),
        "num_key_value_heads": s.count("kv-heads"),
        "intermediate_size": s.count("ffn"),
        "vocab_size": s.count("vocab"),
        "norm": s.text("norm", "rmsnorm"),
        "hidden_act": f"{act}-gated" if s.switch("gated") else act,
        "position": s.text("positions", "rope"),
        "tie_word_embeddings": s.switch("tied"),
    }
