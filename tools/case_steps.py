"""The step of a measured case alone: no memory, no remedies, no documents. What fits and ablations run by the thousand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log
from typing import Any

from foretrain.analysis.stalls import stalls
from foretrain.analysis.uncertainty import Trust, trust
from foretrain.cases import scenario_from_case
from foretrain.compile import ExecutionGraph
from foretrain.cost.compute import ComputeModel
from foretrain.scenario import Scenario
from foretrain.simulate import compile_scenario, cost_scenario, known_of, simulate
from foretrain.validation.cases import blind


@dataclass(frozen=True, slots=True)
class Step:
    """One case: what was predicted and what was measured."""

    id: str
    group: str
    seconds: float
    measured: float
    trust: Trust | None = None

    @property
    def log_error(self) -> float:
        """Positive where the prediction is too long."""
        return log(self.seconds / self.measured)


def is_timed(case: Mapping[str, Any]) -> bool:
    """Whether there is a step time to compare with."""
    measured = case.get("measured") or {}
    return measured.get("ok") is not False and bool(measured.get("step_time_s"))


def asked(case: Mapping[str, Any], options: Mapping[str, Any] | None = None) -> Scenario:
    """The question of a case, its runtime changed by `options`."""
    question = scenario_from_case(blind(case))
    if not options:
        return question
    return replace(question, runtime=question.runtime.with_options(options))


def step_of(
    case: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    *,
    compute: ComputeModel | None = None,
    graph: ExecutionGraph | None = None,
    with_trust: bool = False,
) -> Step:
    """Predict the step; `graph` is what the same question was compiled to before."""
    question = asked(case, options)
    graph = graph or compile_scenario(question, compute=compute)
    costs = cost_scenario(question, graph, compute)
    run = simulate(graph, costs)
    seconds = float(run.end.max())
    certainty = None
    if with_trust:
        certainty = trust(graph, costs, stalls(graph, costs, run, seconds), known_of(question))
    measured = float(case["measured"]["step_time_s"])
    return Step(str(case.get("id", "")), str(case.get("group", "")), seconds, measured, certainty)
