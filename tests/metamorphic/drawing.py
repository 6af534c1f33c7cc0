"""Questions drawn at random, each from a seed of its own: small models on any machines, under any stack and plan.

`drawn(7)` is always the same question. What the resolver refuses is drawn again; `test_draws.py` bounds how often.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from foretrain.cluster import Cluster
from foretrain.cluster.catalog import devices, nodes
from foretrain.errors import InputError
from foretrain.resolving import ask
from foretrain.simulate import Simulation, simulate_scenario

SEED = 20
MOST_TRIES = 60
MOST_DEVICES = 32
Words = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """A question by its number, and how many before it were refused."""

    number: int
    model: str | dict[str, Any]
    words: Words
    refused: int

    def __str__(self) -> str:
        """One line that asks the same."""
        return f"#{self.number}: predict({self.model!r}, {told(self.words)})"


def told(words: Words) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in words.items())


def drawn(number: int) -> tuple[Drawn, Simulation]:
    """Question `number`, and its step."""
    for refused in range(MOST_TRIES):
        rng = random.Random(f"{SEED}/{number}/{refused}")
        model, words = question(rng)
        try:
            simulated = simulate_scenario(ask(model, **words))
        except InputError:
            continue
        return Drawn(number, model, words, refused), simulated
    raise AssertionError(f"#{number}: {MOST_TRIES} draws in a row were refused")


# --- models ---------------------------------------------------------------------------------------


def _sizes(rng: random.Random) -> dict[str, Any]:
    heads = rng.choice((2, 4, 8))
    return {
        "num_hidden_layers": rng.choice((1, 2, 2, 3, 4)),
        "num_attention_heads": heads,
        "hidden_size": heads * rng.choice((32, 64, 128)),
        "vocab_size": rng.choice((1000, 4096, 32000, 50257)),
        "intermediate_size": rng.choice((256, 1024, 1376, 4096)),
    }


def _dense(rng: random.Random) -> Any:
    name = rng.choice(("llama3-8b", "gpt2", "mpt-125m", "qwen2.5-7b", "qwen3-0.6b", "mistral-7b", "nemotron4-15b"))  # fmt: skip
    sizes = _sizes(rng)
    if not name.startswith(("gpt2", "mpt")):
        sizes["num_key_value_heads"] = sizes["num_attention_heads"] // rng.choice((1, 2))
    return {"zoo": name, **sizes}


def _experts(rng: random.Random) -> Any:
    name = rng.choice(("mixtral-8x7b", "qwen3-30b-a3b"))
    more = {"num_experts": rng.choice((4, 8)), "num_experts_per_tok": rng.choice((1, 2))}
    if name != "mixtral-8x7b":
        more["moe_intermediate_size"] = rng.choice((128, 512))
    return {"zoo": name, **_sizes(rng), "num_key_value_heads": 2, **more}


def _latent(rng: random.Random) -> Any:
    sizes = _sizes(rng)
    kept = {"num_key_value_heads": sizes["num_attention_heads"], "kv_lora_rank": 64}
    widths = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
    return {"zoo": "deepseek-v2-lite", **sizes, **kept, **widths, **experts}


def _bert(rng: random.Random) -> Any:
    return {"zoo": rng.choice(("bert-base", "bert-large")), **_sizes(rng)}


def _named(*names: str) -> Callable[[random.Random], Any]:
    return lambda rng: rng.choice(names)


MODELS: dict[str, tuple[int, Callable[[random.Random], Any], tuple[int, ...]]] = {
    "dense": (12, _dense, (64, 128, 512, 1024)),
    "experts": (6, _experts, (64, 256)),
    "latent": (3, _latent, (64, 256)),
    "bert": (3, _bert, (128, 384, 512)),
    "t5": (1, _named("t5-small"), (64, 128)),
    "vit": (1, _named("vit-b"), ()),
    "cnn": (2, _named("resnet18", "resnet18-cifar", "alexnet", "vgg11"), ()),
    "recurrent": (1, _named("deepspeech2"), ()),
    "recommender": (1, _named("dlrm-small", "neumf"), ()),
}
"""Families: how often, how drawn, and sequence lengths to draw from."""


# --- machines -------------------------------------------------------------------------------------


@cache
def machines() -> tuple[str, ...]:
    """One of each kind of machine in the catalog."""
    found: dict[object, str] = {}
    for name, node in nodes().items():
        cards = node.nics and (node.nics.kind, node.nics.count, node.nics.bandwidth)
        found.setdefault((node.devices, node.interconnect, cards), name)
    return tuple(found.values())


NETWORKS = ("fat-tree(oversubscription=2, leaf_nodes=2)", "torus(dims=1)", "rail", "100GbE", "ring")


def _machine(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.15:
        return f"{rng.choice((1, 2, 4, 8))} x {rng.choice(list(devices()))}"
    name = rng.choice(machines())
    node = nodes()[name]
    count = rng.choice((1, 1, 2, 3, 4))
    while count > 1 and (node.nics is None or count * node.device_count > MOST_DEVICES):
        count -= 1
    if kind < 0.25 and count > 1:
        return f"{count} x {name} on {rng.choice(NETWORKS)}"
    if kind < 0.35 and node.device_count > 1:
        used = rng.choice([n for n in (1, 2, 4) if n < node.device_count])
        return {"nodes": [{"node": name, "count": count, "used": used}]}
    if kind < 0.4 and node.nics is not None:
        other = rng.choice([one for one in machines() if nodes()[one].nics is not None])
        return f"1 x {name} + 1 x {other}"
    return f"{count} x {name}"


# --- plans, stacks and the rest ---------------------------------------------------------------------

SPLIT_STACKS = ("megatron", "nemo", "nanotron", "megatron-2021", "megatron-deepspeed", "maxtext", "torchtitan", "deepspeed", "paddle", "alpa")  # fmt: skip
REPLICA_STACKS = ("ddp", "fsdp", "fsdp2", "horovod", "horovod-tf", "ddp-2020", "hf-eager", "composer", "deepspeed", "bluefog", "adaptdl", "oneflow")  # fmt: skip
SWITCHES: tuple[dict[str, Any], ...] = (
    {"attention": "unfused"}, {"attention": "flash"}, {"compile": True}, {"cuda_graphs": True},
    {"overlap_grad_reduce": False}, {"overlap_param_gather": True}, {"overlap_p2p": True},
    {"tp_comm_overlap": True}, {"grad_reduce_dtype": "fp32"}, {"bucket_cap_mb": 5},
    {"memory_format": "nhwc"}, {"moe_dispatcher": "allgather"}, {"scatter_gather": True},
)  # fmt: skip


def _divisor(rng: random.Random, count: int, most: int) -> int:
    return rng.choice([n for n in (1, 2, 4, 8) if count % n == 0 and n <= most])


def _plan(rng: random.Random, family: str, count: int) -> str:
    """Words of a plan for so many devices; most of what they say the resolver accepts."""
    words: list[str] = []
    left = count
    if family in ("dense", "experts", "latent", "bert") and count > 1:
        for axis, most in (("tp", 4), ("pp", 4), ("cp", 2 if family == "dense" else 1)):
            degree = _divisor(rng, left, most) if rng.random() < 0.5 else 1
            left //= degree
            if degree > 1:
                words.append(f"{axis}{degree}")
        if family in ("experts", "latent") and rng.random() < 0.5:
            words.append(f"ep{_divisor(rng, left, 4)}")
    words.append(f"dp{left}")
    if any(word.startswith("pp") for word in words) and rng.random() < 0.5:
        words.append(rng.choice(("gpipe", "1f1b", "zb-h1", "vpp2")))
    for chance, choices in (
        (0.4, ("zero0", "zero1", "zero2", "zero3")),
        (0.3, ("recompute=none", "recompute=selective", "recompute=full")),
        (0.15, ("sp", "no-sp")),
        (0.05, ("offload=optimizer", "offload=activations")),
    ):
        if rng.random() < chance:
            words.append(rng.choice(choices))
    return " ".join(words)


def question(rng: random.Random) -> tuple[Any, Words]:
    """A model and the other words of a question."""
    families = [name for name, (often, _, _) in MODELS.items() for _ in range(often)]
    family = rng.choice(families)
    _, make, lengths = MODELS[family]
    on = _machine(rng)
    words: Words = {"on": on}
    count = Cluster.of(on).device_count
    is_open = rng.random() < 0.12
    if not is_open:
        words["plan"] = _plan(rng, family, count)
    if lengths:
        words["seq"] = rng.choice(lengths)
    if not is_open or rng.random() < 0.5:
        words["batch"] = count * rng.choice((1, 2, 4, 8))
    if not is_open and rng.random() < 0.85:
        words["micro_batch"] = rng.choice((1, 1, 2))
    if rng.random() < 0.5:
        is_split = any(word in words.get("plan", "") for word in ("tp", "pp", "cp", "ep"))
        words["runtime"] = rng.choice(SPLIT_STACKS if is_split else REPLICA_STACKS)
    if rng.random() < 0.3:
        words["runtime_options"] = rng.choice(SWITCHES)
    if rng.random() < 0.3:
        words["precision"] = rng.choice(("fp32", "fp16", "bf16", "tf32", "fp8"))
    if rng.random() < 0.2:
        words["optimizer"] = rng.choice(("sgd", "adamw", "lamb"))
    if rng.random() < 0.1:
        words["headroom"] = rng.choice((0.0, 0.05, "1GiB"))
    return make(rng), words
