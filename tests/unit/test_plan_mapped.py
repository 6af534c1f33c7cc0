"""Plan words as data and as text say the same, and each refuses what it cannot read, all faults at once."""

from __future__ import annotations

import pytest

from foretrain.errors import PlanError
from foretrain.plan.defaults import PLAIN
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import parse, words_in
from foretrain.plan.strategy import of_repetition
from foretrain.testing.asking import bare


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("tp4 pp2 dp8 zero1 sp", {"tp": 4, "pp": 2, "dp": 8, "zero": 1, "sp": True}),
        ("tp=4 zero=2 sp=on dp2", {"tp": 4, "zero": 2, "sp": True, "dp": 2}),
        ("pp4 schedule=gpipe dp1", {"pp": 4, "schedule": "gpipe", "dp": 1}),
        ("dp8 recompute=full offload=optimizer+activations", {"dp": 8, "recompute": "Full", "offload": "optimizer+activations"}),
        ("dp8 offload=optimizer", {"dp": 8, "offload": ["optimizer"]}),
        ("dp8 buckets=25MiB", {"dp": 8, "buckets": "25MiB"}),
        ("pp2 dp1 layers=3,5 micro=2", {"pp": 2, "dp": 1, "layers": [3, 5], "micro": 2}),
        ("dp8 zero3 shard=4", {"dp": 8, "zero": 3, "shard": 4}),
        ("cp2 cp=ring dp4", {"cp": 2, "exchange": "ring", "dp": 4}),
        ("dp8 tables=rows", {"dp": 8, "tables": "rows"}),
        ("tp2 dp4 order=tp-dp-pp", {"tp": 2, "dp": 4, "order": "tp-dp-pp"}),
    ],
)  # fmt: skip
def test_data_says_what_text_says(text, data):
    read = parse(text, PLAIN, None)
    found = words_in(data)
    assert {name: getattr(read, name) for name in found} == found


def test_nothing_is_said_by_none():
    assert words_in({"tp": None, "dp": 8}) == {"dp": 8}


WRONG = {
    "tp": 0,
    "dp": 2.5,
    "micro": -1,
    "zero": 4,
    "sp": "yes",
    "schedule": "1fb1",
    "recompute": 3,
    "offload": 7,
    "exchange": "star",
    "tables": "columns",
    "buckets": "-1MB",
    "layers": [],
    "order": ["tp", "xp"],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_is_named(name):
    with pytest.raises(PlanError, match=name):
        words_in({name: WRONG[name]})


def test_all_faults_are_named_at_once():
    with pytest.raises(PlanError) as caught:
        words_in({**WRONG, "tq": 4})
    for name in (*WRONG, "tq"):
        assert f"{name}:" in str(caught.value)


@pytest.mark.parametrize("value", [True, -1, 4, "1"])
def test_stages_of_zero_are_zero_to_three(value):
    with pytest.raises(PlanError, match="0 to 3"):
        words_in({"zero": value})


@pytest.mark.parametrize(
    "text",
    ["schedule=1fb1", "tables=columns", "cp=star", "frob=1", "zero7", "x" * 500, "vpp2 dp8", "pp2 dp4 layers=1,2,3"],
)  # fmt: skip
def test_texts_that_make_no_plan_are_refused(text):
    with pytest.raises(PlanError):
        Plan.of(text, devices=8, runtime=bare())


@pytest.mark.parametrize(
    ("word", "layers"),
    [
        ("full", "1111"),
        ("full*0.5", "0101"),
        ("full*0.25", "0001"),
        ("full@0,3", "1001"),
    ],
)
def test_recomputation_of_some_layers(word, layers):
    found = "".join(str(int(of_repetition(word, n) == "full")) for n in range(4))
    assert found == layers
