"""What if something were different: hardware, plan, batch or a switch of the runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Unpack

from foretrain.analysis.answers import WhatIf
from foretrain.asked import Asked, ModelLike
from foretrain.cluster.cluster import Cluster
from foretrain.errors import InputError, did_you_mean
from foretrain.keywords import keywords
from foretrain.limits import FACTOR, shown
from foretrain.resolving import ask
from foretrain.resolving.stack import is_switch, known_options, spelled
from foretrain.scenario import Scenario
from foretrain.simulate import answer
from foretrain.units import parse_count

_SCALES = {
    "network.bandwidth": "network",
    "network.latency": "network_latency",
    "interconnect.bandwidth": "interconnect",
    "interconnect.latency": "interconnect_latency",
    "device.compute": "compute",
    "device.memory_bandwidth": "memory_bandwidth",
    "device.memory": "memory",
    "storage.bandwidth": "storage",
}
_ASKED = ("plan", "batch", "micro_batch", "seq", "precision", "optimizer", "runtime", "headroom", "on",
          "model")  # fmt: skip
_COUNTS = ("micro_batch", "seq")


CHANGES = (*_SCALES, "host", *_ASKED)
"""What a what-if can change and a sweep can vary, beside the options of the runtime."""


@keywords(Asked)
def whatif(model: ModelLike, *, changes: Mapping[str, Any], **question: Unpack[Asked]) -> WhatIf:
    """Predict the step before and after a change.

    Args:
        model: as for `predict`.
        changes: hardware factors (`{"network.bandwidth": "2x", "device.compute": 1.5, "host": 0}`), other
            arguments (`{"plan": "tp4 pp4", "batch": 512}`) or options of the runtime (`{"cuda_graphs": True}`).
        **question: the keywords of `predict`.

    >>> from foretrain import whatif
    >>> after = whatif("gpt2", on="2 x dgx-h100", plan="dp16", batch=64, changes={"network.bandwidth": "2x"})
    >>> after.speedup > 1
    True
    """
    expect_changes(changes)
    base = ask(model, **question)
    return WhatIf(answer(base), answer(changed(model, question, changes)), changes)


def expect_changes(names: Iterable[str]) -> None:
    """Refuse what cannot be changed, all of it at once."""
    unknown = [name for name in names if name not in CHANGES and not is_switch(name)]
    if unknown:
        known = (*CHANGES, *known_options())
        faults = [f"{name}: cannot be changed.{did_you_mean(name, known)}" for name in unknown]
        raise InputError(
            f"unknown change; known: {', '.join(CHANGES)} and options of the runtime such as "
            "cuda_graphs:",
            faults=faults,
        )


def changed(model: ModelLike, question: Mapping[str, Any], changes: Mapping[str, Any]) -> Scenario:
    """The question with other values and other hardware."""
    renamed: dict[str, Any] = dict(question)
    for key in _ASKED:
        if key in changes:
            renamed[key] = parse_count(changes[key], key) if key in _COUNTS else changes[key]
    switches = {key: changes[key] for key in changes if key not in CHANGES}
    if switches:
        renamed["runtime_options"] = {
            **spelled(renamed.get("runtime_options") or {}),
            **spelled(switches),
        }
    scales = {_SCALES[key]: _factor(key, changes[key]) for key in changes if key in _SCALES}
    memory = scales.pop("memory", None)
    if memory is not None:  # first, since it decides what fits: plan, micro-batch, headroom
        read = Cluster.read(renamed["on"])
        renamed["on"] = read._replace(cluster=read.cluster.scaled(memory=memory))
    asked = ask(renamed.pop("model", model), **renamed)
    if scales:
        asked = replace(asked, cluster=asked.cluster.scaled(**scales))
    if "host" in changes:
        factor = _factor("host", changes["host"], zero_allowed=True)
        asked = replace(asked, runtime=asked.runtime.with_host(factor))
    return asked


def _factor(key: str, value: Any, zero_allowed: bool = False) -> float:
    text = str(value).strip().lower().removesuffix("x")
    try:
        factor = float(text)
    except ValueError:
        factor = float("nan")
    if not (FACTOR.allows(factor) or (factor == 0 and zero_allowed)):
        raise InputError(
            f"{key}={shown(value)}: expected a factor such as 2x or 0.5x, from "
            f"{FACTOR.least:g} to {FACTOR.most:g}."
        )
    return factor
