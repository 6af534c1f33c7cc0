"""What files of Axolotl and LLaMA-Factory have in common: batches, adapters and optimizers of Hugging Face's Trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foretrain.adapters.read.launch import deepspeed
from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.settings import Settings, devices_of
from foretrain.adapters.write.finetuning import DEEPSPEED, OPTIMIZERS


def devices(files: Mapping[str, str]) -> int | None:
    """Of a launcher, or of the variables that LLaMA-Factory's reads."""
    for text in files.values():
        nodes = re.search(r'\bNNODES="?\$\{NNODES:-(\d{1,9})\}', text)
        each = re.search(r'\bNPROC_PER_NODE="?\$\{NPROC_PER_NODE:-(\d{1,9})\}', text)
        if nodes and each:
            return int(nodes[1]) * int(each[1])
    return next((found for text in files.values() if (found := devices_of(text))), None)


def optimizers(s: Settings, path: str) -> tuple[str, ...]:
    name = s.one_of(path, OPTIMIZERS.values(), "adamw_torch")
    if name == "sgd":
        return ("sgd",) if s.value("optim_args") else ("plain-sgd",)
    return tuple(word for word, own in OPTIMIZERS.items() if own == name)


def on_deepspeed(files: Mapping[str, str], launch: Launch) -> Launch:
    """With what DeepSpeed's own file says; the Trainer has no pipelines or experts, and says what is run again."""
    own = deepspeed.read({DEEPSPEED: files.get(DEEPSPEED, "{}")})
    plan: dict[str, Any] = {**own.plan, **launch.plan}
    return replace(
        launch,
        plan=plan,
        precision=own.precision,
        optimizers=own.optimizers or launch.optimizers,
        options=own.options,
    )


def batch(s: Settings, micro: int, each: int, ranks: int, world: int | None) -> int | None:
    """Samples of a step: of every rank that has its own."""
    return None if world is None else micro * each * s.shares(world, ranks, "devices")
