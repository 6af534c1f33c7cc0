"""Megatron-LM's arguments: `megatron_args.txt`, or the flags in a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.read.launch.megatron_model import model_shape
from foretrain.adapters.read.launch.settings import (
    Settings,
    devices_of,
    flag_settings,
    flags,
    shell_words,
)
from foretrain.adapters.write.megatron import MODULES, OPTIMIZERS, PRECISIONS

ARGUMENTS = "megatron_args.txt"
_STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


def is_here(files: Mapping[str, str]) -> bool:
    return any(
        "--tensor-model-parallel-size" in text or "--num-layers" in text for text in files.values()
    )


def read(files: Mapping[str, str]) -> Launch:
    given = {
        name: values
        for file, text in sorted(
            files.items(), reverse=True
        )  # the script first, what it names after it
        for name, values in flags(shell_words(text, file)).items()
    }
    s = flag_settings(given, ARGUMENTS)
    devices = next((found for text in files.values() if (found := devices_of(text))), None)
    shape = model_shape(s)
    plan = _plan(s, shape, devices)
    launch = Launch(
        plan=plan,
        batch=s.optional("global-batch-size"),
        seq=s.optional("seq-length"),
        precision=_precision(s),
        optimizers=_optimizers(s),
        options=_options(s, plan),
        shape=shape,
        devices=devices,
    )
    s.close()
    return launch


def _plan(s: Settings, shape: Mapping[str, Any], devices: int | None) -> dict[str, Any]:
    tp, pp = s.count("tensor-model-parallel-size"), s.count("pipeline-model-parallel-size")
    cp, ep = s.count("context-parallel-size"), s.count("expert-model-parallel-size")
    plan: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp, "ep": ep}
    etp = s.count("expert-tensor-parallel-size", tp)
    if ep > 1 and tp > 1 and etp != tp:
        plan["etp"] = etp
    plan["sp"] = s.switch("sequence-parallel") and tp > 1
    if cp > 1:
        ways = s.value("cp-comm-type") or "p2p"
        # "allgather" is how the help of --cp-comm-type spells it
        plan["exchange"] = "all-gather" if "gather" in str(ways) else "ring"
    parts = laid_out(s.text("pipeline-model-parallel-layout"))
    plan |= _stages(s, pp, parts)
    plan |= _state(s, tp * pp * cp, cp, devices)
    per_part = plan.get("layers") or _even(s, pp * plan["vpp"], shape)
    plan["recompute"] = _recompute(s, shape, per_part)
    if s.switch("optimizer-cpu-offload"):
        plan["offload"] = ("optimizer",)
    if s.switch("use-tp-pp-dp-mapping"):
        plan["order"] = ("tp", "cp", "pp", "dp")
    plan["micro"] = s.optional("micro-batch-size")
    return plan


def laid_out(layout: str) -> list[str]:
    """A layout as Megatron Core unrolls it: `t*3` is ttt, parts end at |."""
    parts = []
    for part in layout.split("|") if layout else ():
        text, out = part, ""
        while text:
            letter, rest = text[0], text[1:]
            digits = ""
            if rest.startswith("*"):
                digits = rest[1 : 1 + len(rest[1:]) - len(rest[1:].lstrip("0123456789"))]
                rest = rest[1 + len(digits) :]
            out += letter * min(int(digits[:6] or 1), 10_000)
            text = rest
        parts.append(out)
    return parts


def _stages(s: Settings, pp: int, parts: list[str]) -> dict[str, Any]:
    if parts:
        vpp = s.shares(len(parts), pp, "pipeline-model-parallel-layout")
        return {"vpp": vpp, "layers": tuple(part.count("t") for part in parts)}
    chunks = s.count("num-virtual-stages-per-pipeline-rank")
    each = s.optional("num-layers-per-virtual-pipeline-stage")
    layers = s.count("num-layers")
    if each:
        chunks = s.shares(layers, each * pp, "num-layers-per-virtual-pipeline-stage")
    first = s.optional("decoder-first-pipeline-num-layers")
    last = s.optional("decoder-last-pipeline-num-layers")
    if pp > 1 and (first or last) and chunks == 1:
        inner = pp - bool(first) - bool(last)
        rest = layers - (first or 0) - (last or 0)
        each = s.shares(rest, inner, "layers between the first and the last stage") if inner else 0
        ends = ((first,) if first else ()), ((last,) if last else ())
        return {"vpp": 1, "layers": (*ends[0], *[each] * inner, *ends[1])}
    return {"vpp": chunks if pp > 1 else 1}


def _even(s: Settings, parts: int, shape: Mapping[str, Any]) -> tuple[int, ...]:
    layers = int(shape.get("num_hidden_layers", 0))
    return (layers // parts,) * parts


def _state(s: Settings, model_ranks: int, cp: int, devices: int | None) -> dict[str, Any]:
    zero = 1 if s.switch("use-distributed-optimizer") else 0
    if s.switch("use-megatron-fsdp"):
        name = s.one_of("data-parallel-sharding-strategy", _STRATEGIES, "optim_grads_params")
        zero = _STRATEGIES[name]
    state: dict[str, Any] = {"zero": zero}
    copies = s.count("num-distributed-optimizer-instances")
    if copies > 1:
        if devices is None:
            s.faults.append(
                "num-distributed-optimizer-instances: the number of devices is not known."
            )
        else:
            replicas = s.shares(devices, model_ranks, "devices") * cp
            state["shard"] = s.shares(replicas, copies, "num-distributed-optimizer-instances")
    elements = s.optional("ddp-bucket-size")
    if elements:
        state["buckets"] = elements * _gradient_bytes(s)
    return state


def _gradient_bytes(s: Settings) -> float:
    low = s.switch("bf16") or s.switch("fp16")
    is_wide = s.switch("accumulate-allreduce-grads-in-fp32") or (
        s.switch("bf16") and not s.switch("grad-reduce-in-bf16")
    )
    return 4.0 if is_wide or not low else 2.0


def _recompute(s: Settings, shape: Mapping[str, Any], per_part: tuple[int, ...]) -> str:
    kind = s.text("recompute-granularity")
    if s.switch("recompute-activations") or kind == "selective":
        modules = s.value("recompute-modules") or ["core_attn"]
        names = [modules] if isinstance(modules, str) else list(modules)
        if names == ["core_attn"]:
            return "selective"
        return ",".join(dict.fromkeys(op for name in names for op in _ops(name, shape))) or "none"
    if kind != "full":
        return "none"
    if s.text("recompute-method", "uniform") == "uniform":
        return "full"
    first, start = s.count("recompute-num-layers"), 0
    again: list[int] = []
    for layers in per_part:
        again += range(start, start + min(first, layers))
        start += layers
    return "full" if len(again) == start else f"full@{','.join(map(str, again))}"


def _ops(module: str, shape: Mapping[str, Any]) -> list[str]:
    """Ops of a module that a layer of this model has."""
    has_experts, is_latent = bool(shape.get("num_experts")), "kv_lora_rank" in shape
    is_dense = not has_experts or bool(shape.get("first_dense_layers"))
    lacks = {
        "mlp": not is_dense,
        "mla_up_proj": not is_latent,
        "moe": not has_experts,
        "moe_act": not has_experts,
        "shared_experts": not shape.get("num_shared_experts"),
    }
    if lacks.get(module):
        return []
    ops = MODULES.get(module, ())
    no_shared = not shape.get("num_shared_experts")
    return [op for op in ops if not (op.startswith("shared_") and no_shared)]


def _precision(s: Settings) -> str:
    def has(row: tuple[str, ...]) -> bool:
        name, *values = row
        return s.switch(name) if not values else s.value(name) == values[0]

    rows = sorted(PRECISIONS.items(), key=lambda item: -len(item[1]))
    return next(name for name, row in rows if all(map(has, row)))


def _optimizers(s: Settings) -> tuple[str, ...]:
    kind = s.text("optimizer", "adam")
    momentum = s.number("sgd-momentum", 0.9)
    if kind == "sgd":
        return ("sgd",) if momentum else ("plain-sgd",)
    return tuple(name for name, rows in OPTIMIZERS.items() if rows[0] == ("optimizer", kind)) or (
        "adam",
    )


def _options(s: Settings, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Switches of the runtime, as far as they mean something beside this plan."""
    options: dict[str, Any] = {
        "overlaps_gradients": s.switch("overlap-grad-reduce"),
        "fuses_loss": s.switch("cross-entropy-loss-fusion"),
        "wgrad_accumulation_fusion": not s.switch("no-gradient-accumulation-fusion"),
        "gradient_bytes": _gradient_bytes(s),
        "pads_vocabulary_to": s.count("make-vocab-size-divisible-by", 128),
    }
    if plan["zero"]:
        options["overlaps_parameter_gather"] = s.switch("overlap-param-gather")
    if plan["sp"]:
        options["tp_comm_overlap"] = s.switch("tp-comm-overlap")
    if plan["vpp"] > 1:
        options["overlaps_pipeline"] = not s.switch("no-overlap-p2p-communication")
    if plan["pp"] > 1 and plan["tp"] > 1 and not plan["sp"]:
        options["scatters_pipeline"] = not s.switch("no-scatter-gather-tensors-in-pipeline")
    if s.value("num-experts"):
        options["groups_experts"] = s.switch("moe-grouped-gemm")
        options["sends_tokens_once"] = s.text("moe-token-dispatcher-type") == "flex"
    return options
