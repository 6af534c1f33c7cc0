"""What Megatron-LM's arguments are called in Megatron Bridge: fields of a ConfigContainer, most of them under their own names.

As in megatron/bridge/training/config.py, training/comm_overlap.py, training/mixed_precision.py, models/gpt_provider.py
and Megatron Core's transformer_config.py (Megatron Bridge 0.3).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Argument: field. `!` before a field: a switch that turns it off. Others are `model.` and their own name.
FIELDS: Mapping[str, str] = {
    "micro-batch-size": "train.micro_batch_size",
    "global-batch-size": "train.global_batch_size",
    "vocab-size": "tokenizer.vocab_size",
    "tokenizer-type": "tokenizer.tokenizer_type",
    "num-experts": "model.num_moe_experts",
    "swiglu": "model.gated_linear_unit",
    "disable-bias-linear": "!model.add_bias_linear",
    "untie-embeddings-and-output-weights": "!model.share_embeddings_and_output_weights",
    "num-virtual-stages-per-pipeline-rank": "model.virtual_pipeline_model_parallel_size",
    "no-gradient-accumulation-fusion": "!model.gradient_accumulation_fusion",
    "use-tp-pp-dp-mapping": "dist.use_tp_pp_dp_mapping",
    "use-distributed-optimizer": "ddp.use_distributed_optimizer",
    "use-megatron-fsdp": "ddp.use_megatron_fsdp",
    "data-parallel-sharding-strategy": "ddp.data_parallel_sharding_strategy",
    "num-distributed-optimizer-instances": "ddp.num_distributed_optimizer_instances",
    "ckpt-format": "checkpoint.ckpt_format",
    "overlap-grad-reduce": "comm_overlap.overlap_grad_reduce",
    "overlap-param-gather": "comm_overlap.overlap_param_gather",
    "ddp-bucket-size": "comm_overlap.bucket_size",
    "tp-comm-overlap": "comm_overlap.tp_comm_overlap",
    "no-overlap-p2p-communication": "!comm_overlap.overlap_p2p_comm",
    "grad-reduce-in-bf16": "!mixed_precision.grad_reduce_in_fp32",
    "optimizer": "optimizer.optimizer",
    "sgd-momentum": "optimizer.sgd_momentum",
    "optimizer-cpu-offload": "optimizer.optimizer_cpu_offload",
    "optimizer-offload-fraction": "optimizer.optimizer_offload_fraction",
    "use-precision-aware-optimizer": "optimizer.use_precision_aware_optimizer",
    "norm-epsilon": "model.layernorm_epsilon",
    "use-rope-scaling": "model.rope_scaling",
    "rotary-seq-len-interpolation-factor": "model.seq_len_interpolation_factor",
}
# Switches whose fields are written whether they are given or not: what a recipe inherits has them on.
ALWAYS = (
    "sequence-parallel",
    "use-distributed-optimizer",
    "overlap-grad-reduce",
    "overlap-param-gather",
    "tp-comm-overlap",
    "cross-entropy-loss-fusion",
    "no-gradient-accumulation-fusion",
)
# What a recipe says by other means: presence of a field, a class, or nothing.
ELSEWHERE = (
    "group-query-attention", "mock-data", "max-position-embeddings", "squared-relu",
    "bf16", "fp16", "fp8-format", "fp8-recipe", "fp4-format", "fp4-recipe", "accumulate-allreduce-grads-in-fp32",
    "no-scatter-gather-tensors-in-pipeline",
)  # fmt: skip
# Recipes of mixed precision by what Megatron-LM's arguments say.
PRECISIONS: Mapping[str, str] = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}


def field_of(argument: str) -> tuple[str, bool]:
    """The field of an argument, and whether its switch turns it on."""
    path = FIELDS.get(argument, f"model.{argument.replace('-', '_')}")
    return path.removeprefix("!"), not path.startswith("!")


def argument_of(path: str) -> str:
    """The argument of a field."""
    known = {row.removeprefix("!"): name for name, row in FIELDS.items()}
    return known.get(path) or path.removeprefix("model.").replace("_", "-")


def value_of(argument: str, texts: Sequence[str]) -> Any:
    """What an argument's field is set to."""
    if argument == "recompute-modules":
        return list(texts)
    text = texts[0]
    if argument == "moe-layer-freq":
        return [int(kind) for kind, count in _RUNS.findall(text) for _ in range(int(count))]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def texts_of(argument: str, value: Any) -> list[str]:
    """An argument's values in place of its field's."""
    if argument == "recompute-modules":
        return [str(one) for one in value] if isinstance(value, list) else [str(value)]
    if argument == "moe-layer-freq" and isinstance(value, list):
        dense = sum(1 for kind in value if kind == 0)
        return [f"([0]*{dense}+[1]*{len(value) - dense})"]
    if isinstance(value, tuple):
        return [",".join(map(str, value))]
    if isinstance(value, list):
        return [str(value).replace(" ", "")]
    return [str(value)]


_RUNS = re.compile(r"\[([01])\]\*(\d{1,9})")
