"""Rank classes that meet in every collective of a chain run it as one task each: fewer tasks, the same step."""

from __future__ import annotations

import pytest
from support.plans import tiny_model
from support.verify import verify

from foretrain.compile import lowering
from foretrain.scenario import Scenario
from foretrain.simulate import compile_scenario, simulate_scenario
from foretrain.testing.asking import ask

ON = "2 x aws:p3.16xlarge"
"""Cubes of NVLinks beside PCIe switches: ranks of a tensor-parallel group differ in how they send."""


def question(plan: str, runtime: str = "megatron", **more: object) -> Scenario:
    return ask(
        tiny_model("gpt"), on=ON, plan=plan, batch=32, micro_batch=1, precision="fp16",
        runtime=runtime, **more,
    )  # fmt: skip


def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut chains at every collective of several classes, as where something may come between."""
    monkeypatch.setattr(lowering._SegmentLowering, "_runs", lambda self, numbers: None)


@pytest.mark.parametrize("runtime", ["megatron", "alpa", "deepspeed"])
@pytest.mark.parametrize("plan", ["tp4 pp4", "tp4 pp2 dp2 zero1", "tp2 pp4 dp2"])
@pytest.mark.parametrize("is_folded", [True, False])
def test_running_in_step_changes_no_time(plan, runtime, is_folded, monkeypatch):
    asked = question(plan, runtime)
    whole = simulate_scenario(asked, is_folded=is_folded)
    verify(whole.graph)
    apart(monkeypatch)
    cut = simulate_scenario(asked, is_folded=is_folded)
    assert whole.step_seconds == pytest.approx(cut.step_seconds, rel=1e-12)
    assert whole.memory == cut.memory
    assert sum(whole.prediction.stalls.values()) == pytest.approx(whole.step_seconds, rel=1e-12)
    moved, before = ({one.name: one.bytes for one in s.prediction.links} for s in (whole, cut))
    assert moved == pytest.approx(before)


def test_a_chain_in_step_is_far_fewer_tasks(monkeypatch):
    asked = question("tp4 pp4", "alpa")
    whole = compile_scenario(asked)
    apart(monkeypatch)
    cut = compile_scenario(asked)
    assert whole.fold.classes > whole.fold.stage_of.max() + 1
    assert 3 * whole.tasks < cut.tasks


def test_a_slow_device_is_waited_for_at_every_collective(monkeypatch):
    """Classes of unlike devices are not in step: the fast one waits in between."""
    asked = question("tp4 pp4", "alpa", stragglers={1: 2.0})
    slow = simulate_scenario(asked)
    first, second = (int((slow.graph.task_stage == stage).sum()) for stage in (0, 1))
    assert first > 3 * second
    apart(monkeypatch)
    assert slow.step_seconds == pytest.approx(simulate_scenario(asked).step_seconds, rel=1e-12)
