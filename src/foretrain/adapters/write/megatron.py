"""Megatron-LM: command-line arguments, one per line, and a script that starts `pretrain_gpt.py` with them.

Arguments as in megatron/training/arguments.py and megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from foretrain.adapters.write.job import Account, ExportJob, is_even, parts_of, recomputed
from foretrain.adapters.write.launching import torchrun_script
from foretrain.adapters.write.megatron_details import detail_arguments
from foretrain.adapters.write.megatron_model import Arguments, model_arguments
from foretrain.plan.strategy import listed_recomputed, share_recomputed

TITLE = "Megatron-LM"
SCHEDULES = ("1f1b", "interleaved")
ORDERS = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))

# Where a script was before (pull request 4820 of May 2026).
MOVED = {"examples/bert/pretrain_bert.py": "pretrain_bert.py"}

# What --recompute-modules takes, and the ops of a layer each of them runs again.
MODULES = {
    "core_attn": ("attention",),
    "layernorm": ("ln1", "ln2"),
    "mlp": ("fc1", "act", "fc2"),
    "mla_up_proj": ("q_up", "kv_up", "rope"),
    "moe": (
        "router", "route", "dispatch", "experts_fc1", "experts_act", "experts_fc2", "combine",
        "shared_fc1", "shared_act", "shared_fc2", "shared_add",
    ),
    "shared_experts": ("shared_fc1", "shared_act", "shared_fc2"),
    "moe_act": ("experts_act",),
}  # fmt: skip


def runtimes(job: ExportJob) -> tuple[str, ...]:
    return (
        "megatron", "nemo", "megatron-bridge", "megatron-2024", "nemo-1", "megatron-2021",
        "accelerate-megatron",
    )  # fmt: skip


def write(job: ExportJob, account: Account) -> dict[str, str]:
    arguments = Arguments()
    script = model_arguments(job, account, arguments)
    detail_arguments(job.transformer(TITLE), job.details, account, arguments)
    _batch(job, account, arguments)
    _degrees(job, account, arguments)
    _pipeline(job, account, arguments)
    _state(job, account, arguments)
    _recompute(job, account, arguments)
    _offload(job, account, arguments)
    _habits(job, arguments)
    _numbers(job, account, arguments)
    return {"megatron_args.txt": arguments.text(), "launch.sh": _launch(job, account, script)}


def _launch(job: ExportJob, account: Account, script: str) -> str:
    # Megatron asks for one connection where tensors or sequences are split, and against it where weights are
    connections = [] if job.words.zero > 1 else ["export CUDA_DEVICE_MAX_CONNECTIONS=1"]
    before = [
        *connections,
        'MEGATRON="${MEGATRON:?set MEGATRON to a checkout of Megatron-LM}"',
        'export PYTHONPATH="$MEGATRON${PYTHONPATH:+:$PYTHONPATH}"',
        f'SCRIPT="$MEGATRON/{script}"',
    ]
    if script in MOVED:
        before.append(f'[ -f "$SCRIPT" ] || SCRIPT="$MEGATRON/{MOVED[script]}"')
    command = [
        '"$SCRIPT" $(cat megatron_args.txt)',
        '--train-iters "${TRAIN_ITERS:-100}" --lr "${LR:-1e-4}" --log-interval 1 --eval-iters 0',
    ]
    return torchrun_script(job, account, command, before=before)


def _batch(job: ExportJob, account: Account, arguments: Arguments) -> None:
    arguments.add("micro-batch-size", job.micro)
    arguments.add("global-batch-size", job.batch)
    account.says("micro", "dp")  # replicas are the ranks that the other degrees leave


def _degrees(job: ExportJob, account: Account, arguments: Arguments) -> None:
    words = job.words
    arguments.add("tensor-model-parallel-size", words.tp)
    arguments.add("pipeline-model-parallel-size", words.pp)
    if words.cp > 1:
        arguments.add("context-parallel-size", words.cp)
        arguments.add("cp-comm-type", "p2p" if words.exchange == "ring" else "all_gather")
    _sequences(job, account, arguments)
    if words.ep > 1 and job.question.workload.precision.attention == "fp16":
        account.cannot("ep", "Megatron-LM does not support expert parallelism in fp16")
    elif words.ep > 1:
        arguments.add("expert-model-parallel-size", words.ep)
        arguments.add("expert-tensor-parallel-size", _expert_tensor_degree(job))
    account.says("tp", "pp", "cp", "exchange", "sp", "ep", "etp")
    account.cannot("tables", "Megatron-LM does not shard recommender embedding tables")
    order = account.ranks(
        *ORDERS,
        why="Megatron-LM supports the rank orders tp-cp-dp-pp and tp-cp-pp-dp; the first is used",
    )
    if order == ORDERS[1]:
        arguments.add("use-tp-pp-dp-mapping")


def _sequences(job: ExportJob, account: Account, arguments: Arguments) -> None:
    words = job.words
    if words.tp == 1:
        return
    if words.sp:
        arguments.add("sequence-parallel")
    elif job.transformer(TITLE).num_experts:
        arguments.add("sequence-parallel")
        account.note(
            f"tp{words.tp} without sp: Megatron-LM requires sequence parallelism for experts "
            "with tensor parallelism; it is enabled"
        )


def _expert_tensor_degree(job: ExportJob) -> int:
    plan, words = job.question.plan, job.words
    over = {axis for cut in plan.root.split if "expert" in cut.dims for axis in cut.axes}
    tensor = {axis for cut in plan.root.split if "ffn" in cut.dims for axis in cut.axes}
    return 1 if over & tensor else words.tp


def _pipeline(job: ExportJob, account: Account, arguments: Arguments) -> None:
    words = job.words
    account.one_of(
        "schedule",
        SCHEDULES,
        "Megatron-LM runs 1F1B, or interleaved with virtual stages; that is used",
    )
    if words.pp == 1:
        account.says("layers", "vpp")
        return
    parts = parts_of(job)
    if parts is None:
        account.cannot("layers", "Megatron-LM places whole layers; some stages have less than one")
        account.cannot("vpp", "Megatron-LM places whole layers; some stages have less than one")
        account.note("stages with less than a layer: Megatron-LM places whole layers")
        return
    account.says("layers", "vpp")
    if not is_even(parts):
        arguments.add("pipeline-model-parallel-layout", "|".join(map(_counted, parts)))
    elif words.vpp > 1:
        arguments.add("num-virtual-stages-per-pipeline-rank", words.vpp)
    if words.vpp > 1 and not job.question.runtime.pipeline.overlaps_pipeline:
        if words.pp > 2:
            arguments.add("no-overlap-p2p-communication")
        else:
            account.note(
                "pipeline transfers not overlapped: Megatron-LM interleaves two stages only "
                "with overlapped transfers"
            )


def _counted(part: str) -> str:
    """`Ett…tL` as Megatron-LM writes runs: `Et*8L`."""
    layers = part.count("t")
    run = f"t*{layers}" if layers > 3 else "t" * layers
    return f"{'E' if 'E' in part else ''}{run}{'m' * part.count('m')}{'L' if 'L' in part else ''}"


def _state(job: ExportJob, account: Account, arguments: Arguments) -> None:
    """ZeRO-1 is the distributed optimizer; what goes further is Megatron FSDP."""
    words = job.words
    if words.zero:
        arguments.add("use-distributed-optimizer")
    if words.zero > 1:
        arguments.add("use-megatron-fsdp")
        strategy = "optim_grads" if words.zero == 2 else "optim_grads_params"
        arguments.add("data-parallel-sharding-strategy", strategy)
        arguments.add("ckpt-format", "fsdp_dtensor")
    if words.shard:
        arguments.add("num-distributed-optimizer-instances", job.dp * words.cp // words.shard)
    if words.buckets is not None:
        arguments.add("ddp-bucket-size", max(1, round(words.buckets / job.gradient_bytes)))
    account.says("zero", "shard", "buckets")


def _recompute(job: ExportJob, account: Account, arguments: Arguments) -> None:
    word = job.words.recompute
    if word in (None, "none"):
        return
    selective = job.question.runtime.plan.selective
    if word == "full":
        _full(arguments, "uniform", 1)
    elif share_recomputed(str(word)) is not None or listed_recomputed(str(word)) is not None:
        _some_layers(job, account, arguments)
    elif word == "selective" and selective != "attention":
        account.cannot(
            "recompute",
            f"selective means {selective} in runtime {job.question.runtime.name}; in "
            "Megatron-LM it recomputes core attention, so it is not enabled here",
        )
    else:
        names = ["attention"] if word == "selective" else str(word).split(",")
        _modules(job, account, arguments, names)
    account.says("recompute")


def _full(arguments: Arguments, method: str, layers: int) -> None:
    arguments.add("recompute-granularity", "full")
    arguments.add("recompute-method", method)
    arguments.add("recompute-num-layers", layers)


def _some_layers(job: ExportJob, account: Account, arguments: Arguments) -> None:
    """Megatron-LM recomputes the first n layers of every stage (and chunk)."""
    again = recomputed(job)
    counts = [sum(word == "full" for word in part) for part in again]
    if len(set(counts)) > 1:
        account.cannot(
            "recompute",
            f"Megatron-LM recomputes the same number of layers in every stage, not {counts}; "
            f"{max(counts)} is used",
        )
    elif any("none" in part[: counts[0]] for part in again):
        account.note(
            f"recompute={job.words.recompute}: Megatron-LM recomputes the first {counts[0]} "
            "layers of every stage, not those in the plan"
        )
    if max(counts):
        _full(arguments, "block", max(counts))


def _modules(job: ExportJob, account: Account, arguments: Arguments, names: list[str]) -> None:
    """The modules whose ops are all named; ops that make up no module are told."""
    model = job.question.workload.model
    inner = [op for block in model.blocks[1:-1] for op in block.ops]
    named = {
        op.name
        for op in inner
        for name in names
        if any(fnmatchcase(word, name.strip()) for word in (op.name, op.kind))
        or name.strip().endswith(f".{op.name}")
    }
    present = {op.name for op in inner}
    chosen: list[str] = []
    covered: set[str] = set()
    for module, members in MODULES.items():
        own = {op for op in members if op in present}
        if module == "moe_act" and not job.question.runtime.expert_parallel.groups_experts:
            continue  # Megatron-LM discards activations of grouped experts alone
        if module == "mla_up_proj" and "kv_up" not in present:
            continue  # a module of latent attention alone (transformer_config.py)
        if own and own <= named and not own <= covered:
            chosen.append(module)
            covered |= own
    if chosen:
        arguments.add("recompute-granularity", "selective")
        arguments.add("recompute-modules", *chosen)
    if named - covered:
        account.cannot(
            "recompute",
            f"Megatron-LM recomputes whole modules; {', '.join(sorted(named - covered))} "
            "are not recomputed",
        )


def _offload(job: ExportJob, account: Account, arguments: Arguments) -> None:
    words = job.words
    if "optimizer" in words.offload:
        if words.zero and job.question.workload.optimizer.name in ("adam", "adamw"):
            arguments.add("optimizer-cpu-offload")
            arguments.add("optimizer-offload-fraction", 1.0)
            arguments.add("use-precision-aware-optimizer")
        else:
            account.note(
                "offload=optimizer: Megatron-LM offloads only the distributed optimizer "
                "(zero1) with Adam"
            )
    if "activations" in words.offload:
        account.note(
            "offload=activations: Megatron-LM offloads whole layers or single modules, which is "
            "another plan; none is offloaded"
        )
    account.says("offload")


def _habits(job: ExportJob, arguments: Arguments) -> None:
    """What the runtime was predicted to do, where Megatron-LM has a switch for it."""
    runtime, words = job.question.runtime, job.words
    replicas = job.dp * words.cp
    backend = {"cudnn": "fused", "unfused": "unfused"}.get(runtime.kernels.attention, "flash")
    arguments.add("attention-backend", backend)
    if replicas > 1 and runtime.gradients.overlaps_gradients:
        arguments.add("overlap-grad-reduce")
        if words.zero and runtime.sharding.overlaps_parameter_gather:
            arguments.add("overlap-param-gather")
    if runtime.tensor_parallel.tp_comm_overlap and words.sp and words.tp > 1:
        arguments.add("tp-comm-overlap")
    if not runtime.pipeline.scatters_pipeline and words.pp > 1 and words.tp > 1 and not words.sp:
        arguments.add("no-scatter-gather-tensors-in-pipeline")
    if runtime.kernels.fuses_loss:
        arguments.add("cross-entropy-loss-fusion")
    if not runtime.gradients.wgrad_accumulation_fusion:
        arguments.add("no-gradient-accumulation-fusion")
    if job.question.workload.precision.attention == "bf16" and job.gradient_bytes == 2:
        arguments.add("grad-reduce-in-bf16")


PRECISIONS: dict[str, tuple[tuple[str, ...], ...]] = {
    "fp32": (),
    "fp16": (("fp16",),),
    "bf16": (("bf16",),),
    "fp8": (("bf16",), ("fp8-format", "hybrid"), ("fp8-recipe", "tensorwise")),
    "mxfp8": (("bf16",), ("fp8-format", "e4m3"), ("fp8-recipe", "mxfp8")),
    "nvfp4": (("bf16",), ("fp4-format", "e2m1"), ("fp4-recipe", "nvfp4")),
}
OPTIMIZERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "adam": (("optimizer", "adam"),),
    "adamw": (("optimizer", "adam"),),
    "sgd": (("optimizer", "sgd"), ("sgd-momentum", "0.9")),
    "plain-sgd": (("optimizer", "sgd"), ("sgd-momentum", "0.0")),
}


def _numbers(job: ExportJob, account: Account, arguments: Arguments) -> None:
    workload = job.question.workload
    if workload.precision.name not in PRECISIONS:
        account.note(
            f"precision {workload.precision.name}: Megatron-LM uses the torch setting; fp32 is used"
        )
    if workload.optimizer.name not in OPTIMIZERS:
        account.note(
            f"optimizer {workload.optimizer.name}: Megatron-LM supports Adam and SGD; Adam is used"
        )
    for row in PRECISIONS.get(workload.precision.name, ()):
        arguments.add(*row)
    for row in OPTIMIZERS.get(workload.optimizer.name, OPTIMIZERS["adam"]):
        arguments.add(*row)
    if job.gradient_bytes == 4 and workload.precision.gradient_bytes == 2:
        arguments.add("accumulate-allreduce-grads-in-fp32")
