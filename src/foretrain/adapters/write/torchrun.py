"""torchrun: a training script for data parallelism with PyTorch, and the command that starts it.

The script (`train.py.txt`) is the same for every plan; the plan is in the arguments. It replicates or shards the whole
model; what cuts inside it is refused.
"""

from __future__ import annotations

from pathlib import Path

from foretrain.adapters.write.job import Account, ExportJob, recomputed
from foretrain.adapters.write.launching import quoted, torchrun_script
from foretrain.model.details import Details
from foretrain.model.shape import TransformerShape
from foretrain.plan.strategy import listed_recomputed, share_recomputed

TITLE = "PyTorch (DDP and FSDP2)"
SCRIPT = Path(__file__).with_name("train.py.txt")
MIB = 2**20


def runtimes(job: ExportJob) -> tuple[str, ...]:
    return ("fsdp2", "fsdp") if job.words.zero > 1 else ("ddp", "hf-eager")


def write(job: ExportJob, account: Account) -> dict[str, str]:
    options = [
        *_model(job, account),
        *_batch(job, account),
        *_state(job, account),
        *_activations(job, account),
        *_numbers(job, account),
    ]
    _never(account)
    command = ["train.py", *(" ".join(map(quoted, option)) for option in options)]
    return {
        "train.py": SCRIPT.read_text(encoding="utf-8"),
        "launch.sh": torchrun_script(job, account, command),
    }


def _model(job: ExportJob, account: Account) -> list[tuple[object, ...]]:
    shape, name = job.shape, job.question.workload.model.name
    if shape is None:
        account.note(
            f"model: implement {name} in build_model; a small decoder is used as a placeholder"
        )
        return []
    unlike = [*_unlike(shape), *_unlike_details(job.details)]
    if unlike:
        account.note(
            f"model: implement {name} in build_model; a decoder of the same size, without "
            f"{', '.join(unlike)}, is used as a placeholder"
        )
    act = shape.hidden_act.removesuffix("-gated").removesuffix("-tanh")
    options: list[tuple[object, ...]] = [
        ("--hidden", shape.hidden_size, "--layers", shape.num_hidden_layers),
        ("--heads", shape.num_attention_heads, "--kv-heads", shape.kv_heads),
        ("--ffn", shape.ffn, "--vocab", shape.vocab_size),
        ("--seq", job.question.workload.seq_len, "--norm", shape.norm),
        ("--activation", act if act in ("silu", "gelu", "relu") else "gelu"),
        ("--positions", shape.position if shape.position in ("rope", "learned") else "none"),
        ("--norm-eps", account.either(job.details.norm_eps, 1e-5, "epsilon of norms")),
    ]
    if shape.position == "rope":
        base = account.either(job.details.rope_theta, 10_000.0, "rotary base")
        options.append(("--rope-base", float(base)))
    if shape.is_gated:
        options.append(("--gated",))
    if shape.tie_word_embeddings:
        options.append(("--tied",))
    return options


def _unlike(shape: TransformerShape) -> list[str]:
    """What of the model the script's decoder does not have."""
    usual = shape.hidden_size // shape.num_attention_heads
    rows = (
        (bool(shape.num_experts), "experts"),
        (bool(shape.num_nextn_predict_layers), "multi-token prediction"),
        (shape.is_latent, "latent attention"),
        (not shape.is_latent and shape.head_width != usual, "custom head width"),
        (shape.placement != "pre", f"{shape.placement} norm placement"),
        (bool(shape.sliding_window), "sliding-window attention"),
        (shape.dropout > 0, "dropout"),
        (shape.qk_norm, "query and key norms"),
        (shape.biases != "none", "biases"),
        (shape.position not in ("rope", "learned", "none"), f"{shape.position} positions"),
        (shape.hidden_act == "squared-relu", "squared activations"),
        (shape.head != "lm" or not shape.causal, "a masked-LM head"),
        (shape.embedding_norm, "a norm after the embedding"),
    )
    return [what for holds, what in rows if holds]


