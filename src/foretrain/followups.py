"""Follow-up questions: does it fit and what would make it, and what if something were different."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Unpack

from foretrain.analysis.answer import Answer
from foretrain.analysis.answers import FitAnswer, FitChange, WhatIf
from foretrain.asked import OF_JOBS, Asked, AskedStep, ModelLike
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import ExecutionGraph
from foretrain.errors import InputError, did_you_mean
from foretrain.keywords import keywords
from foretrain.limits import FACTOR, shown
from foretrain.plan.defaults import PlanDefaults, plan_defaults
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words, parse
from foretrain.resolving import ask
from foretrain.resolving.stack import is_switch, known_options, spelled
from foretrain.scenario import Scenario
from foretrain.simulate import answer, compile_scenario
from foretrain.units import parse_count


@dataclass(frozen=True, slots=True, repr=False)
class Compiled(Answer, ExecutionGraph):
    """The compiled program of a step, and of which."""

    asked: Scenario

    def to_dict(self) -> dict[str, Any]:
        return self._told()


@keywords(AskedStep, of_jobs=OF_JOBS)
def compile_graph(model: ModelLike, **question: Unpack[AskedStep]) -> Compiled:
    """Return the compiled program of a step: rank classes, streams, tasks and their dependencies.

    Args:
        model: as for `predict`.
        **question: the keywords of `predict` but those of a job.

    >>> from foretrain import compile_graph
    >>> graph = compile_graph("gpt2", on="1 x dgx-h100", plan="tp4 dp2", batch=64)
    >>> len(graph.stages), len(graph.task_kind) > 0
    (1, True)
    """
    asked = ask(model, **question)
    graph = compile_scenario(asked)
    own = {field.name: getattr(graph, field.name) for field in fields(ExecutionGraph)}
    return Compiled(**own, asked=asked)


@keywords(AskedStep, of_jobs=OF_JOBS)
def fit(model: ModelLike, **question: Unpack[AskedStep]) -> FitAnswer:
    """Check whether a plan fits in memory, and which changes would make it fit, least intrusive first.

    Args:
        model: as for `predict`.
        **question: the keywords of `predict` but those of a job.

    >>> from foretrain import fit
    >>> answer = fit("llama3-8b", on="1 x dgx-h100", plan="dp8", batch=64, micro_batch=1, runtime="megatron")
    >>> answer.fits, any(change.fits for change in answer.changes)
    (False, True)
    """
    asked = ask(model, **question)
    prediction = answer(asked)
    if prediction.fits:
        return FitAnswer(prediction, True, ())
    return FitAnswer(prediction, False, tuple(_tried(asked)))


def _tried(asked: Scenario) -> Iterator[FitChange]:
    seen: set[str] = set()
    for text, plan in _smaller_plans(asked):
        if text in seen:
            continue
        seen.add(text)
        try:
            found = answer(replace(asked, plan=plan))
        except InputError:
            continue  # a change that this model or cluster does not allow is no remedy
        yield FitChange(text, found.memory.peak_bytes, found.fits, found.step_seconds)


def _smaller_plans(asked: Scenario) -> Iterator[tuple[str, Plan]]:
    schedule = asked.plan.schedule
    if schedule.micro_batch > 1:
        half = replace(schedule, micro_batch=schedule.micro_batch // 2)
        yield f"micro-batch {half.micro_batch}", _with_root(asked.plan, schedule=half)
        one = replace(schedule, micro_batch=1)
        yield "micro-batch 1", _with_root(asked.plan, schedule=one)
    for choice in ("selective", "full"):
        if asked.plan.root.recompute not in (choice, "full"):
            yield f"recompute={choice}", _with_root(asked.plan, recompute=choice)
    if asked.plan.text:
        devices, defaults = (
            asked.cluster.device_count,
            plan_defaults(asked.runtime, asked.workload.model),
        )
        for words in _sharded(parse(asked.plan.text, defaults, devices), defaults):
            try:
                plan = Plan.of(
                    words,
                    devices=devices,
                    runtime=asked.runtime,
                    defaults=defaults,
                    micro_batch=schedule.micro_batch,
                )
            except InputError:
                continue
            yield plan.text, plan


def _sharded(words: Words, defaults: PlanDefaults) -> Iterator[Words]:
    dp = words.dp or 1

    def split(**degrees: Any) -> Words:
        """Sequence parallelism comes with tensor parallelism where the stack has it so."""
        found = replace(words, **degrees)
        return found if words.tp > 1 else replace(found, sp=defaults.sp_of(found))

    for stage in range(words.zero + 1, 4):
        if dp * words.cp > 1:
            yield replace(words, zero=stage)
    if "optimizer" not in words.offload:
        yield replace(words, offload=(*words.offload, "optimizer"))
    for name in ("tp", "pp"):
        if dp % 2 == 0:
            yield split(dp=dp // 2, **{name: getattr(words, name) * 2})
    if dp % 2 == 0 and dp > 2:
        yield split(dp=dp // 4 or 1, tp=words.tp * 2, pp=words.pp * 2, recompute="full")
    sharded = max(words.zero, 1 if dp > 1 else 0)
    yield replace(words, zero=sharded, recompute="full")
    yield replace(words, zero=sharded, recompute="full", offload=("optimizer",))


def _with_root(plan: Plan, **fields: Any) -> Plan:
    return replace(plan, root=replace(plan.root, **fields))


_SCALES = {
    "network.bandwidth": "network",
    "network.latency": "network_latency",
    "interconnect.bandwidth": "interconnect",
    "interconnect.latency": "interconnect_latency",
    "device.compute": "compute",
    "device.memory_bandwidth": "memory_bandwidth",
    "device.memory": "memory",
    "storage.bandwidth": "storage",
}
_ASKED = ("plan", "batch", "micro_batch", "seq", "precision", "optimizer", "runtime", "headroom", "on",
          "model")  # fmt: skip
_COUNTS = ("micro_batch", "seq")


CHANGES = (*_SCALES, "host", *_ASKED)
"""What a what-if can change and a sweep can vary, beside the options of the runtime."""


@keywords(Asked)
def whatif(model: ModelLike, *, changes: Mapping[str, Any], **question: Unpack[Asked]) -> WhatIf:
    """Predict the step before and after a change.

    Args:
        model: as for `predict`.
        changes: hardware factors (`{"network.bandwidth": "2x", "device.compute": 1.5, "host": 0}`), other
            arguments (`{"plan": "tp4 pp4", "batch": 512}`) or options of the runtime (`{"cuda_graphs": True}`).
        **question: the keywords of `predict`.

    >>> from foretrain import whatif
    >>> after = whatif("gpt2", on="2 x dgx-h100", plan="dp16", batch=64, changes={"network.bandwidth": "2x"})
    >>> after.speedup > 1
    True
    """
    expect_changes(changes)
    base = ask(model, **question)
    return WhatIf(answer(base), answer(changed(model, question, changes)), changes)


def expect_changes(names: Iterable[str]) -> None:
    """Refuse what cannot be changed, all of it at once."""
    unknown = [name for name in names if name not in CHANGES and not is_switch(name)]
    if unknown:
        known = (*CHANGES, *known_options())
        faults = [f"{name}: cannot be changed.{did_you_mean(name, known)}" for name in unknown]
        raise InputError(
            f"unknown change; known: {', '.join(CHANGES)} and options of the runtime such as "
            "cuda_graphs:",
            faults=faults,
        )


def changed(model: ModelLike, question: Mapping[str, Any], changes: Mapping[str, Any]) -> Scenario:
    """The question with other values and other hardware."""
    renamed: dict[str, Any] = dict(question)
    for key in _ASKED:
        if key in changes:
            renamed[key] = parse_count(changes[key], key) if key in _COUNTS else changes[key]
    switches = {key: changes[key] for key in changes if key not in CHANGES}
    if switches:
        renamed["runtime_options"] = {
            **spelled(renamed.get("runtime_options") or {}),
            **spelled(switches),
        }
    scales = {_SCALES[key]: _factor(key, changes[key]) for key in changes if key in _SCALES}
    memory = scales.pop("memory", None)
    if memory is not None:  # first, since it decides what fits: plan, micro-batch, headroom
        read = Cluster.read(renamed["on"])
        renamed["on"] = read._replace(cluster=_scaled(read.cluster, {"memory": memory}))
    asked = ask(renamed.pop("model", model), **renamed)
    if scales:
        asked = replace(asked, cluster=_scaled(asked.cluster, scales))
    if "host" in changes:
        factor = _factor("host", changes["host"], zero_allowed=True)
        asked = replace(asked, runtime=asked.runtime.with_host(factor))
    return asked


def _scaled(cluster: Cluster, scales: Mapping[str, float]) -> Cluster:
    return cluster.scaled(**scales)


def _factor(key: str, value: Any, zero_allowed: bool = False) -> float:
    text = str(value).strip().lower().removesuffix("x")
    try:
        factor = float(text)
    except ValueError:
        factor = float("nan")
    if not (FACTOR.allows(factor) or (factor == 0 and zero_allowed)):
        raise InputError(
            f"{key}={shown(value)}: expected a factor such as 2x or 0.5x, from "
            f"{FACTOR.least:g} to {FACTOR.most:g}."
        )
    return factor
