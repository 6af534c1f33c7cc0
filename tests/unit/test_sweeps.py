"""Sweep: every combination, in order; what cannot be asked says why."""

from __future__ import annotations

import json
from typing import Any

import pytest

import foretrain
from foretrain.errors import InputError
from foretrain.report import render

ON = "1 x dgx-h100"


def test_every_combination_is_predicted_in_order() -> None:
    told: list[int] = []
    found = foretrain.sweep(
        "gpt2", on=ON, vary={"batch": [64, "128"], "plan": ["dp8", "tp4 dp2"]}, progress=told.append
    )
    assert [dict(point.values) for point in found.points] == [
        {"batch": batch, "plan": plan} for batch in (64, "128") for plan in ("dp8", "tp4 dp2")
    ]
    assert told == [1, 2, 3, 4]
    alone = foretrain.predict("gpt2", on=ON, batch=128, plan="tp4 dp2")
    last = found.points[-1].prediction
    assert last is not None
    assert last.step_seconds == alone.step_seconds
    assert found.rows()[-1]["step_seconds"] == alone.step_seconds
    json.dumps(found.to_dict())


def test_hardware_is_varied_as_what_if_does() -> None:
    found = foretrain.sweep("gpt2", on=ON, batch=64, vary={"device.compute": ["1x", "2x"]})
    after = foretrain.whatif("gpt2", on=ON, batch=64, changes={"device.compute": "2x"})
    seconds = [row["step_seconds"] for row in found.rows()]
    assert seconds == [after.base.step_seconds, after.changed.step_seconds]


def test_what_is_varied_need_not_be_given_apart() -> None:
    found = foretrain.sweep(batch=64, vary={"model": ["gpt2", "bert-large"], "on": [ON, "1 x dgx-a100-80gb"]})  # fmt: skip
    assert all(point.prediction is not None for point in found.points)
    models = [point.prediction.question["model"] for point in found.points if point.prediction]
    assert models == ["gpt2", "gpt2", "bert-large", "bert-large"]


def test_what_cannot_be_asked_says_why_and_the_rest_goes_on() -> None:
    found = foretrain.sweep("gpt2", on=ON, batch=64, vary={"plan": ["tp5", "dp8"]})
    assert "must divide" in found.rows()[0]["error"]
    assert found.rows()[0]["step_seconds"] is None
    assert found.best is found.points[1]


def test_the_best_does_the_most_work_a_second() -> None:
    """By tokens: half the sequence in little less than half the time is no gain."""
    found = foretrain.sweep("llama3-8b", on=ON, plan="tp8", batch=64, vary={"seq": ["1k", "8k"]})
    rates = [row["tokens_per_second"] for row in found.rows()]
    assert found.best is found.points[rates.index(max(rates))]
    assert found.rows()[0]["samples_per_second"] > found.rows()[1]["samples_per_second"]


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ({}, "Specify what to vary"),
        ({"sequence": [1]}, "cannot be changed"),
        ({"batch": []}, "is not a list of values"),
        ({"seq": "4k"}, "is not a list of values"),
        ({"batch": list(range(1, 201)), "seq": list(range(1, 201))}, "more than 10,000"),
    ],
)
def test_bad_axes_are_refused_before_any_work(vary: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        foretrain.sweep("gpt2", on=ON, vary=vary)


def test_all_that_is_missing_is_told_at_once() -> None:
    with pytest.raises(InputError, match=r"(?s)model: missing.*on: missing"):
        foretrain.sweep(vary={"batch": [64]})


def test_what_no_value_has_to_do_with_is_raised() -> None:
    with pytest.raises(InputError, match="unknown model"):
        foretrain.sweep("lama3-8b", on="1 x dgx-h100", batch=64, vary={"seq": [512, 1024]})


def test_warnings_name_the_points_they_are_about() -> None:
    asked: dict[str, Any] = {"on": "1 x dgx-h100", "batch": 64, "micro_batch": 1}
    swept = foretrain.sweep(
        "llama3.2-1b", **asked, runtime="ddp", vary={"plan": ["dp8", "tp2 dp4"]}
    )
    text = render(swept, "txt")
    assert "plan=tp2 dp4: ddp cannot run tp=2" in " ".join(str(text).split())
    both = foretrain.sweep(
        "llama3.2-1b", **asked, plan="tp2 dp4", runtime="ddp", vary={"seq": [512, 1024]}
    )
    assert "- ddp cannot run tp=2" in " ".join(str(render(both, "txt")).split())
