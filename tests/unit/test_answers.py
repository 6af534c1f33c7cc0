"""Answers travel: short in a console, whole in a notebook, and into every kind of file."""

from __future__ import annotations

import csv
import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

import foretrain
from foretrain.analysis.answer import Answer
from foretrain.analysis.answer import TableAnswer as TableAnswer
from foretrain.cli import run
from foretrain.errors import InputError
from foretrain.measurement.data import DataReport, DataRow
from foretrain.measurement.links import LinkReport, MeasuredLink, Shape
from foretrain.measurement.needs import Need
from foretrain.measurement.ops import OpRow, OpsReport
from foretrain.model.ops.base import Kernel
from foretrain.report import DOCUMENTS, RENDERERS, document_of, render, words
from foretrain.report.document import Bar, Document, Facts, Lines, Table
from foretrain.testing.exporters import HOSTILE, hostile_prediction
from foretrain.validation import ValidationReport

ON = "1 x dgx-h100"
WHERE = "tp<=2, pp=1, vpp=1, cp=1, no offload"
FIGURES = {"n": 1, "mape": 0.1, "failed": 0}
NEED = Need("linear", "forward", (Kernel("gemm", "forward", 2e9, 1e6, "fp32", (1, 64, 64, 64)),))
CASE = {"id": "x/1", "group": "x", "predicted": 1.1, "measured": 1.0, "interval": [0.9, 1.3], "error": 0.1, "memory_by_rank": []}  # fmt: skip


@pytest.fixture(scope="module")
def answers() -> dict[str, Answer]:
    a = foretrain.predict("gpt2", on=ON, plan="dp8", batch=64)
    link = MeasuredLink("all_reduce", 1024, Shape((0, 1), 1), 1e-4, 0.01, 5, False)
    more = MeasuredLink("all_reduce", 4096, Shape((0, 1), 1), 2e-4, 0.01, 5, False)
    return {
        "Prediction": a,
        "FitAnswer": foretrain.fit("llama3-8b", on=ON, plan="dp8", batch=8, micro_batch=1, seq=8192),
        "WhatIf": foretrain.whatif("gpt2", on=ON, batch=64, changes={"device.compute": 2}),
        "Comparison": foretrain.compare(a, foretrain.predict("gpt2", on=ON, plan="tp4 dp2", batch=64)),
        "Explanation": foretrain.explain(a),
        "Sweep": foretrain.sweep("gpt2", on=ON, vary={"batch": [64, 128], "plan": ["dp8", "tp5"]}),
        "SearchResult": foretrain.search("gpt2", on=ON, batch=32, where=WHERE, top=2),
        "Compiled": foretrain.compile_graph("gpt2", on=ON, plan="tp2 dp4", batch=64),
        "Recommendation": foretrain.recommend(
            "gpt2", tokens=1e9, batch=64, instances=["aws:p4d*"], max_devices=8
        ),
        "ValidationReport": ValidationReport({"x": FIGURES}, FIGURES, [CASE]),
        "OpsReport": OpsReport((OpRow(NEED, 1e-3, 0.01, 5, False, True),), (), 1e-6, "cpu", 1, "store.sqlite"),
        "LinkReport": LinkReport((link, more), (), 0, "gloo", 2, 1, "store.sqlite"),
        "DataReport": DataReport((DataRow("fetch", "cold", 1e6, 1.0, 0.0, 5, False),), "store.sqlite"),
    }  # fmt: skip


NAMES = tuple(name for name in DOCUMENTS if name != "TraceReport")


def test_every_answer_is_tried(answers: dict[str, Answer]) -> None:
    assert set(NAMES) == set(answers)  # traces have tests of their own
    assert all(type(answer).__name__ == name for name, answer in answers.items())


@pytest.mark.parametrize("name", NAMES)
def test_in_a_console_it_is_a_line_or_two(answers: dict[str, Answer], name: str) -> None:
    text = repr(answers[name])
    assert text.startswith(f"<{name}: ")
    assert text.endswith(">")
    assert text.count("\n") <= 1
    assert len(text) < 360


