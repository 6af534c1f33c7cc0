"""A recipe of Megatron Bridge, read as the arguments of Megatron-LM that its fields stand for. It is not run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from foretrain.adapters.read.launch import megatron
from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.python import CALLED, assigned
from foretrain.adapters.read.launch.settings import file_of
from foretrain.adapters.write.bridge_fields import PRECISIONS, argument_of, field_of, texts_of
from foretrain.adapters.write.megatron import PRECISIONS as ARGUMENTS_OF
from foretrain.adapters.write.megatron_bridge import RECIPE

# What a recipe says besides Megatron-LM's arguments, or once more.
_BESIDE = (
    "activation_func", "vocab_size", "should_pad_vocab", "pipeline_dtype", "attention_backend",
)  # fmt: skip
_SECTIONS = (
    "model",
    "train",
    "ddp",
    "dist",
    "optimizer",
    "checkpoint",
    "tokenizer",
    "comm_overlap",
)


def is_here(files: Mapping[str, str]) -> bool:
    return any("megatron.bridge" in text for name, text in files.items() if name.endswith(".py"))


def read(files: Mapping[str, str]) -> Launch:
    name = next(
        (n for n, t in files.items() if n.endswith(".py") and "megatron.bridge" in t), RECIPE
    )
    container = assigned(file_of(files, name), name).get("cfg")
    lines = list(_arguments(container if isinstance(container, dict) else {}))
    scripts = {file: text for file, text in files.items() if file.endswith(".sh")}
    return megatron.read({**scripts, megatron.ARGUMENTS: "".join(lines)})


def _arguments(container: Mapping[str, Any]) -> Iterator[str]:
    for section in _SECTIONS:
        values = container.get(section)
        if isinstance(values, Mapping):
            for key, value in values.items():
                yield from _line(section, key, value)
    model = container.get("model")
    model = model if isinstance(model, Mapping) else {}
    if model.get("num_query_groups"):
        yield "--group-query-attention\n"
    if str(model.get("activation_func")).endswith("squared_relu"):
        yield "--squared-relu\n"
    yield from _precision(container.get("mixed_precision"))


def _line(section: str, key: str, value: Any) -> Iterator[str]:
    if (key in (CALLED, *_BESIDE) and section == "model") or value is None:
        return
    argument = argument_of(f"{section}.{key}")
    path, is_on = field_of(argument)
    if path != f"{section}.{key}":  # Megatron-LM has no argument for it, or says it once
        return
    if isinstance(value, bool):
        if value is is_on:
            yield f"--{argument}\n"
    else:
        yield f"--{argument} {' '.join(map(shlex.quote, texts_of(argument, value)))}\n"


def _precision(said: Any) -> Iterator[str]:
    """Gradients are reduced as the recipe of mixed precision says, whatever else does."""
    name = said.get("0") if isinstance(said, Mapping) else said
    word = next((word for word, own in PRECISIONS.items() if own == name), "fp32")
    yield from (f"--{' '.join(row)}\n" for row in ARGUMENTS_OF[word])
    is_wide = said.get("grad_reduce_in_fp32", True) if isinstance(said, Mapping) else True
    if word not in ("fp32", "fp16"):
        yield "" if is_wide else "--grad-reduce-in-bf16\n"
        yield "--accumulate-allreduce-grads-in-fp32\n" if is_wide else ""
