"""What is searched for: a workload on a cluster under a runtime, without a plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from foretrain.arrays import Floats
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.headroom import usable_bytes
from foretrain.compile.model_states import ModelStates
from foretrain.cost.compute import ComputeModel
from foretrain.cost.items import Surroundings
from foretrain.cost.network import Network
from foretrain.model.workload import Workload
from foretrain.plan.defaults import PlanDefaults, plan_defaults
from foretrain.plan.facts import Facts, facts_of
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words, parse
from foretrain.plan.supported import Rule, rules_for, warned
from foretrain.runtime import Runtime
from foretrain.scenario import Measured, Scenario
from foretrain.simulate import compute_of, network_on


@dataclass(frozen=True)
class Task:
    """A scenario whose plan is open."""

    workload: Workload
    cluster: Cluster
    runtime: Runtime
    measured: Measured | None = None
    headroom: float = 0.0  # share of a device's memory that is kept free
    assumptions: tuple[str, ...] = field(default=(), compare=False)  # how the rest was filled in
    warnings: tuple[str, ...] = field(default=(), compare=False)
    is_runtime_known: bool = True
    unknown_switches: int = 0
    stragglers: str = ""  # as they were asked for; the cluster has them
    is_hypothetical: bool = False  # plans that the stack cannot run are searched, too

    @classmethod
    def of(cls, scenario: Scenario) -> Task:
        return cls(
            scenario.workload,
            scenario.cluster,
            scenario.runtime,
            scenario.measured,
            scenario.headroom,
            scenario.assumptions,
            scenario.warnings,
            scenario.is_runtime_known,
            scenario.unknown_switches,
            scenario.stragglers,
        )

    def __repr__(self) -> str:
        what = f"{self.workload.model.name} on {self.cluster.name}"
        return f"<Task: {what}, batch {self.workload.global_batch:,}, {self.runtime.name}>"

    @cached_property
    def defaults(self) -> PlanDefaults:
        """What a plan's text leaves open is as the stack has it."""
        return plan_defaults(self.runtime, self.workload.model)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """What plans must keep to for the stack to run them."""
        return () if self.is_hypothetical else rules_for(self.runtime, self.facts)

    @cached_property
    def facts(self) -> Facts:
        """What rules ask of the work."""
        return facts_of(self.workload)

    @cached_property
    def states(self) -> ModelStates:
        """What ranks keep and move for their weights."""
        return ModelStates(self.workload, self.runtime)

    @property
    def around(self) -> Surroundings:
        return Surroundings(self.cluster, self.runtime, self.network, self.compute)

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

    @property
    def usable_bytes(self) -> Floats:
        """Of every kind of device: what the allocator may take."""
        sizes = np.array([device.memory_bytes for device in self.cluster.devices])
        return usable_bytes(sizes, self.runtime.memory.context_bytes, self.headroom)

    def plan(self, words: Words) -> Plan:
        return Plan.of(words, devices=self.devices, runtime=self.runtime, defaults=self.defaults)

    def words(self, text: str) -> Words:
        """The words of a plan's text."""
        return parse(text, self.defaults, self.devices)

    def text(self, words: Words) -> str:
        return words.text(self.defaults)

    def _refusals(self, plan: Plan) -> tuple[str, ...]:
        """Why the stack cannot run a plan of a hypothetical search."""
        return warned(self.runtime, plan, self.facts) if self.is_hypothetical else ()

    def scenario(self, plan: Plan) -> Scenario:
        return Scenario(
            self.workload,
            self.cluster,
            plan,
            self.runtime,
            measured=self.measured,
            headroom=self.headroom,
            stragglers=self.stragglers,
            assumptions=self.assumptions,
            warnings=(*self.warnings, *self._refusals(plan)),
            is_runtime_known=self.is_runtime_known,
            unknown_switches=self.unknown_switches,
        )
