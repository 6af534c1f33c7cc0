"""The batch of a case: in all, per forward pass, or per device."""

from __future__ import annotations

from typing import Any

import pytest

from foretrain.cases import scenario_from_case
from foretrain.errors import CaseError
from foretrain.scenario import Scenario


def found(batch: dict[str, Any], **plan: int) -> Scenario:
    return scenario_from_case(
        {
            "model": {"zoo": "resnet50"},
            "cluster": {"device": "v100-sxm2-16gb", "devices_per_node": 4, "nodes": 2},
            "plan": plan,
            "batch": batch,
            "precision": "fp16",
            "optimizer": "sgd",
            "runtime": "ddp",
        }
    )


def test_a_batch_per_device_makes_the_global_one() -> None:
    scenario = found({"per_device": 64})
    assert scenario.workload.global_batch == 8 * 64
    assert any("batch.per_device = 64 x 8 replicas" in line for line in scenario.assumptions)


def test_a_batch_per_device_that_agrees_is_not_mentioned() -> None:
    scenario = found({"global": 512, "micro": 32, "per_device": 64})
    assert not any("per_device" in line for line in scenario.warnings)


@pytest.mark.parametrize(
    ("batch", "told"),
    [
        ({"global": 512, "per_device": 32}, "contradicts batch.global = 512 over 8 replicas"),
        ({"per_device": 64, "micro": 48}, "not a multiple of batch.micro = 48"),
    ],
)
def test_a_batch_per_device_that_contradicts_is_told(batch: dict[str, Any], told: str) -> None:
    assert any(told in line for line in found(batch).warnings)


def test_a_batch_per_device_of_no_sample_is_refused() -> None:
    with pytest.raises(CaseError, match=r"batch\.per_device = 0"):
        found({"per_device": 0})
