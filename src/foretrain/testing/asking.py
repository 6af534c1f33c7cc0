"""Scenarios in which nothing is taken for granted: what a test does not say is not there.

Stacks do much by themselves (sequence parallelism, sharding, the largest micro-batch); tests of single mechanisms want a
plan to be what it says.
"""

from __future__ import annotations

from typing import Any

from foretrain.asked import ModelLike
from foretrain.resolving import ask as resolved
from foretrain.runtime import Runtime, runtime
from foretrain.scenario import Scenario


def bare(stack: str | Runtime = "megatron") -> Runtime:
    """A stack that does nothing a plan does not say."""
    return runtime(stack).with_features({"plan": {"defaults": ()}})


def ask(model: ModelLike, **words: Any) -> Scenario:
    """As `resolving.ask`, of a bare stack: micro-batches of one sample, bf16 and Adam unless told otherwise."""
    stack = bare(words.pop("runtime", "megatron"))
    usual = {"micro_batch": 1, "precision": "bf16", "optimizer": "adam"}
    options = {"attention": stack.kernels.attention, **(words.pop("runtime_options", None) or {})}
    plan = words.pop("plan", None) or "zero0"
    if not isinstance(plan, str) or "micro=" in plan:
        usual.pop("micro_batch")
    return resolved(
        model, **{**usual, **words, "plan": plan, "runtime": stack, "runtime_options": options}
    )
