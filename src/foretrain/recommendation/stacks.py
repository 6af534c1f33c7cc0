"""The software of a job on every kind of cluster, as any other question gets it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foretrain.analysis.memory import headroom_note
from foretrain.cluster.cluster import Cluster
from foretrain.recommendation.job import Job
from foretrain.recommendation.plans import Planner
from foretrain.resolving import Request, draft
from foretrain.runtime import Runtime


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
