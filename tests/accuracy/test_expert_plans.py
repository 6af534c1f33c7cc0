"""Plans that experts published: those of small jobs are searched here, `tools/expert_plans.py` searches all."""

from __future__ import annotations

import pytest
from expert_plans import Expert, experts, judged, sources

NODES = ("1 x dgx-h100", "1 x dgx-b200", "1 x dgx-a100-80gb")
QUICK = [
    one for one in experts() if one.quick and one.cluster in NODES and one.source != "torchtitan"
]


def test_every_expert_has_a_source() -> None:
    assert len({one.key for one in experts()}) == len(experts()) >= 40
    assert {one.source for one in experts()} == {*sources()}


@pytest.mark.parametrize("expert", QUICK, ids=[f"{one.source}-{one.model}" for one in QUICK])
def test_an_experts_plan_is_searched_and_not_better_than_what_is_found(expert: Expert) -> None:
    row = judged(expert)
    assert row.simulation.memory.fits
    assert not row.refused
    assert not row.lacking, row.lacking
    assert row.found_seconds <= row.seconds, row.found_text
