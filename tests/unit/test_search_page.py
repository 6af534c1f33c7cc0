"""The report of a search, in every format."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from foretrain import schema
from foretrain.report import front
from foretrain.report.json import dumps
from foretrain.report.page import render_page, sheet
from foretrain.report.plain import drawn
from foretrain.report.search import headline, search_page
from foretrain.searching import Found, search

FEW = "vpp=1, cp=1, no offload, schedule=1f1b|zb-h1, zero<=1"
FILES = {
    "target": "megatron", "folder": "out", "files": ["launch.sh"], "cannot": ["zb-h1 is not known there"], "warnings": []
}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Found:
    return search("gpt2", on="1 x dgx-a100-80gb", batch=32, where=FEW, top=4)


@pytest.fixture(scope="module")
def nothing() -> Found:
    where = "tp=8, vpp=1, cp=1, no offload, micro=1, schedule=1f1b"
    return search("llama3-70b", on="1 x dgx-a100-80gb", batch=16, where=where)


def shown(found: Found, detail: int = 0, width: int = 100) -> str:
    return drawn(sheet(search_page(found), detail), width)


# --- the document -----------------------------------------------------------------------------------


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


def test_documents_keep_to_the_schema(found: Found, nothing: Found) -> None:
    rule = schema("search")
    for result, why, files in ((found, found.why("tp=2"), FILES), (nothing, None, None)):
        text = dumps(search_page(result, why, files).document)
        assert faults(json.loads(text), rule, rule) == []


def test_the_check_of_schemas_can_fail(found: Found) -> None:
    rule = schema("search")
    document = json.loads(dumps(found.to_dict()))
    document["best"][0]["plan"] = 3
    del document["pareto"][0]["peak_bytes"]
    document["extra"] = 1
    assert len(faults(document, rule, rule)) == 3


def test_the_document_has_what_was_promised(found: Found) -> None:
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


def test_memory_of_estimates_and_predictions_means_the_same(found: Found) -> None:
    """Both are without what the driver takes."""
    estimated = {row["plan"]: row["peak_bytes"] for row in found.to_dict()["pareto"]}
    both = [row for row in found.best if row.plan.text in estimated]
    assert both
    for row in both:
        peak = row.prediction.memory.peak_bytes
        assert estimated[row.plan.text] == pytest.approx(peak, rel=0.1)


def test_a_page_makes_its_document_when_it_is_asked_for(
    found: Found, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    monkeypatch.setattr(Found, "to_dict", lambda self: made.append(1) or {"a": 1})
    page = search_page(found)
    shown(found)
    assert not made
    assert (dict(page.document), len(page.document)) == ({"a": 1}, 1)
    assert made == [1]


# --- text -------------------------------------------------------------------------------------------


def test_the_headline_decides(found: Found, nothing: Found) -> None:
    plan = found.best[0].plan.text
    assert headline(found).startswith(f"Best of {found.plans_valid:,} plans: {plan}, ")
    assert search_page(found).is_no is False
    text = headline(nothing)
    assert search_page(nothing).is_no
    assert re.match(
        r"None of \d+ plans fits: the closest, .* exceeds device memory by [\d.]+ GiB; with 2x the nodes",
        text,
    )


def test_other_ends_have_their_words(nothing: Found) -> None:
    assert headline(replace(nothing, plans_valid=0)) == "No valid plan"
    assert ("the simulation of the best shows that it does not") in headline(
        replace(nothing, plans_fitting=3)
    )
    assert "lacks" not in headline(replace(nothing, nearest=None))


def test_the_terminal_shows_the_plans_the_front_and_the_reasons(found: Found) -> None:
    text = shown(found)
    for row in found.best:
        assert " ".join(row.plan.text.split()[:2]) in text
    for title in (
        "Best plans, simulated",
        "Step time vs. memory",
        "Excluded plans",
        "Why other choices are slower",
    ):
        assert title in text
    assert "other values" not in text
    assert "other values" in shown(found, detail=1)
    long = [line.strip() for line in shown(found, width=80).splitlines() if len(line) > 80]
    assert long == [found.command]  # to be copied


def test_where_nothing_fits_the_remedies_come_first(nothing: Found) -> None:
    text = shown(nothing)
    assert "What would fit" in text
    assert "Best plans" not in text
    assert "Step time vs. memory" not in text


def test_launch_files_are_listed(found: Found) -> None:
    text = render_page(search_page(found, launch=FILES), "md")
    assert "out/launch.sh" in text
    assert "zb-h1 is not known there" in text


def test_csv_has_a_row_for_every_plan(found: Found) -> None:
    rows = list(csv.DictReader(io.StringIO(render_page(search_page(found), "csv"))))
    best = [row for row in rows if row["list"] == "best"]
    assert [row["plan"] for row in best] == [row.plan.text for row in found.best]
    assert float(best[0]["step_seconds"]) == found.best[0].prediction.step_seconds
    assert len(rows) == len(found.best) + len(found.pareto)


# --- HTML -------------------------------------------------------------------------------------------


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.outside: list[str] = []

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [
            value
            for name, value in attrs
            if name in ("src", "href") and value and value != "data:,"
        ]
        assert tag != "script"


def test_the_html_is_whole_and_alone(found: Found) -> None:
    page = render_page(search_page(found), "html")
    reader = Reader()
    reader.feed(page)
    text = " ".join(" ".join(reader.text).split())
    assert not reader.outside
    for row in found.best:
        assert row.plan.text in text
    for one in found.explanations:
        assert one.sentence in text
    for reason in found.to_dict()["plans_pruned"]:
        assert reason in text
    assert f"{found.plans_valid:,}" in text


def test_names_from_users_are_text(found: Found) -> None:
    cluster = replace(found.task.cluster, name="<script>alert(1)</script>")
    named = replace(found, task=replace(found.task, cluster=cluster))
    page = render_page(search_page(named), "html")
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_the_page_of_no_plans_is_drawn(nothing: Found) -> None:
    page = render_page(search_page(nothing), "html")
    assert "What would fit" in page
    assert "<svg" not in page


def test_the_drawing_is_xml_with_a_dot_for_every_plan(found: Found) -> None:
    page = render_page(search_page(found), "html")
    drawing = page[page.index("<svg") : page.index("</svg>") + 6]
    tree = ElementTree.fromstring(drawing)
    circles = [node for node in tree.iter() if node.tag == "circle"]
    made = front.drawing(found)
    assert made is not None
    assert len(circles) == len(made.front) + len(made.best)
    assert len(made.front) + made.hidden == len(found.pareto)


def test_dots_lie_where_their_figures_say(found: Found) -> None:
    made = front.drawing(found)
    assert made is not None
    for point in (*made.front, *made.best):
        assert made.left <= point.x <= made.right
        assert made.top <= point.y <= made.bottom
    assert [p.x for p in made.front] == sorted(p.x for p in made.front)
    assert [p.y for p in made.front] == sorted(p.y for p in made.front)  # down: less memory
    assert made.line.startswith(f"M{made.front[0].x} {made.front[0].y}H")
    near = min(found.pareto, key=lambda row: row.seconds)
    assert near.plan in made.front[0].tip


def test_numbers_of_plans_do_not_lie_on_each_other(found: Found) -> None:
    made = front.drawing(found)
    assert made is not None
    labels = [p for p in made.best if p.has_room]
    assert labels[0].label == "1"
    for one in labels:
        assert all(abs(one.x - p.x) >= 14 or abs(one.y - p.y) >= 13 for p in labels if p is not one)


def test_axes_have_round_ticks_inside_the_frame(found: Found) -> None:
    made = front.drawing(found)
    assert made is not None
    assert 3 <= len(made.x_ticks) <= 12
    assert 3 <= len(made.y_ticks) <= 12
    assert all(made.left <= tick.at <= made.right for tick in made.x_ticks)
    assert all(made.top - 1 <= tick.at <= made.bottom for tick in made.y_ticks)
    assert made.y_ticks[0].text.startswith("0")
    assert len({tick.text for tick in made.x_ticks}) == len(made.x_ticks)


def test_the_limit_is_drawn_where_plans_come_near_it(found: Found) -> None:
    assert front.drawing(found).usable is None  # type: ignore[union-attr]
    tight = tuple(replace(row, usable=1.2 * found.pareto[0].memory) for row in found.pareto)
    made = front.drawing(replace(found, pareto=tight))
    assert made is not None
    assert made.usable is not None
    assert made.top <= made.usable.at < made.front[0].y


def test_one_plan_is_a_drawing_too(found: Found) -> None:
    made = front.drawing(replace(found, pareto=found.pareto[:1], best=()))
    assert made is not None
    assert len(made.front) == 1
    assert front.drawing(replace(found, pareto=(), best=())) is None


@pytest.mark.parametrize(
    ("value", "step", "text"), [(20.0, 10.0, "20"), (0.25, 0.25, "0.25"), (2.5, 2.5, "2.5"), (0.3, 0.1, "0.3")]
)  # fmt: skip
def test_ticks_have_as_many_digits_as_they_need(value: float, step: float, text: str) -> None:
    assert front._number(value, step) == text
