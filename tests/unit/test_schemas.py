"""Every document has a JSON Schema, and real documents satisfy the parts that name their fields."""

from __future__ import annotations

import json

import pytest

from foretrain import Plan, predict, schema
from foretrain.errors import InputError
from foretrain.runtime import runtime

NAMES = ("cluster", "plan", "model", "case", "prediction", "search", "runtime", "calibration")


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_json_and_says_what_it_is_of(name: str) -> None:
    found = json.loads(json.dumps(schema(name)))
    assert found["title"] == f"Foretrain {name}"
    assert found["$schema"].endswith("2020-12/schema")
    assert {"properties", "anyOf", "$ref"} & set(found)


def test_a_prediction_has_exactly_the_fields_of_its_schema() -> None:
    document = predict("gpt2", on="1 x dgx-a100-80gb", batch=8, micro_batch=1).to_dict()
    assert set(document) == set(schema("prediction")["properties"])


def test_a_plan_has_no_field_that_its_schema_lacks() -> None:
    plan = Plan.of("tp2 pp2 zero1 sp", devices=8, runtime=runtime("megatron"))
    found = schema("plan")
    assert set(plan.to_dict()) <= set(found["properties"])
    assert set(plan.to_dict()["tree"]) <= set(found["$defs"]["node"]["properties"])


def test_an_unknown_schema_is_explained() -> None:
    with pytest.raises(InputError, match="Did you mean 'cluster'"):
        schema("clutser")
