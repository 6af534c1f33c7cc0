"""The questions of the gate: every model, stack, machine and precision, and plans of every kind, asked as a user asks.

Questions are drawn once and kept beside their answers (`answers.jsonl.xz`); this file says where they came from and
draws more of them (`python -m tests.gate --draw`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from foretrain.cluster import Cluster
from foretrain.cluster.catalog import devices, nodes
from foretrain.model import zoo
from foretrain.runtime import presets
from tests.metamorphic import drawing

SEED = 14
DRAWN = 1100
SMALL = {"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 8192}  # fmt: skip
FOUR_EXPERTS = {"num_key_value_heads": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}  # fmt: skip
FAMILIES: dict[str, Any] = {
    "dense": {"zoo": "llama3-8b", **SMALL, "num_key_value_heads": 4},
    "experts": {"zoo": "mixtral-8x7b", **SMALL, "num_key_value_heads": 4, "num_experts": 4},
    "latent": {"zoo": "deepseek-v2-lite", **SMALL, **FOUR_EXPERTS},
    "bert": {"zoo": "bert-large", **SMALL},
    "t5": "t5-small",
    "vit": "vit-b",
    "cnn": "resnet50",
    "recurrent": "gnmt",
    "recommender": "dlrm-small",
}
SPLIT = ("dp8 zero1", "tp2 pp2 dp2", "tp4 dp2 sp", "pp2 dp4 vpp2 zero1", "cp2 dp4 zero3", "pp4 dp2 gpipe recompute=full")  # fmt: skip
EXPERTS = ("ep4 dp8", "tp2 ep2 dp4 zero1", "pp2 ep4 dp4 zero1", "pp2 dp4 zb-h1")
REPLICAS = ("dp8", "dp8 zero1", "dp8 zero2", "dp8 zero3")
MACHINES = ("1 x dgx-h100", "2 x aws:p3.8xlarge", "2 x aws:p4d.24xlarge on 100GbE", "1 x dgx-b200")
PRECISIONS = (None, None, None, "fp16", "fp32", "fp8")
LARGE = (
    ("gpt3-175b", "16 x dgx-a100-80gb", "tp8 pp8 dp2 vpp6 sp recompute=selective", 64, "megatron"),
    ("llama3.1-405b", "128 x dgx-h100", "tp8 pp16 cp2 dp4 sp zero1", 128, "megatron-bridge"),
    ("llama3-70b", "32 x dgx-h100", "dp256 zero3", 256, "fsdp2"),
    ("llama3-70b", "8 x gb200-nvl72", "tp4 pp4 dp36 sp zero1", 288, "nemo"),
    ("deepseek-v3", "32 x dgx-h100", "pp16 ep16 dp16 zero1", 256, "megatron"),
    ("bloom-176b", "48 x dgx-a100-80gb", "tp4 pp12 dp8 zero1", 2048, "megatron-deepspeed"),
    ("resnet50", "32 x aws:p3.16xlarge", "dp256", 8192, "horovod"),
)
SEARCHES = (
    ("llama3-8b", "2 x dgx-h100", 128, "megatron"), ("mixtral-8x7b", "2 x dgx-h100", 64, "megatron"),
    ("gpt3-13b", "4 x dgx-a100-80gb", 256, "nemo"), ("gpt3-6.7b", "4 x dgx-1-v100-32gb", 64, "deepspeed"),
    ("llama3-8b", "2 x dgx-h100", 64, "fsdp2"), ("bert-large", "2 x aws:p3.16xlarge", 256, "ddp"),
    ("resnet50", "2 x aws:p3.16xlarge", 1024, "ddp"), ("llama3-8b", "1 x dgx-h100 + 1 x dgx-a100-80gb", 64, "megatron"),
    ("wide-resnet-13b", "2 x aws:p3dn.24xlarge", 512, "alpa"), ("dlrm-dcnv2", "1 x dgx-h100", 65536, "hugectr"),
)  # fmt: skip

Question = dict[str, Any]


TIES = frozenset({"drawn/1554"})
"""Left out: its stalls differ from machine to machine with the same code (its step does not), probably since two waits end
together but for the last bit; which rounding differs was not traced."""


def questions() -> Iterator[tuple[str, Question]]:
    """(group, keywords) of every question; `find` among the keywords asks for a search."""
    for number, (group, question) in enumerate(_all()):
        if (name := f"{group}/{number}") not in TIES:
            yield name, question


def _all() -> Iterator[tuple[str, Question]]:
    for name in zoo.names():
        yield "zoo", {"model": name, "on": "2 x dgx-h100", "batch": 64}
        yield "zoo", {"model": name, "on": "4 x dgx-a100-80gb", "plan": "dp32 zero1", "batch": 64}
    yield from _stacks(random.Random(SEED))
    for name, node in nodes().items():
        count = 1 if node.nics is None else 2
        plan = f"dp{count * node.device_count}"
        yield "machine", {"model": FAMILIES["dense"], "on": f"{count} x {name}", "plan": plan, "batch": 16 * count * node.device_count}  # fmt: skip
    for name in devices():
        for precision in ("bf16", "fp32", "fp8"):
            yield "device", {"model": FAMILIES["dense"], "on": f"2 x {name}", "plan": "tp2", "batch": 8, "precision": precision}  # fmt: skip
        yield "device", {"model": "resnet18", "on": f"1 x {name}", "batch": 64}
    for model, on, plan, batch, runtime in LARGE:
        yield "large", {"model": model, "on": on, "plan": plan, "batch": batch, "runtime": runtime}
    for model, on, batch, runtime in SEARCHES:
        yield "search", {"model": model, "on": on, "batch": batch, "runtime": runtime, "find": 3}
    for number in range(DRAWN):
        rng = random.Random(f"{SEED}/{number}")
        model, words = drawing.question(rng)
        yield "drawn", {"model": model, **words}


def _stacks(rng: random.Random) -> Iterator[tuple[str, Question]]:
    """Every stack with every family, on machines, precisions and plans by lot."""
    for runtime in presets():
        for family, model in FAMILIES.items():
            transformer = family in ("dense", "experts", "latent", "bert")
            plans = SPLIT if transformer else REPLICAS
            plans += EXPERTS if family in ("experts", "latent") else ()
            for _ in range(3 if transformer else 1):
                on = rng.choice(MACHINES)
                count = Cluster.of(on).device_count
                question = {"model": model, "on": on, "runtime": runtime, "batch": 8 * count, "micro_batch": rng.choice((1, 2))}  # fmt: skip
                plan = rng.choice(plans)
                if count != 8:  # the rest of the devices are replicas
                    plan = " ".join(word for word in plan.split() if not word.startswith("dp"))
                question["plan"] = plan
                if rng.random() < 0.3:
                    question["runtime_options"] = rng.choice(drawing.SWITCHES)
                precision = rng.choice(PRECISIONS)
                if precision:
                    question["precision"] = precision
                yield "stack", {k: v for k, v in question.items() if v != ""}