class Balanced(HTMLParser):
    """Raises where an element is closed that is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.said = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in ("div", "span", "table", "thead", "tbody", "tr", "td", "th"), tag
        assert {name for name, _ in attrs} <= {"style", "class"}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data


def parsed(html: str) -> Balanced:
    parser = Balanced()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser


@pytest.mark.parametrize("name", NAMES)
def test_in_a_notebook_it_says_what_a_terminal_says(answers: dict[str, Answer], name: str) -> None:
    answer = answers[name]
    said = parsed(answer._repr_html_()).said
    document = document_of(answer)
    assert document.headline in said
    for section in document.sections:
        if section.detail == 0 and (table := section.table) is not None and table.rows:
            assert table.title in said
            cells = (cell for row in table.without("B").rows for cell in row)
            assert all(str(cell) in said for cell in cells if not isinstance(cell, Bar))


def test_names_in_a_notebook_are_text() -> None:
    said = parsed(hostile_prediction()._repr_html_()).said
    assert "<script>" in said


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("fmt", RENDERERS)
def test_it_is_written_in_every_format(
    answers: dict[str, Answer], name: str, fmt: str, tmp_path: Path
) -> None:
    answer, path = answers[name], tmp_path / f"answer.{fmt}"
    answer.save(path)
    text = path.read_text("utf-8")
    if fmt in ("json", "jsonl"):
        assert json.loads(text) == json.loads(json.dumps(answer.to_dict()))
    elif fmt == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert rows
        if isinstance(answer, TableAnswer):
            assert len(rows) == len(answer.rows())
            assert list(rows[0]) == list(answer.rows()[0])
    elif fmt == "html":
        assert text.startswith("<!doctype html>")
        assert "src=" not in text.partition("<script>")[0]  # it asks for nothing
    else:
        assert len(text.splitlines()) > 3


@pytest.mark.parametrize("name", ["Comparison", "Sweep", "SearchResult", "Recommendation", "ValidationReport"])  # fmt: skip
def test_rows_are_flat(answers: dict[str, Answer], name: str) -> None:
    answer = answers[name]
    assert isinstance(answer, TableAnswer)
    rows = answer.rows()
    assert rows
    assert len({tuple(row) for row in rows}) == 1  # the same columns
    assert all(isinstance(v, str | int | float | None) for row in rows for v in row.values())


def test_unknown_formats_are_refused_before_a_document_is_made(answers: dict[str, Answer]) -> None:
    with pytest.raises(InputError, match=r"\.html, \.json, \.md, \.csv, \.txt"):
        answers["Sweep"].save("x.pdf")


def test_values_have_short_names_too() -> None:
    plan = foretrain.Plan.of("tp2 pp2", devices=8, runtime=foretrain.Runtime.of("megatron"))
    assert repr(plan) == "<Plan tp2 pp2 dp2 sp: 8 ranks, micro-batch 1>"
    assert repr(foretrain.Cluster.of(ON)) == "<Cluster 1 x dgx-h100: 8 devices in 1 node>"
    assert repr(foretrain.Model.of("resnet50")).startswith("<Model resnet50: 25.56 M parameters, ")
    assert repr(foretrain.Workload.of("resnet50", 8)) == "<Workload resnet50: batch 8, bf16, adam>"
    made = foretrain.export("gpt2", to="torchrun", on=ON, plan="dp8", batch=64)
    assert repr(made).startswith("<Exported for torchrun: train.py, launch.sh")


def test_links_of_one_host_come_back_from_their_document(answers: dict[str, Answer]) -> None:
    report = answers["LinkReport"]
    assert LinkReport.from_dict(report.to_dict()) == report


# --- documents of any kind ---------------------------------------------------------------------------


def test_hostile_names_stay_text_in_a_document() -> None:
    rows = tuple((name, name) for name in HOSTILE)
    sections = (
        Table(HOSTILE[1], ("a", "b"), rows, notes=HOSTILE),
        Facts(HOSTILE[2], rows),
        Lines(HOSTILE[3], HOSTILE, has_bullets=True),
    )
    document = Document(
        HOSTILE[0], lambda: {"x": list(HOSTILE)}, lambda: sections, asked=HOSTILE[4]
    )
    for fmt in RENDERERS:
        text = str(render(document, fmt))
        text.encode("utf-8")
        if fmt == "html":
            assert text.count("<script") == 1  # its own
            assert "<img" not in text
            assert "\x1b" not in text
        if fmt == "csv":
            assert "\n=cmd" not in text
            assert ",=cmd" not in text


# --- commands ---------------------------------------------------------------------------------------

GPT2 = ["gpt2", "--on", ON, "--batch", "64"]


@pytest.mark.parametrize(
    "command",
    [
        ["predict", *GPT2],
        ["fit", *GPT2],
        ["whatif", *GPT2, "--set", "host=0x"],
        ["sweep", *GPT2, "--vary", "seq=512,1024"],
        ["explain", "PREDICTION"],
        ["compare", "PREDICTION", "PREDICTION"],
        ["search", *GPT2, "--where", WHERE, "--top", "1"],
        ["recommend", "gpt2", "--tokens", "1e9", "--batch", "64", "--instances", "aws:p4d*", "--max-devices", "8"],
        ["compile", *GPT2],
        ["catalog", "list", "runtimes"],
        ["catalog", "show", "dgx-h100"],
        ["catalog", "show", "2 x dgx-h100"],
        ["schema", "plan"],
        ["schema"],
        ["doctor"],
        ["validate", "CASES"],
    ],
    ids=lambda words: "-".join(words[:2]),
)  # fmt: skip
def test_every_command_writes_every_format(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prediction, cases = tmp_path / "p.json", tmp_path / "cases.jsonl"
    foretrain.predict("gpt2", on=ON, batch=64).save(prediction)
    example = Path(foretrain.__file__).parents[2] / "examples" / "cases.jsonl"
    case = json.loads(example.read_text("utf-8").splitlines()[0])
    measured = {"step_time_s": 1.0, "ok": True}
    cases.write_text(json.dumps({**case, "measured": measured, "quality": "high", "group": "g"}))
    put = {"PREDICTION": str(prediction), "CASES": str(cases)}
    files = [tmp_path / f"out.{fmt}" for fmt in ("html", "md", "csv", "json")]
    wanted = [word for file in files for word in ("-o", str(file))]
    assert run([put.get(word, word) for word in command] + wanted) in (0, 1), capsys.readouterr()
    assert all(file.stat().st_size > 20 for file in files)
    json.loads(files[3].read_text("utf-8"))
    assert len(list(csv.reader(io.StringIO(files[2].read_text("utf-8"))))) > 1


@pytest.mark.parametrize("columns", [60, 80, 100])
@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["predict", "gpt3-175b", "--on", "128 x dgx-a100-80gb", "--plan", "tp8 pp16 dp8 zero1 sp recompute=selective"],
         "tp8 pp16 dp8 zero1 sp recompute=selective"),
        (["sweep", "llama3-8b", "--on", "2 x dgx-h100", "--vary", "plan=tp4 pp2 dp2 zero1 sp recompute=selective"],
         "tp4 pp2 dp2 zero1 sp recompute=selective"),
        (["catalog", "list", "nodes"], "azure:Standard_ND96asr_v4"),
        (["catalog", "list", "models"], "deepseek-v2-lite"),
    ],
    ids=["predict", "sweep", "nodes", "models"],
)  # fmt: skip
def test_names_are_whole_at_every_width(
    command: list[str], name: str, columns: int, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(columns))
    for wish in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(wish, raising=False)
    assert run(command) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert any(name in line for line in lines)
    assert max(map(len, lines)) <= max(columns, len(name) + 4)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes"), (1024, "1,024 nodes")]
)
def test_one_is_no_plural(count: int, text: str) -> None:
    from foretrain.units import counted

    assert counted(count, "node") == text
    assert counted(count, "class", "classes") == text.replace("nodes", "classes").replace("node", "class")  # fmt: skip


@pytest.mark.parametrize("plan", ["dp8 zero1", "tp8"])
def test_explain_says_of_memory_what_predict_says(plan: str) -> None:
    """Usable memory, interval and probability; of a prediction and of its document alike."""
    asked = {"on": "1 x dgx-h100", "batch": 64, "micro_batch": 1, "runtime": "megatron"}
    one = foretrain.predict("llama3-8b", plan=plan, **asked)
    for given in (one, json.loads(json.dumps(one.to_dict()))):
        (line,) = [text for text in foretrain.explain(given).paragraphs if "Memory" in text]
        assert words.verdict(one) in line
        assert " usable" in line
        assert "probability" in line
