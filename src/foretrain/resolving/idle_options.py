"""Options of the runtime that change nothing where they stand: of experts without experts, of shards without shards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from foretrain.limits import shown
from foretrain.model.graph import Model
from foretrain.model.ops import family
from foretrain.plan.plan import Plan
from foretrain.plan.strategy import nodes
from foretrain.resolving.request import Notes
from foretrain.resolving.stack import fields_set
from foretrain.runtime import Runtime, option_needs

_SELECTIVE = "selective"
_NOT_OF_LAYERS = {"batch", "seq", "slot", "expert"}
"""Dims whose cuts are data, context and expert parallelism."""


def note_idle_options(
    options: Mapping[str, Any], model: Model, plan: Plan | None, stack: Runtime, notes: Notes
) -> None:
    """`options`: what was said; `plan`: None where it is still looked for."""
    reasons = dict(_lacking(model, plan, stack))
    for key, value in options.items():
        needs = [option_needs().get(field, ()) for field in fields_set(key, value)]
        missing = [next((one for one in every if one in reasons), None) for every in needs]
        if missing and all(missing):
            notes.warn(f"{key} = {shown(value)} has no effect: {reasons[str(missing[0])]}.")


def _lacking(model: Model, plan: Plan | None, stack: Runtime) -> Iterator[tuple[str, str]]:
    """What options may need and this question lacks, each with the reason to tell."""
    traits = {family(op).trait(op) for _, op in model.ops()}
    has = {
        name: name in traits for name in ("convolutions", "rotary positions", "embedding tables")
    }
    has["experts"] = model.has_experts
    yield from ((name, f"{model.name} has no {name}") for name in has if not has[name])
    if stack.fusion_cycles is None:
        yield "fusion cycles", f"{stack.name} has no fusion cycles (cycle_seconds)"
    if plan is not None:
        has = _of_plan(plan)
        yield from ((name, f"the plan has no {name}") for name in has if not has[name])


def _of_plan(plan: Plan) -> dict[str, bool]:
    every = tuple(nodes(plan.root))
    cuts = [c for node in every for c in node.split if plan.mesh.size(*c.axes) > 1]
    sharded = {role for node in every for role, axes in node.state if plan.mesh.size(*axes) > 1}
    return {
        "tensor parallelism": any(not {*cut.dims} <= _NOT_OF_LAYERS for cut in cuts),
        "sharded sequences": any("seq" in cut.dims for cut in cuts),
        "pipeline parallelism": plan.schedule.stages > 1,
        "sharded states": bool(sharded),
        "fully sharded weights": "weight" in sharded,
        "selective recomputation": any(_SELECTIVE in (node.recompute or "") for node in every),
    }
