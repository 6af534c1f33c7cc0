"""nanotron: its YAML configuration, and a script that starts `run_train.py` with it.

Keys as in src/nanotron/config/config.py, parallelism_config.py and models_config.py.
"""

from __future__ import annotations

from typing import Any

from foretrain.adapters.write.exported import yaml_text
from foretrain.adapters.write.job import Account, ExportJob
from foretrain.adapters.write.launching import torchrun_script
from foretrain.model.details import Details
from foretrain.model.shape import TransformerShape
from foretrain.plan.schedules import DEFAULT

TITLE = "nanotron"
ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
STEPS = 100  # a place to put a number: plans say nothing of it
LEARNING_RATE = 1e-4


def runtimes(job: ExportJob) -> tuple[str, ...]:
    return ("nanotron",)


def write(job: ExportJob, account: Account) -> dict[str, str]:
    shape = job.transformer(TITLE)
    seq = job.question.workload.seq_len
    document: dict[str, Any] = {
        "general": {"project": "foretrain", "run": job.question.workload.model.name, "seed": 42},
        "parallelism": _parallelism(job, account),
        "model": _model(job, account, shape),
        "tokenizer": {"tokenizer_name_or_path": "robot-test/dummy-tokenizer-wordlevel"},
        "optimizer": _optimizer(job, account),
        "tokens": {
            "batch_accumulation_per_replica": job.micro_batches,
            "micro_batch_size": job.micro,
            "sequence_length": seq,
            "train_steps": STEPS,
            "val_check_interval": -1,
            "limit_val_batches": 0,
            "limit_test_batches": 0,
        },
        "data_stages": [
            {
                "name": "Training",
                "start_training_step": 1,
                "data": {"dataset": None, "seed": 42, "num_loading_workers": 1},
            }
        ],
        "checkpoints": {"checkpoints_path": "checkpoints", "checkpoint_interval": STEPS},
        "logging": {
            "log_level": "info",
            "log_level_replica": "info",
            "iteration_step_info_interval": 1,
        },
    }
    account.says("micro")
    _never(account)
    config = yaml_text(document, job.title)
    return {"nanotron.yaml": config, "launch.sh": _launch(job, account)}


def _parallelism(job: ExportJob, account: Account) -> dict[str, Any]:
    words, runtime = job.words, job.question.runtime
    account.one_of(
        "schedule", ENGINES, "nanotron supports 1F1B and all-forward-all-backward; 1F1B is used"
    )
    if words.recompute == "full":
        account.says("recompute")
    account.cannot("recompute", "nanotron recomputes all layers fully or none; none is used")
    account.says("dp", "pp", "tp", "sp", "cp")
    account.ranks(("tp", "cp", "dp", "pp"), why="nanotron uses the rank order tp-cp-dp-pp")
    if words.exchange == "ring":
        account.says("exchange")
    account.cannot("exchange", "nanotron uses ring attention")
    return {
        "dp": job.dp,
        "pp": words.pp,
        "tp": words.tp,
        "context_parallel_size": words.cp,
        "expert_parallel_size": 1,
        "pp_engine": ENGINES.get(words.schedule or DEFAULT, ENGINES[DEFAULT]),
        "tp_mode": "REDUCE_SCATTER" if words.sp else "ALL_REDUCE",
        "tp_linear_async_communication": words.sp and runtime.tensor_parallel.tp_dgrad_overlap,
        "tp_recompute_allgather": runtime.tensor_parallel.regathers_sequence,
        "recompute_layer": words.recompute == "full",
    }


def _model(job: ExportJob, account: Account, shape: TransformerShape) -> dict[str, Any]:
    precision = job.question.workload.precision
    if precision.name not in DTYPES:
        account.note(
            f"precision {precision.name}: nanotron supports {', '.join(DTYPES)}; the "
            "closest wider one is used"
        )
    account.says("buckets")
    return {
        "dtype": DTYPES.get(precision.name, DTYPES.get(precision.attention, "float32")),
        "ddp_bucket_cap_mb": max(1, round(job.bucket_bytes / 2**20)),
        "make_vocab_size_divisible_by": job.question.runtime.plan.pads_vocabulary_to,
        "init_method": {"std": _spread(job, account)},
        "model_config": _model_config(job, account, shape),
    }


def _model_config(job: ExportJob, account: Account, shape: TransformerShape) -> dict[str, Any]:
    """A Llama; with experts or biases of attention a Qwen2, which has both."""
    is_qwen = bool(shape.num_experts) or shape.biases == "qkv" or bool(shape.sliding_window)
    seq = job.question.workload.seq_len or 1
    for line in _unlike(shape):
        account.note(
            f"{line}: not supported by nanotron's Llama and Qwen2; the closest option is used"
        )
    for line in _unlike_details(job.details, bool(shape.num_experts)):
        account.note(f"{line}: not supported by nanotron's Llama and Qwen2; left out")
    kind = "is_qwen2_config" if is_qwen else "is_llama_config"
    config: dict[str, Any] = {
        kind: True,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "intermediate_size": (shape.moe_intermediate_size if shape.num_experts else None)
        or shape.ffn,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": max(shape.max_position_embeddings or 0, seq),
        "attention_bias": shape.biases == "qkv",
        "tie_word_embeddings": shape.tie_word_embeddings,
        "vocab_size": shape.vocab_size,
        "initializer_range": _spread(job, account),
        "rms_norm_eps": account.either(job.details.norm_eps, 1e-5, "epsilon of norms"),
        "rope_theta": float(account.either(job.details.rope_theta, 10_000.0, "rotary base")),
        "rope_interleaved": False,
        "_attn_implementation": "ring" if job.words.cp > 1 else "flash_attention_2",
    }
    if shape.sliding_window:
        config["sliding_window_size"] = shape.sliding_window
    if shape.num_experts:
        dense = shape.dense_layers
        config["moe_config"] = {
            "num_experts": shape.num_experts,
            "top_k": shape.num_experts_per_tok or 1,
            "layers": list(range(dense, shape.num_hidden_layers)) if dense else [-1],
            "enable_shared_expert": bool(shape.num_shared_experts),
            "token_dispatcher_type": "alltoall",
        }
    return config


