"""One plan as the estimator and the simulator see it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from foretrain.plan.parallelism import expert_tensor_degree
from foretrain.plan.short_form import Words, schedule_of
from foretrain.planning.choices import COLUMNS, Choices, Palette
from foretrain.planning.estimator import Estimates, Estimator
from foretrain.planning.footprint import peak_bytes
from foretrain.planning.plan_batch import PlanBatch, plan_batch
from foretrain.planning.task import Task
from foretrain.scenario import Scenario


def estimated(scenario: Scenario) -> Estimates:
    """The estimate of the scenario's own plan, in row 0."""
    task, plan = Task.of(scenario), scenario.plan
    words = replace(task.words(plan.text), micro=plan.schedule.micro_batch)
    return Estimator(task, only_fitting=False).estimate(choices(task, words))


def choices(task: Task, *said: Words) -> Choices:
    """Plans as a table."""
    names = [f.name for f in fields(Palette) if f.name != "defaults"]
    said = tuple(
        replace(words, schedule=schedule_of(words).kind, etp=_inside_experts(words))
        for words in said
    )
    options = {n: tuple(dict.fromkeys(getattr(words, n) for words in said)) for n in names}
    rows = [
        [options[n].index(getattr(words, n)) if n in names else int(getattr(words, n) or 0) for n in COLUMNS]
        for words in said
    ]  # fmt: skip
    return Choices.of(Palette(**options, defaults=task.defaults), np.array(rows, np.int32).T)


def _inside_experts(words: Words) -> int:
    """The column names the degree that a plan without a word means."""
    return expert_tensor_degree(words) if words.ep > 1 else words.tp


def fleet(scenario: Scenario) -> PlanBatch:
    """The scenario's own plan, ready for closed forms."""
    task, plan = Task.of(scenario), scenario.plan
    words = replace(task.words(plan.text), micro=plan.schedule.micro_batch)
    chosen, estimator = choices(task, words.with_devices(task.devices)), Estimator(task)
    rows, known = estimator.states(chosen)
    return plan_batch(estimator.shares, chosen, known, rows, estimator.exchanges)


def held_bytes(scenario: Scenario) -> float:
    """What the estimator says of memory alone, on the fullest stage of the scenario's own plan."""
    return float(peak_bytes(fleet(scenario))[0][0])
