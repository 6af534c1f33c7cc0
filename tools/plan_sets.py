"""Measured plans of one workload and cluster, ranked: is the plan that comes out first among the best measured?"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from case_steps import is_timed, step_of

from foretrain.cases import scenario_from_case
from foretrain.errors import InputError
from foretrain.planning.explain import estimate
from foretrain.planning.task import Task
from foretrain.validation.cases import blind

LEAST_SET = 5
NEAR = 0.05
"""how far behind the best measured plan the first may be"""


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """One measured run; seconds are of a step. `estimated` is None where nobody asked for it."""

    id: str
    model: str
    plan: str
    samples: int
    measured: float
    simulated: float
    estimated: float | None = None

    def per_sample(self, by: str) -> float:
        return float(getattr(self, by)) / self.samples


@dataclass(frozen=True, slots=True)
class PlanSet:
    """The measured plans of one model, cluster and stack, of one batch or of any."""

    group: str
    name: str
    plans: tuple[MeasuredPlan, ...]

    def first(self, by: str) -> MeasuredPlan:
        """The fastest per sample; by `measured`, `simulated` or `estimated`."""
        return min(self.plans, key=lambda plan: plan.per_sample(by))

    def behind(self, by: str) -> float:
        """What taking the first costs, relative to the best measured."""
        best = self.first("measured").per_sample("measured")
        return self.first(by).per_sample("measured") / best - 1.0


def measured_sets(
    cases: Iterable[Mapping[str, Any]], *, is_estimated: bool = True, same_batch: bool = True
) -> list[PlanSet]:
    """All sets of at least so many plans that can be predicted, in the order of the cases.

    Batches are part of a workload, so plans of unlike ones are kept apart, unless `same_batch` is off; they
    are then compared by time per sample.
    """
    rows: dict[str, list[Mapping[str, Any]]] = {}
    for case in cases:
        if is_timed(case):
            rows.setdefault(workload_of(case, same_batch), []).append(case)
    large = [found for found in rows.values() if len(found) >= LEAST_SET]
    sets = [_ranked(found, is_estimated, same_batch) for found in large]
    return [one for one in sets if len(one.plans) >= LEAST_SET]


def share_near(sets: Sequence[PlanSet], by: str = "simulated") -> float:
    """The share of sets whose first plan is among the best."""
    return sum(one.behind(by) <= NEAR for one in sets) / len(sets)


def workload_of(case: Mapping[str, Any], same_batch: bool) -> str:
    """What plans must share to be alternatives: all but the plan itself and its micro-batch."""
    names = ("group", "model", "cluster", "devices", "seq_len", "precision", "runtime")
    same = [case.get(name) for name in names]
    return json.dumps([*same, case["batch"]["global"] if same_batch else None], sort_keys=True)


def _ranked(rows: Sequence[Mapping[str, Any]], is_estimated: bool, same_batch: bool) -> PlanSet:
    plans = []
    for case in rows:
        try:
            plans.append(_predicted(case, is_estimated))
        except InputError:  # a configuration that cannot be laid out is no plan to choose
            continue
    first = rows[0]
    model = plans[0].model if plans else "?"
    batch = f", batch {first['batch']['global']}" if same_batch else ""
    name = f"{model}, {first['devices']} x {first['cluster']['device']}{batch}"
    return PlanSet(str(first.get("group", "")), name, tuple(plans))


def _predicted(case: Mapping[str, Any], is_estimated: bool) -> MeasuredPlan:
    question = scenario_from_case(blind(case))
    task = Task.of(question)
    words = replace(task.words(question.plan.text), micro=question.plan.schedule.micro_batch)
    step = step_of(case)
    guess = None
    if is_estimated:
        guess = estimate(task, words).seconds
    return MeasuredPlan(
        id=step.id,
        model=question.workload.model.name,
        plan=f"{question.plan.text} micro={question.plan.schedule.micro_batch}",
        samples=int(case["batch"]["global"]),
        measured=step.measured,
        simulated=step.seconds,
        estimated=guess,
    )
