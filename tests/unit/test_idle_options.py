"""Options that a model, a plan or a stack has no use for are told, and those alone."""

from __future__ import annotations

from typing import Any

import pytest

from foretrain.resolving.resolve import ask
from foretrain.runtime import option_needs, option_table
from foretrain.scenario import Scenario
from foretrain.simulate import simulate_scenario

UNUSUAL: dict[str, Any] = {
    "hot_row_threshold": 5,
    "sends_looked_up": True,
    "groups_experts": False,
    "sends_tokens_once": True,
    "expert_overlap": 0.9,
    "channels_last": False,
    "rotary": "complex",
    "tp_comm_overlap": True,
    "tp_dgrad_overlap": True,
    "exchange_share": 0.5,
    "regathers_sequence": False,
    "overlaps_pipeline": False,
    "scatters_pipeline": True,
    "places_by_products": True,
    "host_blocks_on_pipeline": True,
    "host_delay_on_network": "1ms",
    "selective": "blocks",
    "calls_per_part": 3,
    "splits_from": 1000,
    "gathers_rerun": True,
    "copies_gathered": True,
    "copies_out_gathered": True,
    "copies_in_gradients": True,
    "prefetched_blocks": 3,
    "shards_master": True,
    "gathers_quantised": "fp8",
    "keeps_gathered_in_pipelines": True,
    "overlaps_parameter_gather": True,
    "update_copies": 1,
    "overlaps_scatters": False,
    "scatters_gradients": False,
    "fusion_copies": 50,
    "negotiation_rounds": 5,
    "negotiation_seconds_per_hop": "1ms",
    "negotiation_seconds_per_rank": "1ms",
}


def asked(options: dict[str, Any], model: str = "gpt2", **words: Any) -> Scenario:
    given = {"on": "1 x dgx-h100", "plan": "dp8", "batch": 64, "micro_batch": 8, **words}
    return ask(model, **{"runtime": "ddp", **given}, runtime_options=options)


def told(found: Scenario) -> set[str]:
    return {line.split(" = ")[0] for line in found.warnings if "has no effect" in line}


def test_every_option_with_a_need_is_looked_at() -> None:
    assert UNUSUAL.keys() == option_needs().keys()
    assert option_needs().keys() <= option_table().keys()


@pytest.mark.parametrize("plan", ["dp8", "cp2 dp4"])
@pytest.mark.parametrize("key", UNUSUAL)
def test_an_option_without_effect_is_told_and_has_none(key: str, plan: str) -> None:
    found = asked({key: UNUSUAL[key]}, plan=plan)
    has_use = "cp2" in plan and key == "regathers_sequence"
    assert told(found) == ({key} if not has_use else set())
    if has_use:
        return
    with_it, without = simulate_scenario(found), simulate_scenario(asked({}, plan=plan))
    assert with_it.step_seconds == without.step_seconds
    assert with_it.memory == without.memory


def test_what_a_plan_has_is_not_told() -> None:
    sharded = told(asked(UNUSUAL, "llama3-8b", plan="tp2 pp2 dp2 zero3 recompute=selective",
                         micro_batch=1, runtime="megatron"))  # fmt: skip
    assert sharded == {
        "hot_row_threshold", "sends_looked_up", "groups_experts", "sends_tokens_once",
        "expert_overlap", "channels_last", "fusion_copies", "negotiation_rounds",
        "negotiation_seconds_per_hop", "negotiation_seconds_per_rank",
    }  # fmt: skip


def test_what_a_model_or_stack_has_is_not_told() -> None:
    assert not told(asked({"groups_experts": False}, "mixtral-8x7b", micro_batch=1))
    assert not told(asked({"channels_last": False}, "resnet50"))
    assert not told(asked({"hot_row_threshold": 5}, "dlrm-small", batch=8192, micro_batch=1024))
    assert not told(asked({"fusion_copies": 2}, runtime="horovod"))


def test_a_word_of_the_software_is_told_as_the_field_it_sets() -> None:
    found = asked({"moe_dispatcher": "deepep"})
    assert "moe_dispatcher = 'deepep' has no effect: gpt2 has no experts." in found.warnings
