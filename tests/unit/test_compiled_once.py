"""A question compiles no plan twice, however often its memory and its time are asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import foretrain
from foretrain import simulate
from foretrain.advice.facade import what_would_help
from foretrain.compile import Compilation
from foretrain.compile.passes import shard
from foretrain.resolving import ask

SIZED = {"model": "llama3-8b", "on": "2 x dgx-h100", "plan": "tp4 pp2 dp2", "batch": 256}
ALONE = {"model": "resnet50", "on": "1 x dgx-a100-80gb", "runtime": "ddp", "batch": 2048}
SEARCHED = {"model": "llama3-8b", "on": "1 x dgx-a100-40gb", "runtime": "fsdp", "batch": 64}


def compiled(monkeypatch: pytest.MonkeyPatch, question: dict[str, Any]) -> tuple[Counter[Any], Any]:
    """The plans that a question compiles, with how often each, and its answer."""
    found: Counter[Any] = Counter()

    class Counted(Compilation):
        def __init__(self, workload: Any, plan: Any, runtime: Any, pace: Any = None) -> None:
            found[plan.mesh, plan.root] += 1
            super().__init__(workload, plan, runtime, pace)

    monkeypatch.setattr(simulate, "Compilation", Counted)
    return found, foretrain.predict(**question)


@pytest.mark.parametrize("question", [SIZED, ALONE, SEARCHED])
def test_no_plan_is_compiled_twice(
    monkeypatch: pytest.MonkeyPatch, question: dict[str, Any]
) -> None:
    plans, _ = compiled(monkeypatch, question)
    assert set(plans.values()) == {1}


def test_the_largest_micro_batch_that_surely_fits_is_the_only_one_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans, answer = compiled(monkeypatch, ALONE)
    ((_, root),) = plans
    assert root.schedule.micro_batch == answer.question["micro_batch"] == 2048 // 8


def test_a_step_of_another_length_is_the_same_from_either_compilation() -> None:
    long = foretrain.predict(**SIZED, micro_batch=1)
    sized = ask(**SIZED, micro_batch=1)
    short = replace(
        sized, workload=replace(sized.workload, global_batch=8), compiled=sized.compiled
    )
    simulate.simulate_scenario(short)
    assert len(sized.compiled) == 1
    found = simulate.simulate_scenario(sized)
    again = replace(found.prediction, what_would_help=what_would_help(found))
    assert again.to_dict() == long.to_dict()


def test_layers_that_are_alike_are_gathered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever their number: 32 of one model, 80 of the other."""
    gather_items, counts = shard.gather_items, []

    def counted(*given: Any) -> Any:
        counts[-1] += 1
        return gather_items(*given)

    monkeypatch.setattr(shard, "gather_items", counted)
    for model in ("llama3-8b", "llama3-70b"):
        counts.append(0)
        foretrain.predict(model, on="16 x dgx-h100", plan="dp128 zero3", batch=128, runtime="fsdp")
    assert counts[0] == counts[1] > 0
