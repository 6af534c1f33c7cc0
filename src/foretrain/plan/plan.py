"""A Plan: a mesh of ranks and a strategy tree on it; short form, YAML and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretrain.errors import PlanError
from foretrain.limits import shown
from foretrain.loading import is_file, load_yaml
from foretrain.plan.defaults import PlanDefaults, plan_defaults
from foretrain.plan.mesh import Mesh
from foretrain.plan.short_form import Words, build, parse
from foretrain.plan.strategy import Schedule, StrategyNode
from foretrain.runtime import Runtime
from foretrain.units import counted


@dataclass(frozen=True)
class Plan:
    """A parallelization plan. `text` is its short form; different texts with equal trees are the same plan.

    >>> from foretrain import Plan, Runtime
    >>> Plan.of("tp2 pp2 zero1", devices=8, runtime=Runtime.of("megatron"))
    <Plan tp2 pp2 dp2 zero1 sp: 8 ranks, micro-batch 1>
    """

    mesh: Mesh
    root: StrategyNode
    text: str = ""

    def __repr__(self) -> str:
        name, ranks = self.text or _shown(self.mesh), counted(self.ranks, "rank")
        return f"<Plan {name}: {ranks}, micro-batch {self.schedule.micro_batch}>"

    @property
    def schedule(self) -> Schedule:
        return self.root.schedule or Schedule()

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes that split the batch for the whole model: its data parallelism."""
        cuts = (cut for cut in self.root.split if "batch" in cut.dims)
        return tuple(dict.fromkeys(axis for cut in cuts for axis in cut.axes))

    @property
    def replicas(self) -> int:
        """Number of data-parallel replicas."""
        return self.mesh.size(*self.batch_axes)

    @property
    def ranks(self) -> int:
        return self.mesh.ranks

    @classmethod
    def of(
        cls,
        spec: str | Mapping[str, Any] | Plan | Words,
        *,
        devices: int,
        runtime: Runtime,
        defaults: PlanDefaults | None = None,
        micro_batch: int | None = None,
    ) -> Plan:
        """From a short form, a YAML file or its content; data parallelism uses the remaining devices.

        What the text does not specify is what the runtime does by itself, or what `defaults` say; a micro-batch that
        neither text nor `micro_batch` gives is 1.
        """
        defaults = plan_defaults(runtime) if defaults is None else defaults
        if isinstance(spec, Plan):
            plan = spec
        elif isinstance(spec, Words):
            plan = cls._from_words(spec, devices, runtime, defaults)
        elif isinstance(spec, Mapping):
            plan = cls.from_dict(spec)
        elif not isinstance(spec, str):
            raise PlanError(
                f"a plan must be a mapping or a string such as 'tp8 dp2', got {shown(spec)}."
            )
        elif spec.endswith((".yaml", ".yml")) or is_file(spec):
            plan = cls.from_dict(load_yaml(Path(spec), "a plan"))
        else:
            plan = cls._from_words(parse(spec, defaults, devices), devices, runtime, defaults)
        if micro_batch is not None:
            schedule = replace(plan.schedule, micro_batch=micro_batch)
            plan = replace(plan, root=replace(plan.root, schedule=schedule))
        if plan.ranks != devices:
            raise PlanError(
                f"the plan is for {counted(plan.ranks, 'rank')} ({_shown(plan.mesh)}) but the "
                f"cluster has {counted(devices, 'device')}. Change a degree or the number of "
                "nodes."
            )
        return plan

    @classmethod
    def _from_words(
        cls, words: Words, devices: int, runtime: Runtime, defaults: PlanDefaults
    ) -> Plan:
        words = words.with_devices(devices)
        mesh, root = build(words, runtime)
        return cls(mesh, root, words.text(defaults))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        from foretrain.plan.document import plan_from_dict

        mesh, root = plan_from_dict(data)
        return cls(mesh, root, str(data.get("text", "")))

    def to_dict(self) -> dict[str, Any]:
        """Inverse of `from_dict`, ready for YAML."""
        from foretrain.plan.document import plan_to_dict

        document = plan_to_dict(self.mesh, self.root)
        return {"text": self.text, **document} if self.text else document


def _shown(mesh: Mesh) -> str:
    return " x ".join(f"{name} {size}" for name, size in mesh.axes if size > 1) or "1"
