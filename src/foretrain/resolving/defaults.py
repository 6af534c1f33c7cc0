"""The table of defaults (`defaults.yaml`), and the rows of it that a request takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from foretrain.cluster.cluster import Cluster
from foretrain.cluster.device import Device
from foretrain.loading import load_own_yaml
from foretrain.model.graph import Model
from foretrain.plan.facts import family_of
from foretrain.plan.supported import narrowed
from foretrain.runtime import Runtime


@cache
def defaults() -> Mapping[str, Any]:
    data: dict[str, Any] = load_own_yaml(Path(__file__).with_name("defaults.yaml"))
    return data


def stack_for(
    model: Model, cluster: Cluster, said: Mapping[str, object], target: str = ""
) -> tuple[str, str]:
    """The software that a practitioner would take, or that the launch files of a target run, and why."""
    facts = {
        "family": family_of(model),
        "devices": cluster.device_count,
        "nodes": cluster.node_count,
        "device": cluster.devices[0].kind,
    }
    for row in defaults()["targets"][target] if target else defaults()["stacks"]:
        when = row["when"]
        if "plan" in when and not any(_is_said(word, said) for word in when["plan"]):
            continue
        if all(facts[name] == value for name, value in when.items() if name != "plan"):
            return row["stack"], f"--to {target}" if target else row["because"]
    raise AssertionError("the last row has no condition")


def _is_said(word: str, said: Mapping[str, object]) -> bool:
    """Whether plan words hold `tp` (above 1), `sp` or `zero1`."""
    if word.startswith("zero"):
        return said.get("zero") == int(word[4:])
    value = said.get(word)
    return (bool(value) and value != 1) or value is True


def precision_for(devices: Sequence[Device]) -> str:
    """The first format of the list that all devices have a rate for."""
    row = defaults()["precision"]["cpu" if devices[0].kind == "cpu" else "gpu"]
    has = (name for name in row if all(device.peak(name) for device in devices))
    return str(next(has, row[-1]))


def optimizer_for(model: Model) -> str:
    return str(defaults()["optimizer"][family_of(model)])


def surely() -> float:
    """The probability with which what is chosen for the user should fit."""
    return float(defaults()["quick_search"]["fits_probability"])


def quick_space(model: Model, stack: Runtime) -> tuple[str, ...]:
    """Constraints of the small space that is searched for a plan."""
    row = defaults()["quick_search"]
    family = "transformer" if family_of(model) == "transformer" else "other"
    base = [*row[family]]
    if family == "transformer":
        facts = {"tokens": model.seq_len or 0, "parameters": model.parameters}
        contexts = (one for one in row["contexts"] if _reaches(facts, one["from"]))
        base += next(contexts)["where"]
        base += row["recompute"]["unfused" if stack.kernels.attention == "unfused" else "fused"]
        own = dict(stack.plan.defaults)
        base += row["zero"] if int(own.get("zero", "0")) <= 1 else []
        base += ["sp"] if own.get("sequence_parallel") == "true" else []
    return narrowed(base, stack)


def _reaches(facts: Mapping[str, float], least: Mapping[str, float]) -> bool:
    return all(facts[name] >= value for name, value in least.items())
