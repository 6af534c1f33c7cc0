"""Blocks are compiled once for all questions that cut them alike."""

from __future__ import annotations

from dataclasses import replace

from foretrain.compile.blocks import Blocks, blocks_of
from foretrain.model.ops import FAMILIES
from foretrain.resolving import ask
from foretrain.scenario import Scenario


def asked(on: str = "2 x dgx-h100", batch: int = 64, **more: object) -> Scenario:
    said = {"plan": "tp4 pp2 dp2", "micro_batch": 1, "runtime": "nemo", **more}
    return ask("llama3-8b", on=on, batch=batch, **said)


def of(scenario: Scenario) -> Blocks:
    return blocks_of(scenario.workload, scenario.plan, scenario.runtime)


def test_neither_the_batch_nor_the_machine_decides_what_a_block_runs() -> None:
    first = of(asked())
    assert of(asked(batch=128)) is first
    assert of(asked(on="2 x dgx-a100-80gb", runtime=asked().runtime)) is first


def test_what_decides_it_is_told_apart() -> None:
    first = of(asked())
    others = (
        asked(plan="tp2 pp2 dp4"), asked(plan="tp4 pp2 dp2 recompute=full"), asked(micro_batch=2), asked(seq=4096),
        asked(precision="fp8"), asked(runtime="megatron"),
    )  # fmt: skip
    assert all(of(other) is not first for other in others)


def test_a_family_registered_under_the_same_name_is_another() -> None:
    scenario = asked()
    first, linear = of(scenario), FAMILIES["linear"]

    class Other(type(linear)):  # type: ignore[misc]
        pass

    try:
        FAMILIES["linear"] = Other()
        assert of(scenario) is not first
    finally:
        FAMILIES["linear"] = linear
    assert of(scenario) is first


def test_the_text_of_a_plan_decides_nothing() -> None:
    scenario = asked()
    said = replace(scenario, plan=replace(scenario.plan, text="another name"))
    assert of(said) is of(scenario)
