"""Does a plan fit in memory, and what would make it fit?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Unpack

from foretrain.analysis.answers import FitAnswer, FitChange
from foretrain.asked import OF_JOBS, AskedStep, ModelLike
from foretrain.errors import InputError
from foretrain.keywords import keywords
from foretrain.plan.defaults import PlanDefaults, plan_defaults
from foretrain.plan.facts import facts_of
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words, parse
from foretrain.plan.supported import refusals
from foretrain.resolving import ask
from foretrain.scenario import Scenario
from foretrain.simulate import answer


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
    tried: set[str] = set()
    for text, plan in _smaller_plans(asked):
        if text in tried:
            continue
        tried.add(text)
        try:
            prediction = answer(replace(asked, plan=plan))
        except InputError:
            continue  # a change that this model or cluster does not allow is no remedy
        yield FitChange(
            text, prediction.memory.peak_bytes, prediction.fits, prediction.step_seconds
        )


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
        said = parse(asked.plan.text, defaults, devices)
        facts, micro = facts_of(asked.workload), schedule.micro_batch
        is_able = not any(refusals(asked.runtime, replace(said, micro=micro), facts))
        for words in _sharded(said, defaults):
            if is_able and any(refusals(asked.runtime, replace(words, micro=micro), facts)):
                continue
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
        new_words = replace(words, **degrees)
        return new_words if words.tp > 1 else replace(new_words, sp=defaults.sp_of(new_words))

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
