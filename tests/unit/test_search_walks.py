"""Ranking costs no more than it needs: walks that are another's are left out, and nothing is analysed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.plans import tiny_model

from foretrain import simulate
from foretrain.planning.layerwise import _higher
from foretrain.planning.markov import LayerState, LayerwiseProblem
from foretrain.planning.planner import search
from foretrain.planning.task import Task
from foretrain.testing.asking import ask


def higher(problem: LayerwiseProblem, *degrees: int, devices: int = 64) -> LayerwiseProblem | None:
    walk = SimpleNamespace(choices=[LayerState(tp, "none") for tp in degrees])
    return _higher(SimpleNamespace(devices=devices), walk, problem)


def test_a_walk_that_is_more_parallel_throughout_stands_on_a_higher_ground():
    """Twice as many ranks share twice as many samples."""
    assert higher(LayerwiseProblem(4, 2, 1, 1), 4, 8, 4) == LayerwiseProblem(4, 4, 2, 1)
    assert higher(LayerwiseProblem(4, 2, 1, 1), 4, 2, 4) is None


def test_without_replicas_nothing_is_left_for_zero():
    assert higher(LayerwiseProblem(16, 2, 1, 1), 4, 4) == LayerwiseProblem(16, 4, 2, 0)


def test_plans_are_ranked_without_an_analysis(monkeypatch):
    def refused(simulated: object) -> None:
        raise AssertionError("analysed")

    monkeypatch.setattr(simulate, "_prediction", refused)
    asked = ask(tiny_model("gpt"), on="1 x dgx-a100-80gb", batch=8)
    task = Task(asked.workload, asked.cluster, asked.runtime)
    found = search(task, where=["micro=1", "no offload"], top=3)
    times = [row.score.step_seconds for row in found.best]
    assert len(times) == 3
    assert times == sorted(times)
    with pytest.raises(AssertionError, match="analysed"):
        _ = found.best[0].prediction
