"""Draft: a scenario whose plan and batch are still open."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from foretrain.analysis.prediction import Memory
from foretrain.cluster.cluster import Cluster
from foretrain.model.graph import Model
from foretrain.model.optimizer import Optimizer
from foretrain.model.precision import Precision
from foretrain.model.workload import DataSource, Workload
from foretrain.plan.defaults import PlanDefaults, plan_defaults
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import SCHEDULES
from foretrain.plan.short_form import Words
from foretrain.runtime import Runtime
from foretrain.scenario import CompiledStages, Measured, Scenario
from foretrain.simulate import peak_memory


@dataclass(frozen=True)
class Draft:
    """All but plan, batch and micro-batch."""

    model: Model
    cluster: Cluster
    runtime: Runtime
    precision: Precision
    optimizer: Optimizer
    data: DataSource | None = None
    measured: Measured | None = None
    headroom: float = 0.0
    compiled: CompiledStages = field(default_factory=CompiledStages, compare=False, repr=False)
    """As of a `Scenario`: all that are made of a draft share it."""

    @property
    def defaults(self) -> PlanDefaults:
        return plan_defaults(self.runtime, self.model)

    def plan(self, words: Words) -> Plan:
        return Plan.of(
            words,
            devices=self.cluster.device_count,
            runtime=self.runtime,
            defaults=self.defaults,
        )

    def scenario(self, plan: Plan, batch: int, micro: int) -> Scenario:
        schedule = replace(plan.schedule, micro_batch=micro)
        sized = replace(plan, root=replace(plan.root, schedule=schedule))
        workload = Workload(
            self.model, batch, self.model.seq_len, self.precision, self.optimizer, self.data
        )
        return Scenario(
            workload,
            self.cluster,
            sized,
            self.runtime,
            self.measured,
            self.headroom,
            compiled=self.compiled,
        )

    def memory(self, plan: Plan, batch: int, micro: int) -> Memory:
        """What the fullest device holds. A few micro-batches show it, except where a schedule keeps all of them."""
        stages, each = plan.schedule.stages, plan.replicas * micro
        passes = batch // each
        few, kind, chunks = (
            min(passes, 2 * stages),
            SCHEDULES[plan.schedule.kind],
            plan.schedule.chunks,
        )
        if all(
            kind.in_flight(stage, stages, few, chunks)
            == kind.in_flight(stage, stages, passes, chunks)
            for stage in range(stages)
        ):
            passes = few
        return peak_memory(self.scenario(plan, each * passes, micro))
