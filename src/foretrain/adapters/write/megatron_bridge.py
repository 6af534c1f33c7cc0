"""Megatron Bridge (NeMo): a recipe in Python, and a script that starts it.

A recipe fills a ConfigContainer, whose fields are Megatron-LM's arguments under other names (`bridge_fields`): what is
said and what cannot be is as for Megatron-LM.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from foretrain.adapters.write import megatron
from foretrain.adapters.write.bridge_fields import (
    ALWAYS,
    ELSEWHERE,
    PRECISIONS,
    field_of,
    value_of,
)
from foretrain.adapters.write.job import Account, ExportJob
from foretrain.adapters.write.launching import SCRIPT, torchrun_script
from foretrain.adapters.write.python import keywords_text
from foretrain.errors import ModelError
from foretrain.model.shape import TransformerShape

TITLE = "Megatron Bridge"
RECIPE = "recipe.py"
ARGUMENTS = "megatron_args.txt"
STEPS = 100  # places to put numbers: plans say nothing of them
LEARNING_RATE = 1e-4

_HEAD = """# {title}: a recipe of Megatron Bridge
import torch
import torch.nn.functional as F
from megatron.bridge.models.{module} import {provider}
from megatron.bridge.recipes.common import _pretrain_common
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import ConfigContainer
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain
from megatron.core.activations import squared_relu
from megatron.core.transformer.enums import AttnBackend


def recipe() -> ConfigContainer:
    cfg = _pretrain_common()
"""
_TAIL = """    return cfg


if __name__ == "__main__":
    pretrain(recipe(), forward_step)
"""


class Written(str):
    """Python as it stands, in place of a literal."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def runtimes(job: ExportJob) -> tuple[str, ...]:
    return ("megatron-bridge", "nemo", "nemo-1", "megatron")


def write(job: ExportJob, account: Account) -> dict[str, str]:
    shape = job.transformer(TITLE)
    if shape.head != "lm" or not shape.causal:
        raise ModelError(
            f"{TITLE} pre-trains models that predict the next token; {job.question.workload.model.name} is "
            "not one. Export to megatron."
        )
    files = megatron.write(job, account)
    given = {
        words[0].removeprefix("--"): words[1:]
        for line in files[ARGUMENTS].splitlines()
        if (words := shlex.split(line))
    }
    if "no-scatter-gather-tensors-in-pipeline" in given:
        account.note(
            "pipeline transfers in whole tensors: Megatron Bridge splits them over tensor ranks"
        )
    if shape.position == "learned" and (shape.max_position_embeddings or 0) > (
        job.question.workload.seq_len or 1
    ):
        account.note("learned positions beyond the sequence: Megatron Bridge has as many as tokens")
    text = _recipe(job, shape, _fields(given, job, shape))
    return {RECIPE: text, SCRIPT: _launch(job, account)}


def _fields(
    given: Mapping[str, list[str]], job: ExportJob, shape: TransformerShape
) -> dict[str, dict[str, Any]]:
    """Values of every section of the container."""
    sections: dict[str, dict[str, Any]] = {"model": {}}
    for name, texts in given.items():
        if name not in ELSEWHERE:
            path, is_on = field_of(name)
            _put(sections, path, value_of(name, texts) if texts else is_on)
    for name in ALWAYS:
        if name not in given:
            path, is_on = field_of(name)
            _put(sections, path, not is_on)
    model, seq = sections["model"], job.question.workload.seq_len
    model["attention_backend"] = Written(f"AttnBackend.{model['attention_backend']}")
    model["vocab_size"] = shape.vocab_size
    model["should_pad_vocab"] = True
    if shape.hidden_act == "silu-gated":
        model["activation_func"] = Written("F.silu")
    elif shape.hidden_act == "squared-relu":
        model["activation_func"] = Written("squared_relu")
    if "pipeline-model-parallel-layout" in given and job.words.vpp > 1:
        model["virtual_pipeline_model_parallel_size"] = job.words.vpp
    if job.words.pp > 1:
        model["pipeline_dtype"] = Written(
            "torch.float32" if not _recipe_of(job) else "torch.bfloat16"
        )
    if "use-megatron-fsdp" in given:
        _put(sections, "dist.use_megatron_fsdp", True)
    _put(sections, "optimizer.use_distributed_optimizer", "use-distributed-optimizer" in given)
    _put(sections, "optimizer.lr", LEARNING_RATE)
    _put(sections, "train.train_iters", STEPS)
    _put(sections, "dataset.seq_length", seq)
    if "bf16" in given and "grad-reduce-in-bf16" not in given:
        _put(sections, "mixed_precision.grad_reduce_in_fp32", True)
    return sections


def _put(sections: dict[str, dict[str, Any]], path: str, value: Any) -> None:
    section, _, name = path.partition(".")
    sections.setdefault(section, {})[name] = value


def _recipe_of(job: ExportJob) -> str:
    return PRECISIONS.get(job.question.workload.precision.name, "")


def _recipe(job: ExportJob, shape: TransformerShape, sections: dict[str, dict[str, Any]]) -> str:
    provider, module = (
        ("MLAModelProvider", "mla_provider")
        if shape.is_latent
        else ("GPTModelProvider", "gpt_provider")
    )
    head = _HEAD.format(title=job.title, provider=provider, module=module)
    precision, overlap = sections.pop("mixed_precision", {}), sections.pop("comm_overlap")
    name = _recipe_of(job)
    made = Written(f'get_mixed_precision_config("{name}")') if name else None
    lines = [
        f"    cfg.model = {provider}(\n{keywords_text(sections.pop('model'), ' ' * 8)}    )\n",
        f"    cfg.comm_overlap = CommOverlapConfig(\n{keywords_text(overlap, ' ' * 8)}    )\n",
        f"    cfg.mixed_precision = {made!r}\n",
        *(
            f"    cfg.mixed_precision.{key} = {value!r}\n"
            for key, value in precision.items()
            if name
        ),
        *(
            f"    cfg.{section}.{key} = {value!r}\n"
            for section, values in sections.items()
            for key, value in values.items()
        ),
    ]
    return head + "".join(lines) + _TAIL


def _launch(job: ExportJob, account: Account) -> str:
    before = [] if job.words.zero > 1 else ["export CUDA_DEVICE_MAX_CONNECTIONS=1"]
    return torchrun_script(job, account, [RECIPE], before=before)
