"""Documents that come back are checked against their schema, all faults at once, before anything reads them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from foretrain import compare, explain, predict, schema
from foretrain.case_schema import case_faults
from foretrain.cli import run
from foretrain.conformity import schema_faults
from foretrain.errors import Bug, FileError, InputError

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found = predict("gpt2", on="1 x dgx-a100-80gb", plan="tp2 pp2 dp2", batch=16, micro_batch=1)
    plain: dict[str, Any] = json.loads(json.dumps(found.to_dict()))
    return plain


def test_a_prediction_is_as_its_schema_says(document: dict[str, Any]) -> None:
    assert schema_faults(schema("prediction"), document) == []
    assert explain(document).headline
    assert compare(document, document).rows


FAULTS = {
    "stalls.compute": "much",
    "memory.peak_bytes": None,
    "critical_path": [{"start": 0.0}],
    "schema_version": 2,
    "interval": [1.0],
    "step_seconds": 0,
    "what_would_help": {},
    "bottleneck": "luck",
}


def test_all_faults_are_named_at_once(
    document: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = copy.deepcopy(document)
    for path, value in FAULTS.items():
        *way, last = path.split(".")
        holder = wrong
        for key in way:
            holder = holder[key]
        holder[last] = value
    del wrong["fits"]
    file = tmp_path / "p.json"
    file.write_text(json.dumps(wrong))
    for args in (["explain", str(file)], ["compare", str(file), str(file)]):
        assert run(args) == 2
        said = capsys.readouterr().err
        for path in (*FAULTS, "fits", "critical_path[0].what"):
            assert path in said, path
    for call in (lambda: explain(wrong), lambda: compare(wrong, document)):
        with pytest.raises(FileError) as refused:
            call()
        assert len(refused.value.faults) >= len(FAULTS) + 1


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("step_seconds", 1e-320),
        ("step_seconds", float("inf")),
        ("step_seconds", float("nan")),
        ("interval", [5.0, 1.0]),
        ("memory.interval_bytes", [5.0, 1.0]),
        ("question.global_batch", 0),
        ("question.global_batch", -64),
        ("question.devices", 0),
        ("samples_per_second", -1.0),
        ("mfu", -0.5),
        ("tokens_per_second", float("nan")),
        ("cost.usd_per_hour", -3.0),
    ],
)
def test_impossible_figures_are_refused(document: dict[str, Any], path: str, value: Any) -> None:
    wrong = copy.deepcopy(document)
    *way, last = path.split(".")
    holder = wrong
    for key in way:
        holder = holder[key]
    holder[last] = value
    for call in (lambda: explain(wrong), lambda: compare(wrong, document)):
        with pytest.raises(FileError, match=path.replace(".", r"\.")):
            call()


@pytest.mark.parametrize("text", ["[]", "3", "null", "{}", '"x"'])
def test_something_else_is_no_prediction(text: str, tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text(text)
    assert run(["explain", str(file)]) == 2


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ({"type": "number"}, 1.5, "1.5"),
        ({"type": "number"}, 1, True),
        ({"type": ["integer", "null"]}, None, 1.5),
        ({"minimum": 0}, 0, -1),
        ({"maximum": 5}, 5, 6),
        ({"exclusiveMinimum": 0}, 0.1, 0),
        ({"enum": [0, 1, None]}, 1, True),
        ({"enum": [0, 1, None]}, None, 1.0),
        ({"const": 1}, 1, 2),
        ({"required": ["a"]}, {"a": 1}, {}),
        ({"items": {"type": "string"}}, ["a"], ["a", 1]),
        ({"minItems": 1, "maxItems": 2}, [1], [1, 2, 3]),
        ({"minItems": 1}, [1], []),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"a": 1}, {"b": 1}),
        ({"additionalProperties": {"type": "string"}}, {"b": "x"}, {"b": 1}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, 1),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "null"}}}, None, 1),
    ],
)
def test_the_words_of_a_schema(rule: dict[str, Any], good: Any, bad: Any) -> None:
    assert schema_faults(rule, good) == []
    assert len(schema_faults(rule, bad)) == 1


def test_a_word_that_is_not_known_is_our_fault() -> None:
    with pytest.raises(Bug, match="oneOf"):
        schema_faults({"oneOf": []}, 1)


def test_cases_are_checked_before_they_are_read() -> None:
    cases = [json.loads(line) for line in (EXAMPLES / "cases.jsonl").read_text().splitlines()]
    assert [case_faults(case) for case in cases if case_faults(case)] == []
    wrong = {**cases[0], "plan": {"dp": "x", "zero": True}, "seq_len": "long", "runtime": 3}
    faults = case_faults(wrong)
    for word in ("plan.dp", "plan.zero", "seq_len", "runtime"):
        assert any(fault.startswith(word) for fault in faults), word
    from foretrain.cases import request_from_case

    with pytest.raises(InputError) as refused:
        request_from_case(wrong)
    assert refused.value.faults == tuple(faults)
