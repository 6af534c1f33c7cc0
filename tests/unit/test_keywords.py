"""Keywords of the Python functions: slips are told with the nearest word, and what has no effect is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import foretrain
from foretrain.errors import CaseError, FileError, InputError

ON: dict[str, Any] = {"on": "1 x dgx-h100"}
CALLS: dict[str, Any] = {
    "predict": lambda **more: foretrain.predict("gpt2", **ON, **more),
    "fit": lambda **more: foretrain.fit("gpt2", **ON, **more),
    "compile_graph": lambda **more: foretrain.compile_graph("gpt2", **ON, **more),
    "export": lambda **more: foretrain.export("gpt2", to="torchrun", **ON, **more),
    "whatif": lambda **more: foretrain.whatif("gpt2", changes={"host": 0}, **ON, **more),
    "sweep": lambda **more: foretrain.sweep("gpt2", vary={"seq": [512]}, **ON, **more),
    "search": lambda **more: foretrain.search("gpt2", **ON, **{"batch": 8, **more}),
    "recommend": lambda **more: foretrain.recommend("gpt2", tokens=1e9, **more),
    "ops": lambda **more: foretrain.measure.ops("gpt2", **more),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_slip_names_the_nearest_keyword(name: str) -> None:
    with pytest.raises(
        InputError, match=rf"{name}: invalid keywords:\n  - bach: unknown. Did you mean 'batch'"
    ):
        CALLS[name](bach=64)


def test_all_slips_are_told_at_once() -> None:
    with pytest.raises(InputError) as told:
        CALLS["fit"](bach=64, tokens=1e9, sequence=4)
    assert len(told.value.faults) == 3


@pytest.mark.parametrize("name", ["fit", "compile_graph", "export", "search", "ops"])
def test_what_looks_at_one_step_takes_no_words_of_a_job(name: str) -> None:
    with pytest.raises(InputError, match=f"tokens: no effect here; {name} looks at one step"):
        CALLS[name](tokens="1T")


@pytest.mark.parametrize("name", ["predict", "fit", "whatif", "search", "export"])
def test_a_missing_cluster_is_told(name: str) -> None:
    more = {
        "whatif": {"changes": {"host": 0}},
        "search": {"batch": 8},
        "export": {"to": "torchrun"},
    }
    with pytest.raises(InputError, match=r"on: missing\. Specify a cluster"):
        getattr(foretrain, name)("gpt2", **more.get(name, {}))


@pytest.mark.parametrize("make", [str, Path])
def test_one_path_is_as_good_as_a_list(make: Any, tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text(json.dumps({"id": "a", "quality": "low"}) + "\n", "utf-8")
    for given in (make(file), [make(file)]):
        with pytest.raises(CaseError) as told:
            foretrain.validate(given)
        assert str(file) in str(told.value) or "no case of quality" in str(told.value)
    for measured in (foretrain.calibrate, foretrain.measure.traces):
        with pytest.raises(FileError, match=r"gone\.json"):
            measured(make(tmp_path / "gone.json"))


def test_one_quota_one_instance_and_one_constraint_need_no_list() -> None:
    asked: dict[str, Any] = {"tokens": 1e9, "batch": 64, "max_devices": 32, "simulated": 0}
    plain = foretrain.recommend("gpt2", instances="aws:p4d*", quota=2, where="tp<=2, pp=1", **asked)
    listed = foretrain.recommend(
        "gpt2", instances=["aws:p4d*"], quota=["2"], where=["tp<=2", "pp=1"], **asked
    )
    assert plain.to_dict() == listed.to_dict()
    assert {one.candidate.count for one in plain.offers} <= {1, 2}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"quota": 2.5}, "quota: 2.5 is not a text"),
        ({"quota": {"aws:p4*": 8}}, "quota: .* is not a text"),
        ({"quota": True}, "quota: True is not a text"),
        ({"quota": -2}, "'-2': expected a number of instances"),
        ({"max_devices": "8"}, "max_devices: '8' is not a whole number"),
        ({"budget_usd": "lots"}, "budget_usd: 'lots' must be a positive number"),
        ({"batch_per_device": "4"}, "batch_per_device: '4' is not a whole number"),
    ],
)
def test_values_of_another_type_are_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        foretrain.recommend("gpt2", tokens=1e9, **words)
