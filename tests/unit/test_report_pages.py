"""Documents, and those made of compiled graphs, validations and the catalog."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretrain.compile.execution import (
    BACKWARD,
    CHAIN,
    COLLECTIVE,
    FORWARD,
    Communication,
    Communicator,
    Compute,
    ExecutionGraph,
    Item,
    Stage,
)
from foretrain.errors import InputError
from foretrain.model.ops.base import Kernel
from foretrain.report import catalog, format_of, render
from foretrain.report.document import Bar, Document, Lines, Section, Table, listed
from foretrain.report.graph import (
    communicator_name,
    folded,
    graph_document,
    stream_tasks,
    task_name,
)
from foretrain.report.text import laid_out, sheet
from foretrain.report.validation import validation_document
from foretrain.resolving import ask
from foretrain.scenario import Scenario
from foretrain.testing.exporters import HOSTILE
from foretrain.validation import ValidationReport


def _document() -> Document:
    table = Table("Table", ("name", "value"), (("a", "1"), (HOSTILE[0], HOSTILE[3])))
    hidden = Lines("Only with detail", ("secret",), detail=1)
    return Document(
        "Headline", lambda: {"x": float("nan")}, lambda: (table, Table("Empty"), hidden)
    )


def test_text_has_the_tables_and_no_control_characters() -> None:
    text = str(render(_document(), "txt"))
    assert text.startswith("Headline\n")
    assert "Empty" not in text
    assert "\x1b" not in text


def test_markdown_escapes() -> None:
    text = str(render(_document(), "md"))
    assert "<script" not in text
    assert "| name | value |" in text


def test_json_is_strict() -> None:
    assert json.loads(render(_document(), "json")) == {"x": None}


@pytest.mark.parametrize(("detail", "said"), [(-1, False), (0, False), (1, True)])
def test_detail_decides_what_is_shown(detail: int, said: bool) -> None:
    text = laid_out(sheet(_document(), detail), 80)
    assert ("secret" in text) is said
    assert ("Table" in text) is (detail >= 0)


def test_a_headline_makes_no_sections() -> None:
    def fail() -> tuple[Section, ...]:
        raise AssertionError("made for nothing")

    document = Document("Headline", dict, fail)
    assert laid_out(sheet(document, -1), 80) == "Headline\n"
    assert render(document, "json") == "{}\n"


def test_formats_are_listed() -> None:
    assert format_of("X.MD") == "md"
    with pytest.raises(InputError, match=r"\.html, \.json, \.md, \.csv, \.txt"):
        format_of("x.pdf")
    with pytest.raises(InputError, match=r"unknown report format 'trace\.json'"):
        render(_document(), "trace.json")


def test_bars_are_drawn_where_a_format_can() -> None:
    rows = (("a", "3 s", Bar(0.75, "compute")), ("b", "1 s", Bar(0.25, "network", 0.75)))
    table = Table("Bars", ("cause", "per step", ""), rows, "lrb")
    document = Document("Headline", dict, lambda: (table,))
    text = str(render(document, "txt"))
    assert "█" * 40 in text  # in text the longest has all the room
    assert "█" not in str(render(document, "md"))
    html = str(render(document, "html"))
    assert '<i class="network" style="margin-left:75.00%;width:25.00%"></i>' in html
    assert 'class="figures"' in html  # a waterfall is not sorted


# --- graph --------------------------------------------------------------------------------------


def _graph() -> ExecutionGraph:
    """Two tasks of compute and one all-reduce that holds both streams."""
    group = Communicator(("dp",))
    kernel = Kernel("gemm", "forward", 2e9, 1e6, "bf16", (1, 128, 256, 512))
    items = (
        Item(Compute("layers.mlp", kernel)),
        Item(Communication("all_reduce", 2**20, group, "data")),
    )
    ints: Any = lambda *v: np.array(v, dtype=np.int32)  # noqa: E731
    fold: Any = SimpleNamespace(
        classes=1, counts=ints(4), examples=ints(0), stage_of=ints(0),
        groups={group: SimpleNamespace(groups=np.array([[0, 1, 2, 3]]), examples=ints(0))},
    )  # fmt: skip
    return ExecutionGraph(
        items=items, shape_ptr=ints(0, 1, 2), shape_items=ints(0, 1),
        task_kind=np.array([CHAIN, CHAIN, COLLECTIVE], dtype=np.int8), task_shape=ints(0, 0, 1), task_class=ints(0, 0, 0),
        task_phase=np.array([FORWARD, BACKWARD, BACKWARD], dtype=np.int8), task_stage=ints(0, 0, 0),
        task_chunk=ints(0, 1, 0), task_micro=ints(0, 0, -1), task_memory=np.zeros(3), task_workspace=np.zeros(3), task_accompanied=np.zeros(3, dtype=np.bool_),
        stream_ptr=ints(0, 1, 2, 4), stream_ids=ints(0, 0, 0, 1), succ_ptr=ints(0, 1, 2, 2), succ=ints(1, 2),
        streams=((0, "compute"), (0, "data")), stages=(Stage(0, 1e9, 2e9, 3e9, 0.0, 5e8, (("layers", 2),)),), fold=fold,
    )  # fmt: skip


def test_streams_hold_their_tasks_in_order() -> None:
    assert stream_tasks(_graph()) == [[0, 1, 2], [2]]


def test_tasks_have_short_names() -> None:
    assert [task_name(_graph(), task) for task in range(3)] == ["F0", "B0.1", "collective:B"]


@pytest.mark.parametrize(
    ("sequence", "runs"),
    [
        ("", []),
        ("aaab", [(3, "a"), (1, "b")]),
        ("abababc", [(3, "ab"), (1, "c")]),
        ("xabcabcabcy", [(1, "x"), (3, "abc"), (1, "y")]),
        ("abcd", [(1, "a"), (1, "b"), (1, "c"), (1, "d")]),
    ],
)
def test_repetitions_are_folded(sequence: str, runs: list[tuple[int, str]]) -> None:
    assert folded(sequence) == runs
    assert "".join(block * times for times, block in folded(sequence)) == sequence


def _asked() -> Scenario:
    return ask("gpt2", on="1 x dgx-h100", plan="dp8", batch=8)


def test_graph_document_dumps_shapes_and_tasks() -> None:
    text = str(render(graph_document(_graph(), _asked(), dump=True), "txt"))
    assert "3 tasks of 2 shapes on 2 streams; 4 ranks in 1 class" in text
    assert "layers.mlp forward: gemm 1×128×256×512 bf16" in text
    assert "all_reduce 1.0 MiB on dp group (data)" in text
    assert "F0 B0.1 collective:B" in text
    assert "gpt2 on 1 x dgx-h100" in text
    assert "(--precision)" in text


def test_graph_document_holds_every_task_only_when_dumped() -> None:
    brief = json.loads(render(graph_document(_graph(), _asked()), "json"))
    whole = json.loads(render(graph_document(_graph(), _asked(), dump=True), "json"))
    assert "task" not in brief
    assert whole["task"]["kind"] == ["chain", "chain", "collective"]
    assert whole["stream_tasks"] == [[0, 1, 2], [2]]


@pytest.mark.parametrize(
    ("communicator", "name"),
    [
        (Communicator(("tp",)), "tp group"),
        (Communicator(("dp", "cp")), "dp·cp group"),
        (Communicator(("pp",), "shift", 1), "pp shift +1"),
        (Communicator(("cp",), "shift", -1, True), "cp shift -1 cyclic"),
        (Communicator(("pp",), "ends"), "pp ends"),
    ],
)
def test_communicators_have_names(communicator: Communicator, name: str) -> None:
    assert communicator_name(communicator) == name


# --- validation ---------------------------------------------------------------------------------


def _validated(mape: float | None) -> ValidationReport:
    group = {"n": 3, "failed": 1, "mape": mape, "bias": -0.02, "worst": [{"id": "w"}, "odd"]}
    return ValidationReport({"one": group}, group)


@pytest.mark.parametrize(
    ("mape", "tolerance", "is_no"),
    [
        (0.1, None, False),
        (0.1, 0.1, False),
        (0.11, 0.1, True),
        (None, 0.1, True),
        (float("nan"), 0.1, True),
        (None, None, False),
    ],
)
def test_tolerance_decides(mape: float | None, tolerance: float | None, is_no: bool) -> None:
    page = validation_document(_validated(mape), tolerance)
    assert page.is_no is is_no
    assert "1 could not be predicted" in page.headline


def test_unknown_figures_are_dashes_and_bias_has_a_sign() -> None:
    text = str(render(validation_document(_validated(0.1)), "txt"))
    assert "-2.0%" in text
    assert "–" in text


def test_an_empty_validation_is_shown() -> None:
    assert "0 cases" in validation_document(ValidationReport({}, {})).headline


# --- catalog ----------------------------------------------------------------------------------


def test_every_kind_is_listed_with_names() -> None:
    page = catalog.list_document(("devices", "nodes", "links", "models", "runtimes"))
    assert len(page.sections) == 5
    assert {row["name"] for row in page.data["models"]} >= {"gpt2", "llama3-8b"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("h100", "device"), ("dgx-h100", "node"), ("llama3-8b", "model"), ("megatron", "runtime")],
)
def test_one_thing_is_shown_with_its_source(name: str, kind: str) -> None:
    page = catalog.entry_document(name)
    assert page.data[kind]["source"]
    assert kind in page.headline


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(InputError, match="Did you mean 'llama3-8b'"):
        catalog.entry_document("lama3-8b")


def test_every_format_has_its_own_lists() -> None:
    line = "runtime ddp: single device (--runtime)"
    document = Document("answer", dict, lambda: (listed("Assumptions", [line]),))
    assert f"  - {line}" in str(render(document, "txt"))
    marked = line.replace("--runtime", '<span class="flag">--runtime</span>')
    assert f"<li>{marked}</li>" in str(render(document, "html"))
    assert f"\n- {line}\n" in str(render(document, "md"))


def test_a_file_is_shown_as_what_it_holds(tmp_path: Path) -> None:
    model, cluster = tmp_path / "own.yaml", tmp_path / "two.yaml"
    model.write_text("zoo: gpt2\nname: own\nseq: 512\n")
    cluster.write_text("nodes: 2 x dgx-h100\n")
    facts = catalog.entry_document(str(model)).data["model"]
    assert (facts["name"], facts["seq_len"]) == ("own", 512)
    assert any(block.startswith("layers x 12") for block in facts["blocks"])
    assert "cluster" in catalog.entry_document(str(cluster)).data
    cluster.write_text("name: two\n")
    with pytest.raises(InputError, match="nodes: missing"):
        catalog.entry_document(str(cluster))
