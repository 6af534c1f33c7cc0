"""The scenario that launch files run, in place of the one that they were written for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from foretrain.adapters.read.launch.launch import Launch
from foretrain.adapters.write.job import ExportJob, parts_of
from foretrain.model.graph import Model
from foretrain.model.lora import Adapters, adapters_in, with_adapters, without_adapters
from foretrain.model.optimizer import optimizer
from foretrain.model.precision import precision
from foretrain.model.transformer import transformer
from foretrain.model.workload import Workload
from foretrain.plan.facts import facts_of
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words
from foretrain.plan.supported import refusals
from foretrain.runtime import Runtime
from foretrain.scenario import CompiledStages, Scenario

ROUNDING = 1e-2
"""Buckets that differ by less are the same, in the units of a target."""


def as_run(launch: Launch, asked: Scenario, stack: Runtime) -> Scenario:
    """What was asked, but for all that the files say; `stack` runs them."""
    job = ExportJob.of(asked)
    words = _words(launch, job)
    micro = words.micro or job.micro
    plan = Plan.of(
        replace(words, micro=None), devices=job.devices, runtime=stack, micro_batch=micro
    )
    changed = {name: value for name, value in launch.options.items() if stack.option(name) != value}
    given = _bytes_as_given(changed, asked)
    same = replace(
        asked,
        plan=plan,
        workload=_workload(launch, asked, plan),
        runtime=stack.with_options(given) if given else stack,
    )
    return replace(same, compiled=CompiledStages())


def refused(scenario: Scenario, launch: Launch) -> tuple[str, ...]:
    """Why the stack cannot run what the files say."""
    job = ExportJob.of(scenario)
    words = _words(launch, job).with_devices(scenario.cluster.device_count)
    sized = replace(words, micro=words.micro or job.micro)
    return tuple(refusals(scenario.runtime, sized, facts_of(scenario.workload)))


def _words(launch: Launch, job: ExportJob) -> Words:
    """What only repeats what the stack does by itself is left open, as in the plan that was asked for."""
    words, own = launch.words(job.words), job.words
    if words.buckets is not None and abs(words.buckets / job.bucket_bytes - 1) < ROUNDING:
        words = replace(words, buckets=own.buckets)
    if words.layers is not None and own.layers is None:
        parts = parts_of(job)
        if parts and tuple(part.count("t") for part in parts) == words.layers:
            words = replace(words, layers=None)
    return words


def _bytes_as_given(options: Mapping[str, Any], asked: Scenario) -> dict[str, Any]:
    """Without widths of gradients that are those of the precision anyway."""
    own = asked.workload.precision.gradient_bytes
    stack = asked.runtime.gradients.gradient_bytes
    width = options.get("gradient_bytes", stack)
    is_same = (own if width is None else width) == (own if stack is None else stack)
    return {k: v for k, v in options.items() if k != "gradient_bytes" or not is_same}


def _workload(launch: Launch, asked: Scenario, plan: Plan) -> Workload:
    workload = asked.workload
    changes: dict[str, Any] = {"model": _model(launch, asked)}
    counted = launch.passes and launch.passes * plan.schedule.micro_batch * plan.replicas
    if launch.batch or counted:
        changes["global_batch"] = launch.batch or counted
    if launch.precision and launch.precision != workload.precision.name:
        changes["precision"] = precision(launch.precision)
    if launch.optimizers and workload.optimizer.name not in launch.optimizers:
        changes["optimizer"] = optimizer(launch.optimizers[0])
    return replace(workload, **changes)


def _model(launch: Launch, asked: Scenario) -> Model:
    """The model, drawn anew where the files have another one."""
    model, shape = asked.workload.model, ExportJob.of(asked).shape
    if launch.adapters is not None:
        return _with_adapters(model, launch.adapters)
    if shape is None or not launch.shape or model.seq_len is None:
        return model
    seq = launch.seq or model.seq_len
    drawn = transformer(replace(shape, **launch.shape), seq, model.name, model.source)
    return model if (drawn.blocks, drawn.tied) == (model.blocks, model.tied) else drawn


def _with_adapters(model: Model, adapters: Adapters) -> Model:
    own = adapters_in(model)
    if own is None or (own.rank, set(own.targets)) == (adapters.rank, set(adapters.targets)):
        return model
    return with_adapters(without_adapters(model), adapters)
