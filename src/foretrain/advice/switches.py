"""Switches of the stack and narrower number formats as moves (`switches.yaml`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from foretrain.advice.moves import Move, Place
from foretrain.loading import load_own_yaml
from foretrain.model.precision import precision
from foretrain.plan.constraints import parse, value_in
from foretrain.resolving.stack import with_switch


@cache
def _rows() -> Mapping[str, Sequence[Mapping[str, Any]]]:
    table: Mapping[str, Sequence[Mapping[str, Any]]] = load_own_yaml(
        Path(__file__).with_name("switches.yaml")
    )
    return table


def switch_moves(at: Place) -> Iterator[Move]:
    """Switches that the stack has, the plan can use and the question has not set."""
    stack = at.scenario.runtime
    for row in _rows()["switches"]:
        ((name, value),) = row["set"].items()
        stands = all(stack.option(key) == wanted for key, wanted in row.get("sets", {}).items())
        if stack.name not in row["stacks"] or not stands or not _has(at, row["needs"]):
            continue
        switched = with_switch(stack, name, value)
        if switched != stack:
            text = f"{name}={str(value).lower()}"
            scenario = replace(at.scenario, runtime=switched)
            paste = f"--set {text}{at.pinned}"
            yield Move(text, paste, scenario, "option", remark=row.get("changes", ""))


def precision_moves(at: Place) -> Iterator[Move]:
    work, cluster = at.scenario.workload, at.scenario.cluster
    for row in _rows()["precisions"]:
        narrow = precision(row["precision"])
        is_able = all(device.peak(narrow.matmul) for device in cluster.devices)
        is_16_bit = work.precision.matmul in ("bf16", "fp16") and not work.precision.quantises
        if is_able and is_16_bit and at.scenario.runtime.name in row["stacks"]:
            scenario = replace(at.scenario, workload=replace(work, precision=narrow))
            text, paste = f"precision {narrow.name}", f"--precision {narrow.name}{at.pinned}"
            yield Move(text, paste, scenario, "option", remark=row["changes"])


def _has(at: Place, needs: str) -> bool:
    """Whether a plan is as a switch needs it; a strategy tree is taken to be."""
    if not at.scenario.plan.text:
        return True
    values = ((one, value_in(at.words, one.name)) for one in parse([needs]))
    return all(value is not None and one.allows(value) for one, value in values)
