"""Follow-up questions: does it fit and what would make it, and what if something were different."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from foretrain.analysis.prediction import Prediction
from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import ExecutionGraph
from foretrain.errors import InputError, did_you_mean
from foretrain.forecast import Question, answer, ask, compile_question
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words, parse
from foretrain.units import parse_count


@dataclass(frozen=True, slots=True)
class FitChange:
    """A changed plan and whether it fits."""

    change: str
    peak_bytes: float
    fits: bool
    step_seconds: float


@dataclass(frozen=True)
class FitAnswer:
    """`changes` from the smallest to the largest intrusion; empty when it fits as it is."""

    prediction: Prediction
    fits: bool
    changes: tuple[FitChange, ...]


def compile_graph(model: Any, **question: Any) -> ExecutionGraph:
    """The execution graph of the question that `predict` would answer."""
    return compile_question(ask(model, **question))


def fit(model: Any, **question: Any) -> FitAnswer:
    """Whether a plan fits in memory, and the changes that would make it fit."""
    asked = ask(model, **question)
    prediction = answer(asked)
    if prediction.fits:
        return FitAnswer(prediction, True, ())
    return FitAnswer(prediction, False, tuple(_tried(asked)))


def _tried(asked: Question) -> Iterator[FitChange]:
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


def _smaller_plans(asked: Question) -> Iterator[tuple[str, Plan]]:
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
        for words in _sharded(parse(asked.plan.text)):
            try:
                plan = Plan.of(
                    words,
                    devices=asked.cluster.device_count,
                    runtime=asked.runtime,
                    micro_batch=schedule.micro_batch,
                )
            except InputError:
                continue
            yield plan.text, plan


def _sharded(words: Words) -> Iterator[Words]:
    dp = words.dp or 1
    for stage in range(words.zero + 1, 4):
        if dp * words.cp > 1:
            yield replace(words, zero=stage)
    if "optimizer" not in words.offload:
        yield replace(words, offload=(*words.offload, "optimizer"))
    for name in ("tp", "pp"):
        if dp % 2 == 0:
            yield replace(words, dp=dp // 2, **{name: getattr(words, name) * 2})
    if dp % 2 == 0 and dp > 2:
        yield replace(words, dp=dp // 4 or 1, tp=words.tp * 2, pp=words.pp * 2, recompute="full")
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
_ASKED = ("plan", "batch", "micro_batch", "seq", "precision", "optimizer", "runtime", "on", "model")
_COUNTS = ("batch", "micro_batch", "seq")


def whatif(
    model: Any, *, changes: Mapping[str, Any], **question: Any
) -> tuple[Prediction, Prediction]:
    """The prediction as asked and with `changes`: `{"network.bandwidth": "2x", "plan": "tp4 pp4"}`."""
    known = (*_SCALES, "host", *_ASKED)
    unknown = [key for key in changes if key not in known]
    if unknown:
        faults = [f"{key}: cannot be changed.{did_you_mean(key, known)}" for key in unknown]
        raise InputError(f"what-if knows {', '.join(known)}:", faults=faults)
    base = ask(model, **question)
    return answer(base), answer(_changed(model, question, base, changes))


def _changed(
    model: Any, question: Mapping[str, Any], base: Question, changes: Mapping[str, Any]
) -> Question:
    renamed = dict(question)
    for key in _ASKED:
        if key in changes:
            renamed[key] = parse_count(changes[key]) if key in _COUNTS else changes[key]
    asked = ask(renamed.pop("model", model), **renamed)
    scales = {_SCALES[key]: _factor(key, changes[key]) for key in changes if key in _SCALES}
    if scales:
        asked = replace(asked, cluster=_scaled(asked.cluster, scales))
    if "host" in changes:
        factor = _factor("host", changes["host"], zero_allowed=True)
        runtime = asked.runtime.with_options(
            {
                "host_seconds_per_kernel": asked.runtime.host_seconds_per_kernel * factor,
                "host_seconds_per_collective": asked.runtime.host_seconds_per_collective * factor,
            }
        )
        asked = replace(asked, runtime=runtime)
    return asked


def _scaled(cluster: Cluster, scales: Mapping[str, float]) -> Cluster:
    return cluster.scaled(**scales)


def _factor(key: str, value: Any, zero_allowed: bool = False) -> float:
    text = str(value).strip().lower().removesuffix("x")
    try:
        factor = float(text)
    except ValueError:
        factor = float("nan")
    if not (0 <= factor < 1e6) or (factor == 0 and not zero_allowed):
        raise InputError(f"{key}={value}: give a factor such as 2x or 0.5x.")
    return factor
