"""A Plan: a mesh of ranks and a strategy tree on it; short form, YAML and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretrain.errors import PlanError
from foretrain.plan.mesh import Mesh
from foretrain.plan.short_form import Words, build, parse
from foretrain.plan.strategy import Node, Schedule
from foretrain.runtime import Runtime


@dataclass(frozen=True)
class Plan:
    """`text` is how the user would say it; equal trees with other texts are other spellings, not other plans."""

    mesh: Mesh
    root: Node
    text: str = ""

    @property
    def schedule(self) -> Schedule:
        return self.root.schedule or Schedule()

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes that cut the batch for the model as a whole: its data parallelism."""
        return tuple(axis for cut in self.root.split if "batch" in cut.dims for axis in cut.axes)

    @property
    def replicas(self) -> int:
        """How many ways the batch is split."""
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
        micro_batch: int | None = None,
    ) -> Plan:
        """From a short form, a YAML file or its content; data parallelism fills the devices left over."""
        if isinstance(spec, Plan):
            plan = spec
        elif isinstance(spec, Words):
            plan = cls._from_words(spec, devices, runtime)
        elif isinstance(spec, Mapping):
            plan = cls.from_dict(spec)
        elif spec.endswith((".yaml", ".yml")) or Path(spec).is_file():
            from foretrain.loading import load_yaml

            plan = cls.from_dict(load_yaml(Path(spec), "a plan"))
        else:
            plan = cls._from_words(parse(spec), devices, runtime)
        if micro_batch is not None:
            schedule = replace(plan.schedule, micro_batch=micro_batch)
            plan = replace(plan, root=replace(plan.root, schedule=schedule))
        if plan.ranks != devices:
            raise PlanError(
                f"the plan is for {plan.ranks:,} ranks ({_shown(plan.mesh)}) but the cluster has"
                f" {devices:,} devices. Change a degree, or the number of nodes."
            )
        return plan

    @classmethod
    def _from_words(cls, words: Words, devices: int, runtime: Runtime) -> Plan:
        words = words.with_devices(devices)
        mesh, root = build(words, runtime)
        return cls(mesh, root, words.text())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        from foretrain.plan.document import plan_from_dict

        mesh, root = plan_from_dict(data)
        return cls(mesh, root, str(data.get("text", "")))

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` reads, ready for YAML."""
        from foretrain.plan.document import plan_to_dict

        document = plan_to_dict(self.mesh, self.root)
        return {"text": self.text, **document} if self.text else document


def _shown(mesh: Mesh) -> str:
    return " x ".join(f"{name} {size}" for name, size in mesh.axes if size > 1) or "1"
