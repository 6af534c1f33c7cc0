"""A search's answer as plain data: documents keep to their schema, and rows of figures are the plans'."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from foretrain import schema
from foretrain.report import render
from foretrain.report.json import dumps
from foretrain.report.search import search_document
from foretrain.searching import SearchResult, search

FILES = {
    "target": "megatron", "folder": "out", "files": ["launch.sh"], "cannot": ["zb-h1 is not known there"], "warnings": []
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> SearchResult:
    where = "vpp=1, cp=1, no offload, schedule=1f1b, zero<=1, tp<=2, no recompute"
    return search("gpt2", on="1 x dgx-a100-80gb", batch=32, where=where, top=3)


@pytest.fixture(scope="module")
def nothing() -> SearchResult:
    where = "tp=8, vpp=1, cp=1, no offload, micro=1, schedule=1f1b"
    return search("llama3-70b", on="1 x dgx-a100-80gb", batch=16, where=where)


def faults(value: Any, rule: dict[str, Any], whole: dict[str, Any], path: str = "$") -> list[str]:
    """Where a document breaks its schema: as far as our schemas go."""
    if "$ref" in rule:
        return faults(value, whole["$defs"][rule["$ref"].rpartition("/")[2]], whole, path)
    if "anyOf" in rule:
        tried = [faults(value, one, whole, path) for one in rule["anyOf"]]
        return min(tried, key=len)
    if "enum" in rule and value not in rule["enum"]:
        return [f"{path}: {value!r}"]
    kinds = rule.get("type", [])
    names = {
        dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number",
        type(None): "null",
    }  # fmt: skip
    kind = names[type(value)]
    allowed = {kinds} if isinstance(kinds, str) else set(kinds)
    if allowed and kind not in allowed and not (kind == "integer" and "number" in allowed):
        return [f"{path}: {kind}"]
    found: list[str] = []
    if isinstance(value, dict):
        known, more = rule.get("properties", {}), rule.get("additionalProperties", True)
        found += [
            f"{path}.{name}: missing" for name in rule.get("required", ()) if name not in value
        ]
        for name, inner in value.items():
            below = known.get(name, more)
            if below is False:
                found.append(f"{path}.{name}: unknown")
            elif isinstance(below, dict):
                found += faults(inner, below, whole, f"{path}.{name}")
    if isinstance(value, list) and "items" in rule:
        for number, inner in enumerate(value):
            found += faults(inner, rule["items"], whole, f"{path}[{number}]")
    return found


def test_documents_keep_to_the_schema(found: SearchResult, nothing: SearchResult) -> None:
    rule = schema("search")
    for result, why, files in ((found, found.why("tp=2"), FILES), (nothing, None, None)):
        text = dumps(search_document(result, why, files).data)
        assert faults(json.loads(text), rule, rule) == []


def test_the_check_of_schemas_can_fail(found: SearchResult) -> None:
    rule = schema("search")
    document = json.loads(dumps(found.to_dict()))
    document["best"][0]["plan"] = 3
    del document["pareto"][0]["peak_bytes"]
    document["extra"] = 1
    assert len(faults(document, rule, rule)) == 3


def test_the_document_has_what_was_promised(found: SearchResult) -> None:
    document = found.to_dict()
    assert {"plans_valid", "plans_pruned", "seconds", "best", "pareto", "explanations"} <= set(
        document
    )
    best = document["best"][0]
    assert best["plan"] == found.best[0].plan.text
    assert best["prediction"]["step_seconds"] == found.best[0].prediction.step_seconds
    assert best["tree"]["mesh"]
    assert document["plans_valid"] == found.plans_valid > document["plans_fitting"] - 1
    assert list(document["plans_pruned"].values()) == sorted(
        document["plans_pruned"].values(), reverse=True
    )
    assert not any(reason.endswith(":") for reason in document["plans_pruned"])


def test_memory_of_estimates_and_predictions_means_the_same(found: SearchResult) -> None:
    """Both are without what the driver takes."""
    estimated = {row["plan"]: row["peak_bytes"] for row in found.to_dict()["pareto"]}
    both = [row for row in found.best if row.plan.text in estimated]
    assert both
    for row in both:
        peak = row.prediction.memory.peak_bytes
        assert estimated[row.plan.text] == pytest.approx(peak, rel=0.1)


def test_csv_has_a_row_for_every_plan(found: SearchResult) -> None:
    rows = list(csv.DictReader(io.StringIO(str(render(found, "csv")))))
    best = [row for row in rows if row["list"] == "best"]
    assert [row["plan"] for row in best] == [row.plan.text for row in found.best]
    assert float(best[0]["step_seconds"]) == found.best[0].prediction.step_seconds
    assert len(rows) == len(found.best) + len(found.pareto)
    assert [row["rank"] for row in best] == [str(number) for number in range(1, len(best) + 1)]
    front = rows[len(best) :]
    assert [(row["list"], row["plan"]) for row in front] == [
        ("pareto", r.plan) for r in found.pareto
    ]
    assert [row["rank"] for row in front] == [str(number) for number in range(1, len(front) + 1)]
