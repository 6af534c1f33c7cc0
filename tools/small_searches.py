"""Searches small enough to be simulated in full: models, clusters, stacks and constraints drawn by lot."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foretrain.errors import InputError
from foretrain.planning.space import space
from foretrain.planning.task import Task
from foretrain.testing.asking import ask

TRANSFORMERS = (
    "gpt2", "gpt2-medium", "gpt2-xl", "gpt3-1.3b", "gpt3-2.7b", "llama3.2-1b", "llama3.2-3b", "qwen2.5-0.5b",
    "qwen2.5-1.5b", "bert-base", "bert-large", "mpt-1b",
)  # fmt: skip
EXPERTS = ("deepseek-v2-lite", "qwen3-30b-a3b")
IMAGES = ("resnet50", "resnet101", "wide-resnet50-2", "vgg16", "inception-v3")
NODES = (
    "dgx-a100-80gb", "dgx-a100-40gb", "dgx-h100", "dgx-1-v100-16gb", "dgx-1-v100-32gb", "aws:p3.16xlarge",
    "aws:p4d.24xlarge", "aws:g5.48xlarge", "hgx-h20",
)  # fmt: skip
STACKS = (
    "megatron", "megatron-bridge", "nemo", "megatron-deepspeed", "fsdp", "fsdp2", "torchtitan", "nanotron", "deepspeed",
    "ddp",
)  # fmt: skip
IMAGE_STACKS = ("ddp", "horovod", "oneflow", "fsdp")


@dataclass(frozen=True)
class Drawn:
    """A task and constraints that leave few plans."""

    name: str
    task: Task
    where: tuple[str, ...]
    plans: int


def drawn(seed: int, fewest: int = 6, most: int = 60) -> Iterator[Drawn]:
    """Without end, always the same for a seed."""
    lot = random.Random(seed)
    while True:
        question = _question(lot)
        where = _where(lot, question["model"] in IMAGES)
        try:
            asked = ask(**question)
            task = Task(asked.workload, asked.cluster, asked.runtime)
            plans = space(task, where)
            count = sum(len(plans.choices(part)[0]) for part in plans.parts())
        except InputError:  # the lot has put together what does not go together
            continue
        if fewest <= count <= most:
            name = f"{question['model']} on {question['on']}, {question['runtime']}"
            yield Drawn(name, task, where, count)


def _question(lot: random.Random) -> dict[str, Any]:
    kind = lot.choices((TRANSFORMERS, EXPERTS, IMAGES), (6, 1, 2))[0]
    nodes, node = lot.choice((1, 1, 2, 2, 4)), lot.choice(NODES)
    return {
        "model": lot.choice(kind),
        "on": f"{nodes} x {node}",
        "batch": nodes * lot.choice((32, 64, 128)),
        "runtime": lot.choice(IMAGE_STACKS if kind is IMAGES else STACKS),
        "precision": "fp16" if "v100" in node or "p3" in node else "bf16",
    }


def _where(lot: random.Random, is_image: bool) -> tuple[str, ...]:
    """Some values of every choice; images have neither heads nor sequences to split."""

    def some(name: str, values: tuple[object, ...], count: int) -> str:
        return f"{name}={'|'.join(str(v) for v in sorted(lot.sample(values, count), key=str))}"

    return (
        "tp=1" if is_image else some("tp", (1, 2, 4, 8), 2),
        some("pp", (1, 2, 4), 2),
        some("micro", (1, 2, 4, 8, 16), 2),
        some("zero", (0, 1, 2, 3), 2),
        "recompute!=selective" if is_image else some("recompute", ("none", "selective", "full"), 2),
        some("schedule", ("1f1b", "interleaved", "zb-h1", "gpipe"), 2),
        some("ep", (1, 2, 8), 1),
        "vpp<=2",
        "cp=1",
        "shard=0",
        "no sp" if is_image else lot.choice(("sp", "no sp")),
        "no offload",
        "order=default",
    )
