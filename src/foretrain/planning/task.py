"""What is searched for: a workload on a cluster under a runtime, without a plan."""

from __future__ import annotations

from dataclasses import dataclass

from foretrain.cluster.cluster import Cluster
from foretrain.cost.compute import ComputeModel
from foretrain.cost.network import Network
from foretrain.forecast import Measured, Question, compute_of, network_on
from foretrain.model.workload import Workload
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words
from foretrain.runtime import Runtime


@dataclass(frozen=True)
class Task:
    """A question whose plan is open."""

    workload: Workload
    cluster: Cluster
    runtime: Runtime
    measured: Measured | None = None

    @property
    def compute(self) -> ComputeModel:
        """What times kernels."""
        return compute_of(self.measured)

    @property
    def devices(self) -> int:
        return self.cluster.device_count

    @property
    def network(self) -> Network:
        return network_on(self.cluster, self.runtime, self.measured)

    def plan(self, words: Words) -> Plan:
        return Plan.of(words, devices=self.devices, runtime=self.runtime)

    def question(self, plan: Plan) -> Question:
        return Question(self.workload, self.cluster, plan, self.runtime, measured=self.measured)
