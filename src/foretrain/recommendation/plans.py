"""The best plans on one cluster, estimated: a small space, looked at a thousand times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from foretrain.analysis.memory import headroom_note
from foretrain.arrays import Ints
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.headroom import fill, headroom_share
from foretrain.errors import InputError, PlanError
from foretrain.model.graph import Model
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision
from foretrain.model.workload import Workload
from foretrain.plan.constraints import parse
from foretrain.plan.supported import narrowed
from foretrain.planning.choices import Choices, joined
from foretrain.planning.estimator import Estimates, Estimator, row_keys
from foretrain.planning.layers import (
    CompiledState,
    Layers,
    Places,
    SharedBlocks,
    State,
    layer_table,
)
from foretrain.planning.partial_result import EstimatedPlan
from foretrain.planning.space import space
from foretrain.planning.task import Task
from foretrain.recommendation.job import Job
from foretrain.resolving import Request, draft
from foretrain.runtime import Runtime

KEPT = 4
"""Plans remembered of a cluster: what the simulator refuses is replaced by the next."""

_SEQUENCES = (
    "tp=1|2|4|8", "pp=1|2|4|8|16", "vpp=1", "zero=0|1|3", "shard=0", "sp", "recompute=none|selective|full", "no offload", "schedule=1f1b",
    "order=default",
)  # fmt: skip
_SAMPLES = (
    "tp=1", "pp=1", "vpp=1", "cp=1", "ep=1", "zero=0", "shard=0", "no sp", "recompute=none|full", "no offload",
    "order=default",
)  # fmt: skip
_TOKENS = 32768
"""Of the largest micro-batch that is looked at."""
_LONG = 32768
"""Tokens from which a sequence may be worth splitting."""
_MOST_MICRO = 256
"""Of samples, besides a device's whole share, its half and its quarter: recommenders take thousands at once."""
_MANY = 3e10
"""Parameters from which pipelines may be longer than eight stages."""


@dataclass(frozen=True, slots=True)
class PlannedCluster:
    """What was seen on a cluster; `best` is empty where nothing fits, `nearest` then lacks least memory."""

    best: tuple[EstimatedPlan, ...]
    nearest: EstimatedPlan | None
    refusal: str = ""  # why no plan could be looked at


@dataclass(eq=False)
class Planner:
    """Estimates plans of one job; what blocks compile to is shared by all clusters with as many devices."""

    runtime: Runtime
    model: Model
    precision: Precision
    optimizer: Optimizer
    where: tuple[str, ...] = ()
    is_hypothetical: bool = False
    """Whether plans that the stack cannot run are looked at, too."""
    margin: float = 1.0
    """Share of what is usable of a device that an estimate may fill."""
    headroom: float | str | None = None
    """How much of a device is kept free, as the user says it; None: as the software stack keeps it."""
    _shared: dict[tuple[int, int], SharedBlocks] = field(default_factory=dict)
    _compiled: dict[tuple[int, int, State, Places], CompiledState | str] = field(
        default_factory=dict
    )

    def workload(self, batch: int) -> Workload:
        return Workload(self.model, batch, self.model.seq_len, self.precision, self.optimizer)

    def task(self, workload: Workload, cluster: Cluster) -> Task:
        free = headroom_share(self.headroom, cluster.devices, self.runtime.memory.headroom)
        hypothetical = self.is_hypothetical
        return Task(workload, cluster, self.runtime, headroom=free, is_hypothetical=hypothetical)

    def best(
        self, workload: Workload, cluster: Cluster, near: Sequence[EstimatedPlan] = ()
    ) -> PlannedCluster:
        """The fastest plans that fit, estimated: of all, or of those that split blocks as plans `near` do."""
        try:
            task = self.task(workload, cluster)
        except InputError as error:  # so much free that such a device has nothing left
            return PlannedCluster((), None, str(error))
        if not near or workload.seq_len is None:
            return self._best(task, {})
        words = [task.words(plan.plan) for plan in near]
        values = {
            name: sorted({getattr(one, name) or 1 for one in words})
            for name in ("tp", "pp", "micro")
        }
        return self._best(
            task, {n: _dividing(f"{n}={'|'.join(map(str, v))}", task) for n, v in values.items()}
        )

    def _best(self, task: Task, fixed: Mapping[str, str]) -> PlannedCluster:
        try:
            options = space(task, self._where(task, fixed))
        except PlanError as error:
            return PlannedCluster((), None, " ".join(str(error).split()))
        parts = [options.choices(part) for part in options.parts()]
        choices = joined((choices_of for choices_of, _ in parts), options.palette)
        if not len(choices):
            return PlannedCluster((), None, _most([lost for _, lost in parts]))
        return _planned(choices, _Sharing(task, self).estimate(choices), self.margin)

    def _where(self, task: Task, fixed: Mapping[str, str]) -> tuple[str, ...]:
        """Ours as far as the user says nothing of a choice."""
        pinned = {constraint.name for constraint in parse(self.where)}
        ours = {parse([text])[0].name: text for text in _usual(task)}
        texts = {**ours, **fixed}
        free = [text for name, text in texts.items() if name not in pinned]
        return (*(free if task.is_hypothetical else narrowed(free, self.runtime)), *self.where)

    def layers(self, task: Task, states: Sequence[State], rows: Places) -> Layers:
        """As `planning.layers.layers`, remembering across clusters."""
        size = (task.workload.global_batch, task.devices)
        shared = self._shared.setdefault(size, SharedBlocks(task))
        compiled, refused = [], {}
        for state in states:
            one = self._compiled.get((*size, state, rows))
            if one is None:
                try:
                    one = shared.compiled(state, rows)
                except InputError as error:
                    one = str(error).splitlines()[0]
                self._compiled[(*size, state, rows)] = one
            if isinstance(one, str):
                refused[state] = one
            else:
                compiled.append(one)
        return layer_table(task, compiled, refused, rows)