def _spread(job: ExportJob, account: Account) -> float:
    known = job.details.initializer_range
    return account.either(known, 0.02, "standard deviation of first weights")


def _unlike_details(details: Details, has_experts: bool) -> list[str]:
    """Its rotary embedding has a base alone, its router a softmax over the chosen experts (models/qwen.py, nn/moe.py)."""
    scaling, part = details.rope_scaling, details.partial_rotary_factor
    rows = (
        (scaling is not None, scaling.title if scaling else ""),
        (part not in (None, 1), f"rotary positions on {part or 0:.0%} of a head"),
        (has_experts and details.scoring_func == "sigmoid", "sigmoid scores of the router"),
        (has_experts and (details.n_group or 1) > 1, f"{details.n_group} groups of experts"),
        (details.bias_update_rate is not None, "balance by a bias of experts"),
    )
    return [line for holds, line in rows if holds]


def _unlike(shape: TransformerShape) -> list[str]:
    """What of a shape the models of nanotron do not have."""
    every = shape.sliding_window_every or 1
    usual = shape.hidden_size // shape.num_attention_heads
    rows = (
        (shape.norm != "rmsnorm", f"{shape.norm} norms"),
        (bool(shape.num_nextn_predict_layers), "multi-token prediction"),
        (shape.placement != "pre", f"{shape.placement} norm placement"),
        (shape.position != "rope", f"{shape.position} positions"),
        (shape.hidden_act != "silu-gated", f"activation {shape.hidden_act}"),
        (shape.biases == "all", "biases in all linear layers"),
        (shape.dropout > 0, f"dropout {shape.dropout:g}"),
        (shape.qk_norm, "query and key norms"),
        (shape.is_latent, "latent attention"),
        (not shape.is_latent and shape.head_width != usual, f"heads of width {shape.head_width}"),
        (bool(shape.sliding_window) and every > 1, "sliding-window attention in some layers only"),
        ((shape.num_shared_experts or 0) > 1, f"{shape.num_shared_experts} shared experts"),
        (shape.capacity_factor != 1.0, f"expert capacity {shape.capacity_factor:g}"),
        (shape.head != "lm", f"head type {shape.head}"),
        (shape.embedding_norm, "a norm after the embedding"),
    )
    return [line for holds, line in rows if holds]


def _optimizer(job: ExportJob, account: Account) -> dict[str, Any]:
    words, runtime, name = job.words, job.question.runtime, job.question.workload.optimizer.name
    if words.zero <= 1:
        account.says("zero")
    account.cannot("zero", "nanotron shards only optimizer states; zero1 is used")
    factory: dict[str, Any] = {
        "name": "adamW",
        "adam_beta1": 0.9,
        "adam_beta2": 0.95,
        "adam_eps": 1.0e-08,
        "torch_adam_is_fused": True,
    }
    if name in ("sgd", "plain-sgd"):
        factory = {"name": "sgd"}
        if name == "sgd":
            account.note("optimizer sgd: nanotron's SGD has no momentum")
    elif name not in ("adam", "adamw"):
        account.note(f"optimizer {name}: nanotron supports AdamW and SGD; AdamW is used")
    return {
        "zero_stage": min(words.zero, 1),
        "weight_decay": 0.01,
        "clip_grad": 1.0 if runtime.update.clips_gradients else None,
        "accumulate_grad_in_fp32": job.gradient_bytes == 4,
        "optimizer_factory": factory,
        "learning_rate_scheduler": {
            "learning_rate": LEARNING_RATE,
            "lr_warmup_steps": 2,
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
            "min_decay_lr": LEARNING_RATE / 10,
        },
    }


def _never(account: Account) -> None:
    account.cannot("vpp", "nanotron pipelines have one chunk per stage")
    account.cannot("layers", "nanotron places layers itself, by their FLOPs")
    account.cannot("ep", "this file does not set expert parallelism in nanotron")
    account.cannot("etp", "this file does not set expert parallelism in nanotron")
    account.cannot("shard", "nanotron shards over all replicas")
    account.cannot("offload", "nanotron does not support offload")
    account.cannot("tables", "nanotron does not shard recommender embedding tables")


def _launch(job: ExportJob, account: Account) -> str:
    before = [
        "export CUDA_DEVICE_MAX_CONNECTIONS=1",
        'NANOTRON="${NANOTRON:?set NANOTRON to a checkout of nanotron}"',
    ]
    command = ['"$NANOTRON/run_train.py" --config-file nanotron.yaml']
    return torchrun_script(job, account, command, before=before)