def _unlike_details(details: Details) -> list[str]:
    part, scaling = details.partial_rotary_factor, details.rope_scaling
    rows = (
        (part not in (None, 1), "rotary positions on a part of each head"),
        (scaling is not None, scaling.title if scaling else ""),
    )
    return [what for holds, what in rows if holds]


def _batch(job: ExportJob, account: Account) -> list[tuple[object, ...]]:
    account.says("dp", "micro")
    batch, each = job.batch, job.micro * job.devices
    if batch % each:
        near = max(1, round(batch / each)) * each
        account.note(
            f"batch {batch}: not divisible by micro-batch {job.micro} x {job.devices} "
            f"replicas, which this script uses for the plan; {near} is used"
        )
        batch = near
    return [("--global-batch", batch, "--micro-batch", job.micro)]


def _state(job: ExportJob, account: Account) -> list[tuple[object, ...]]:
    words = job.words
    options: list[tuple[object, ...]] = [("--zero", words.zero)]
    if words.shard:
        options.append(("--shard", words.shard))
    if words.zero < 2:
        options.append(("--bucket-mb", f"{job.bucket_bytes / MIB:g}"))
        account.says("buckets")
    account.cannot("buckets", "FSDP2 reduces gradients per block")
    account.says("zero", "shard")
    return options


def _activations(job: ExportJob, account: Account) -> list[tuple[object, ...]]:
    words = job.words
    options: list[tuple[object, ...]] = []
    again = _recompute(job, account)
    if again != "none":
        options.append(("--recompute", again))
    if "activations" in words.offload:
        options.append(("--offload-activations",))
    if "optimizer" in words.offload:
        if words.zero > 1:
            options.append(("--offload-state",))
            account.note("offload=optimizer: FSDP2 also offloads weights and gradients")
        else:
            account.note(
                "offload=optimizer: PyTorch supports offload only with FSDP (zero2, zero3)"
            )
    account.says("offload")
    return options


def _recompute(job: ExportJob, account: Account) -> str:
    word = job.words.recompute or "none"
    if word == "selective" and job.question.runtime.plan.selective == "attention":
        word = "attention"
    elif share_recomputed(word) is not None or listed_recomputed(word) is not None:
        layers = [choice for part in recomputed(job) for choice in part]
        numbers = [str(number) for number, choice in enumerate(layers) if choice == "full"]
        word = ",".join(numbers) or "none"
    elif word not in ("none", "full", "attention"):
        account.cannot(
            "recompute",
            "this script can recompute attention or whole layers only; recompute is off",
        )
        return "none"
    account.says("recompute")
    return word


def _numbers(job: ExportJob, account: Account) -> list[tuple[object, ...]]:
    workload = job.question.workload
    precision, optimizer = workload.precision, workload.optimizer.name
    if precision.quantises:
        account.note(
            f"precision {precision.name}: not supported natively by PyTorch; "
            f"{precision.attention} is used"
        )
    if optimizer not in ("adam", "adamw", "sgd", "plain-sgd", "adagrad"):
        account.note(f"optimizer {optimizer}: not available in PyTorch; AdamW is used")
    options: list[tuple[object, ...]] = [
        ("--precision", precision.attention if precision.quantises else precision.name)
    ]
    kinds = {"adam": "adam", "sgd": "sgd", "plain-sgd": "sgd", "adagrad": "adagrad"}
    options.append(("--optimizer", kinds.get(optimizer, "adamw")))
    if optimizer == "sgd":
        options.append(("--momentum", 0.9))
    if job.words.zero > 1 and job.gradient_bytes == 4:
        options.append(("--reduce-fp32",))
    return options


def _never(account: Account) -> None:
    lost = "not supported by this script; all ranks become replicas"
    for name in ("tp", "pp", "cp", "ep"):
        account.cannot(name, lost)
    account.cannot("sp", "this script has no tensor parallelism")
    account.cannot("etp", "this script has no expert parallelism")
    account.cannot("exchange", "this script has no context parallelism")
    for name in ("vpp", "schedule", "layers"):
        account.cannot(name, "this script has no pipeline parallelism")
    account.cannot("tables", "this script does not shard embedding tables")
    account.cannot("order", "rank order has no effect with data parallelism only")
