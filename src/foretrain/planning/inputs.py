"""What decides the answer of a search, as a hash: two searches with the same one find the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import foretrain
from foretrain.planning.space import Space
from foretrain.planning.task import Task
from foretrain.scenario import plain

SOURCES = (".py", ".yaml")
APART = ("cli", "report", "testing")
"""Folders of the package that no answer of a search depends on."""


@dataclass(frozen=True, slots=True)
class Key:
    """`told` is for people: what of a search they would recognise."""

    digest: str
    told: Mapping[str, str]


def key(task: Task, plans: Space, objective: str, keep: int) -> Key:
    """Of the search for the best `keep` plans of a space."""
    workload = task.workload
    told = {
        "model": workload.model.name,
        "sequence": str(workload.seq_len),
        "global batch": str(workload.global_batch),
        "precision": workload.precision.name,
        "optimizer": workload.optimizer.name,
        "cluster": task.cluster.name,
        "devices": str(task.devices),
        "runtime": task.runtime.name,
        "headroom": f"{100 * task.headroom:g} %",
        "calibration": "none" if task.measured is None else task.measured.name,
        "constraints": ", ".join(one.text for one in plans.constraints) or "none",
        "objective": objective,
        "plans kept": str(keep),
        "Foretrain": f"{foretrain.__version__} ({sources()[:8]})",
    }
    everything = [told, plain(task), plain(plans)]
    text = json.dumps(everything, sort_keys=True, separators=(",", ":"))
    return Key(hashlib.sha256(text.encode()).hexdigest(), told)


@cache
def sources() -> str:
    """A hash of Foretrain's own code and data: after an edit, what was found before may be wrong."""
    home = Path(foretrain.__file__).parent
    total = hashlib.sha256()
    for path in sorted(home.rglob("*")):
        if path.suffix in SOURCES and path.relative_to(home).parts[0] not in APART:
            total.update(path.relative_to(home).as_posix().encode())
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()
