"""The stack that a run's words lead to, by the way every run takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foretrain.cases import scenario_from_case
from foretrain.runtime import Runtime


def stack_of_run(
    name: str | None, options: Mapping[str, Any], model: str = "gpt2"
) -> tuple[Runtime, tuple[str, ...], tuple[str, ...]]:
    """The runtime on A100s, the assumptions and the warnings."""
    nodes = len(options.get("placement") or [8])
    case = {
        "model": {"zoo": model},
        "seq_len": 1024,
        "cluster": {"device": "a100-sxm4-80gb", "devices_per_node": 8, "nodes": nodes},
        "batch": {"global": 64, "micro": 1},
        "precision": "bf16",
        "runtime": name,
        "runtime_options": dict(options),
    }
    found = scenario_from_case(case)
    return found.runtime, found.assumptions, found.warnings