class _Sharing(Estimator):
    """An estimator that takes compiled blocks from a planner."""

    def __init__(self, task: Task, planner: Planner) -> None:
        super().__init__(task)
        self._planner = planner

    def states(self, choices: Choices) -> tuple[Ints, Layers]:
        names = (
            "tp", "cp", "ep", "etp", "sp", "micro", "recompute", "exchange", "tables", "order", "pp",
        )  # fmt: skip
        _, first, inverse = np.unique(
            row_keys(choices, names), return_index=True, return_inverse=True
        )
        states = [choices.state(int(row)) for row in first]
        known = self._planner.layers(self.task, list(dict.fromkeys(states)), self.places(choices))
        places = {state: -1 - place for place, state in enumerate(known.refused)}
        numbers = np.array([known.number.get(s, places.get(s, -1)) for s in states], dtype=np.int64)
        return numbers[inverse], known


def _usual(task: Task) -> list[str]:
    """The small space: degrees that are powers of two, the usual states and schedules."""
    model, batch = task.workload.model, task.workload.global_batch
    if task.workload.seq_len is None:
        each = max(1, batch // task.devices)
        micros = [n for n in range(1, min(each, _MOST_MICRO) + 1) if each % n == 0][-4:]
        micros += [each // n for n in (4, 2, 1) if each % n == 0 and each // n > micros[-1]]
        return [*_SAMPLES, "micro=" + "|".join(map(str, micros))]
    words = [_dividing(word, task) for word in _SEQUENCES]
    most = max(4, _TOKENS // task.workload.seq_len)
    words.append(
        "micro=" + "|".join(map(str, sorted({most, most // 2, most // 4, most // 16 or 1, 1})))
    )
    words.append("cp=1|2|4|8" if task.workload.seq_len >= _LONG else "cp=1")
    experts = max((op.size.get("expert", 1) for _, op in model.ops()), default=1)
    if experts == 1:
        return [*words, "ep=1"]
    eps = [n for n in (8, 16, 64) if experts % n == 0 and task.devices % n == 0]
    words = [word for word in words if not word.startswith(("micro=", "recompute=", "zero="))]
    return [*words, "micro=1|2", "recompute=none|full", "zero=1|3", f"ep={max(eps, default=1)}"]


def _dividing(word: str, task: Task) -> str:
    """Degrees of a constraint that the devices and the node allow; `sp` where a sequence can be split at all."""
    name, _, values = word.partition("=")
    if name not in ("tp", "pp"):
        return word
    most = int(np.bincount(np.asarray(task.cluster.domain_of)).max())
    if name == "pp":
        most = 16 if task.workload.model.parameters > _MANY else 8
    fine = [v for v in values.split("|") if task.devices % int(v) == 0 and int(v) <= max(most, 1)]
    return f"{name}={'|'.join(fine or ['1'])}"


def _planned(choices: Choices, estimates: Estimates, margin: float) -> PlannedCluster:
    able = np.flatnonzero(estimates.refused < 0)
    if not len(able):
        return PlannedCluster((), None, estimates.refusal[0] if estimates.refusal else "")
    full = fill(estimates.memory[able], estimates.usable[able])
    fits = able[(full <= margin) & np.isfinite(estimates.seconds[able])]
    order = fits[np.argsort(estimates.seconds[fits], kind="stable")][:KEPT]
    nearest = None if len(fits) else _estimated(choices, estimates, int(able[np.argmin(full)]))
    return PlannedCluster(
        tuple(_estimated(choices, estimates, row) for row in order.tolist()), nearest
    )


def _estimated(choices: Choices, estimates: Estimates, row: int) -> EstimatedPlan:
    columns = ("seconds", "memory", "usable", "work", "pipeline", "data", "update")
    return EstimatedPlan(
        choices.text(row), **{name: float(getattr(estimates, name)[row]) for name in columns}
    )


def _most(losses: Sequence[dict[str, int]]) -> str:
    """The reason that most plans were lost for."""
    total: Counter[str] = Counter()
    for lost in losses:
        total.update(lost)
    none = "constraints and this number of devices leave none"
    return max(total, key=lambda reason: total[reason], default=none)


@dataclass(eq=False)
class Stacks:
    """Planners by what the resolver takes on a cluster: stack, number format and optimizer."""

    job: Job
    runtime: str | Runtime | None
    where: tuple[str, ...]
    margin: float
    headroom: float | str | None
    is_hypothetical: bool = False
    _known: dict[tuple[Any, ...], Planner] = field(default_factory=dict)
    _planners: dict[tuple[Any, ...], Planner] = field(default_factory=dict)

    def on(self, cluster: Cluster) -> Planner:
        """Clusters of the same devices differ only by whether there is one device, one machine or several."""
        key = (cluster.devices, cluster.device_count == 1, cluster.node_count == 1)
        if key not in self._known:
            self._known[key] = self._planner(cluster)
        return self._known[key]

    def notes(self) -> list[str]:
        """What was taken where the job says nothing."""
        lines = []
        planners = list(dict.fromkeys(self._known.values()))
        if self.runtime is None and planners:
            names = ", ".join(dict.fromkeys(one.runtime.name for one in planners))
            lines.append(f"runtime {names}: default for each cluster (--runtime)")
        if self.is_hypothetical:
            lines.append("plans that their stacks cannot run are offered, too (--hypothetical)")
        else:
            lines.append("plans: those that their stacks can run (--hypothetical)")
        if self.job.precision is None and planners:
            formats = ", ".join(dict.fromkeys(one.precision.name for one in planners))
            lines.append(
                f"precision {formats}: supported by the devices' matrix units (--precision)"
            )
        if self.job.optimizer is None and planners:
            lines.append(
                f"optimizer {planners[0].optimizer.name}: common for this kind of model "
                "(--optimizer)"
            )
        if self.headroom is None:
            stacks = dict.fromkeys(one.runtime for one in planners)
            lines += dict.fromkeys(
                line for stack in stacks for line in headroom_note(stack, stack.memory.headroom)
            )
        return lines

    def _planner(self, cluster: Cluster) -> Planner:
        job = self.job
        resolved = draft(
            Request(
                job.model,
                cluster,
                precision=job.precision,
                optimizer=job.optimizer,
                runtime=self.runtime,
            )
        )
        key = (resolved.runtime, resolved.precision, resolved.optimizer)
        if key not in self._planners:
            self._planners[key] = Planner(
                resolved.runtime,
                resolved.model,
                resolved.precision,
                resolved.optimizer,
                self.where,
                self.is_hypothetical,
                self.margin,
                self.headroom,
            )
        return self._planners[key]
