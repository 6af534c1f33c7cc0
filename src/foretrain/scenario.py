"""Scenario: everything an answer depends on, resolved, and a hash of its content.

`resolving.resolve` makes one from whatever a door hands over; every answer is an answer to a scenario.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from foretrain.cluster.cluster import Cluster
from foretrain.cluster.device import Device
from foretrain.cluster.node import Node
from foretrain.errors import Bug
from foretrain.model.workload import Workload
from foretrain.plan.plan import Plan
from foretrain.runtime import Runtime, changed_options

if TYPE_CHECKING:
    from foretrain.analysis.job import JobTerms
    from foretrain.compile import Compilation
    from foretrain.cost.compute import ComputeModel
    from foretrain.cost.curves import OwnCurves


class Measured(Protocol):
    """Times of the user's own machine, which stand before what ships (`foretrain.measurement.Calibration`)."""

    @property
    def name(self) -> str: ...

    @property
    def compute(self) -> ComputeModel: ...

    @property
    def curves(self) -> OwnCurves | None: ...

    @property
    def digest(self) -> str:
        """A hash of all that it holds."""
        ...


class CompiledStages(dict[object, "Compilation"]):
    """What was compiled for a question in this process; it does not travel to others."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return CompiledStages, ()


@dataclass(frozen=True)
class Scenario:
    """Model, workload, machines, plan, stack and costs of one training step.

    What follows `job` is said about the scenario and no part of it: how it was named, and what had to be filled in.
    """

    workload: Workload
    cluster: Cluster
    plan: Plan
    runtime: Runtime
    measured: Measured | None = None
    headroom: float = 0.0  # share of a device's memory that is kept free
    job: JobTerms | None = None  # all the steps, where more than one is asked for
    id: str = ""
    stragglers: str = ""  # as they were asked for; the cluster has them
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    is_runtime_known: bool = True  # else a preset stands in for it
    unknown_switches: int = 0  # that may have changed the run
    compiled: CompiledStages = field(default_factory=CompiledStages, compare=False, repr=False)
    """What stages run, by all that decides it; filled in by `simulate`, so that a plan that was compiled to see
    whether it fits need not be compiled once more to be timed."""

    def __repr__(self) -> str:
        plan = self.plan.text or "strategy tree"
        asked = f"{self.workload.model.name} on {self.cluster.name}, {plan}, {self.runtime.name}"
        return f"<Scenario {self.sha256[:8]}: {asked}>"

    @cached_property
    def sha256(self) -> str:
        """Of the content: scenarios whose answers can differ have different ones."""
        parts = [
            digest(self.workload),
            digest(self.cluster),
            digest(self.plan),
            digest(self.runtime),
            "" if self.measured is None else self.measured.digest,
            self.headroom.hex(),
            plain(self.job),
            # they widen the interval
            [self.is_runtime_known, self.unknown_switches],
        ]
        return _hashed(parts)

    def to_dict(self) -> dict[str, Any]:
        """What was asked, in the words of a prediction document."""
        w = self.workload
        micro, trained = self.plan.schedule.micro_batch, w.model.trained_parameters
        return {
            "model": w.model.name,
            "parameters": w.model.parameters,
            **({} if trained == w.model.parameters else {"trained_parameters": trained}),
            "seq_len": w.seq_len,
            "global_batch": w.global_batch,
            "micro_batch": micro,
            "micro_batches": w.global_batch // (micro * self.plan.replicas),
            "precision": w.precision.name,
            "optimizer": w.optimizer.name,
            "cluster": self.cluster.name,
            "devices": self.cluster.device_count,
            "nodes": self.cluster.node_count,
            "device": self.cluster.devices[0].name,
            "plan": self.plan.text,
            "runtime": self.runtime.name,
            "headroom": self.headroom,
            **self._besides(),
            **({} if self.job is None else self.job.to_dict()),
        }

    def _besides(self) -> dict[str, Any]:
        """What changes an answer and few questions say."""
        extras: dict[str, Any] = {}
        if options := changed_options(self.runtime):
            extras["runtime_options"] = options
        if self.workload.data is not None:
            extras["data"] = asdict(self.workload.data)
        if self.stragglers:
            extras["stragglers"] = self.stragglers
        if self.measured is not None:
            extras["calibration"] = self.measured.name
            extras["calibration_sha256"] = self.measured.digest
        return extras


_KNOWN: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
"""Models and clusters are asked about again and again; each object is hashed once."""


def digest(value: Any) -> str:
    """A hash of a value and all values in it."""
    try:
        known = _KNOWN.get(value)
    except TypeError:  # not every value can be referred to weakly, or be hashed
        return _hashed(plain(value))
    if known is None:
        known = _KNOWN[value] = _hashed(plain(value))
    return known


def _hashed(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


_LABELS = {
    "Model": ("name", "source", "shape", "details"),
    "Cluster": ("name",),
    "Node": ("name", "title", "source", "measured_as"),
    "Device": ("name", "title", "source", "measured_as"),
    "ClusterNetwork": ("source",),
    "Plan": ("text",),
    "Length": ("asked",),
    "Runtime": ("title", "source", "release", "aliases"),
}
"""Fields that are for people: no answer depends on them. Measurements know devices and nodes by their identity."""


def plain(value: Any) -> Any:
    """Values all the way down, such that equal things come out equal; floats keep every bit, labels are left out."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        return [plain(one) for one in value]
    names = _content(kind)  # type: ignore[arg-type]
    if names is not None:
        named = {"": kind.__qualname__, **{name: plain(getattr(value, name)) for name in names}}
        return named | {"kinds": _kinds(value)} if kind is Cluster else named
    return _uncommon(value)


_PLAIN = frozenset({type(None), bool, int, str})


@cache
def _content(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass that answers depend on; None for any other type."""
    if not is_dataclass(kind):
        return None
    labels = _LABELS.get(kind.__qualname__, ())
    names = tuple(f.name for f in fields(kind) if f.name not in labels)
    return (*names, "identity") if kind in (Device, Node) else names


def _uncommon(value: Any) -> Any:
    if isinstance(value, float):  # 2.0 equals 2
        return int(value) if value.is_integer() else value.hex()
    if isinstance(value, int | str):
        return value
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), value.tobytes().hex()]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Mapping):
        return sorted(([plain(k), plain(v)] for k, v in value.items()), key=json.dumps)
    if isinstance(value, frozenset | set):
        return sorted((plain(one) for one in value), key=json.dumps)
    if isinstance(value, Sequence):
        return [plain(one) for one in value]
    raise Bug(f"{type(value).__qualname__} cannot be part of a scenario.")


def _kinds(cluster: Cluster) -> list[list[Any]]:
    """Which nodes and devices of a cluster are one kind: those under two names count as two, whatever the names are."""
    nodes: dict[Node, int] = {}
    devices: dict[Device, int] = {}
    return [
        [
            nodes.setdefault(run.node, len(nodes)),
            [devices.setdefault(device, len(devices)) for device in run.node.devices],
        ]
        for run in cluster.runs
    ]
