"""The questions whose answers are kept: one of every kind of plan, model and cluster that people ask about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foretrain.analysis.prediction import Prediction
from foretrain.resolving import ask
from foretrain.scenario import Scenario

ROWS_OF_IMAGES = {
    "mesh": {"dp": 4, "rows": 2},
    "tree": {"split": {"batch": "dp", "height": "rows"}, "bucket_bytes": 25e6},
}
TWO_GENERATIONS = {
    "name": "two generations",
    "nodes": [{"node": "dgx-a100-80gb", "used": 4}, {"node": "dgx-1-v100-32gb", "used": 4}],
}

QUESTIONS: Mapping[str, Callable[[], Scenario]] = {
    "gpt3-175b-megatron": lambda: ask(
        "gpt3-175b", on="128 x dgx-a100-80gb", plan="tp8 pp16 dp8 recompute=full", batch=1536, seq=2048,
    ),
    "gpt3-175b-interleaved": lambda: ask(
        "gpt3-175b", on="16 x dgx-a100-80gb", plan="tp8 pp8 dp2 vpp6 sp recompute=selective", batch=64,
        seq=2048,
    ),
    "llama3-8b-fsdp": lambda: ask(
        "llama3-8b", on="8 x dgx-h100", plan="zero3", batch=128, seq=8192, runtime="fsdp",
        micro_batch=2,
    ),
    "llama3-70b-context": lambda: ask(
        "llama3-70b", on="16 x dgx-h100", plan="tp8 cp4 dp4 sp zero1", batch=16, seq=32768, runtime="nemo",
    ),
    "mixtral-8x7b-experts": lambda: ask(
        "mixtral-8x7b", on="4 x dgx-h100", plan="tp2 pp2 ep8 dp8 sp zero1", batch=128, seq=4096,
        runtime="nemo",
    ),
    "bert-large": lambda: ask(
        "bert-large", on="1 x dgx-1-v100-32gb", plan="dp8", batch=64, micro_batch=8, seq=512,
        precision="fp16", runtime="ddp",
    ),
    "resnet50-ddp": lambda: ask(
        "resnet50", on="4 x dgx-1-v100-32gb", plan="dp32", batch=8192, micro_batch=256, precision="fp16",
        optimizer="sgd", runtime="ddp",
    ),
    "resnet50-rows": lambda: ask(
        "resnet50", on="1 x dgx-a100-80gb", plan=ROWS_OF_IMAGES, batch=256, micro_batch=64,
        optimizer="sgd", runtime="ddp",
    ),
    "gpt2-xl-two-generations": lambda: ask(
        "gpt2-xl", on=TWO_GENERATIONS, plan="pp2 dp4", batch=64, micro_batch=2, seq=1024,
        precision="fp16",
    ),
}  # fmt: skip


def summary(prediction: Prediction) -> dict[str, Any]:
    """What is kept of an answer."""
    return {
        "question": dict(prediction.question),
        "step_seconds": prediction.step_seconds,
        "stalls": dict(prediction.stalls),
        "memory": {
            "peak_bytes": prediction.memory.peak_bytes,
            "by_kind": dict(prediction.memory.by_kind),
            "moment": prediction.memory.moment,
        },
        "mfu": prediction.mfu,
    }
