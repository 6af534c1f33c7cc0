"""Measured plans of one workload and cluster: the one the simulator ranks first is among the best.

Case files are not part of the project; without them the last test is skipped. `tools/search_quality.py` has every set.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from plan_sets import (
    LEAST_SET,
    MeasuredPlan,
    PlanSet,
    measured_sets,
    share_near,
)

from foretrain.validation.cases import read_cases

HERE = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("FORETRAIN_CASES", HERE.parent / "shared" / "cases" / "open"))
FILES = [FOLDER / f"{group}.jsonl" for group in ("vtrain_multi", "nanotron")]


def plan(name: str, measured: float, simulated: float, samples: int = 8) -> MeasuredPlan:
    return MeasuredPlan(name, "gpt", name, samples, measured, simulated)


def test_a_set_costs_what_its_first_plan_is_behind_the_best() -> None:
    right = PlanSet("g", "right", (plan("a", 1.0, 1.2), plan("b", 1.04, 1.3)))
    wrong = PlanSet("g", "wrong", (plan("a", 1.0, 1.4), plan("b", 1.1, 1.3)))
    assert right.behind("simulated") == 0.0
    assert wrong.behind("simulated") == pytest.approx(0.1)
    assert share_near([right, wrong]) == 0.5


def test_plans_of_unlike_batches_compare_by_time_per_sample() -> None:
    found = PlanSet(
        "g", "any batch", (plan("small", 1.0, 1.0), plan("large", 1.5, 1.5, samples=16))
    )
    assert found.first("measured").id == "large"


@pytest.mark.skipif(
    not all(path.is_file() for path in FILES),
    reason=f"no vtrain_multi.jsonl and nanotron.jsonl in {FOLDER} (set FORETRAIN_CASES)",
)
def test_first_of_measured_plans_is_among_the_best() -> None:
    sets = measured_sets(read_cases(FILES), is_estimated=False)
    assert len(sets) >= 15
    assert all(len(one.plans) >= LEAST_SET for one in sets)
    lost = {one.name: one.behind("simulated") for one in sets if one.behind("simulated") > 0.05}
    assert share_near(sets) >= 0.8, lost
