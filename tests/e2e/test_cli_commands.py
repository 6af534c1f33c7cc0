"""Commands in this process, with the public API replaced where only the door is under test."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import foretrain
from foretrain.analysis.answers import FitAnswer, WhatIf
from foretrain.analysis.prediction import Prediction, Remedy
from foretrain.cli import case_lines, run
from foretrain.cli.options import assignments, literal
from foretrain.cli.progress import Progress, describe
from foretrain.errors import Bug, DoesNotFit, InputError, PlanError
from foretrain.sweeps import Sweep, SweepPoint
from foretrain.testing.exporters import sample_prediction
from foretrain.validation import ValidationReport

ASK = ["llama3-8b", "--on", "2 x dgx-h100", "--batch", "256"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replaces `foretrain.predict`; what it was asked."""
    asked: list[dict[str, Any]] = []

    def predict(**question: Any) -> Prediction:
        asked.append(question)
        return sample_prediction()

    monkeypatch.setattr(foretrain, "predict", predict, raising=False)
    return asked


def _fails(error: BaseException) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise error

    return call


# --- predict ------------------------------------------------------------------------------------


def test_predict_hands_over_what_was_asked(
    calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(
        ["predict", *ASK, "--plan", "tp4 pp2 dp2", "--seq", "8k", "--micro-batch", "1", "--runtime", "megatron",
         "--set", "bucket_bytes=4e7", "--set", "attention=flash", "--set", "uses_cuda_graphs=true"]
    )  # fmt: skip
    assert code == 0
    assert calls == [
        {
            "model": "llama3-8b", "on": "2 x dgx-h100", "plan": "tp4 pp2 dp2", "batch": "256", "micro_batch": 1,
            "seq": 8192, "runtime": "megatron",
            "runtime_options": {"bucket_bytes": 4e7, "attention": "flash", "uses_cuda_graphs": True},
        }
    ]  # fmt: skip
    out = capsys.readouterr().out
    assert "per step" in out.splitlines()[0]
    assert "\x1b" not in out


def test_json_is_the_document_and_nothing_else(
    calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", *ASK, "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["id"] == "sample"
    assert captured.err == ""


def test_quiet_is_one_line(
    calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["predict", *ASK, "-q"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_several_files_at_once(
    calls: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["a.html", "a.json", "a.md", "a.trace.json.gz"]
    args = [word for name in names for word in ("-o", str(tmp_path / name))]
    assert run(["predict", *ASK, *args]) == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == names
    assert "wrote" in capsys.readouterr().err


def test_unknown_extension_is_refused_before_any_work(
    calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", *ASK, "-o", "x.pdf"]) == 2
    assert calls == []
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ".trace.json.gz" in captured.err


def test_a_missing_folder_is_found_before_any_work(
    calls: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["predict", *ASK, "-o", "nowhere/x.html"]) == 2
    assert calls == []
    assert "directory nowhere does not exist" in capsys.readouterr().err


def test_does_not_fit_is_an_answer_with_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = sample_prediction()
    full = replace(full, memory=replace(full.memory, peak_bytes=full.memory.capacity_bytes * 1.2))
    monkeypatch.setattr(foretrain, "predict", lambda **_: full, raising=False)
    assert run(["predict", *ASK]) == 1
    assert "DOES NOT FIT" in capsys.readouterr().out
    assert run(["predict", *ASK, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fits"] is False


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["predict"], ["MODEL: missing", "--on: missing"]),
        (["predict", *ASK, "--plan", "none.yaml"], ["none.yaml does not exist"]),
        (["predict", *ASK, "--seq", "many"], ["'many' is not a count"]),
        (["predict", *ASK, "--set", "bucket"], ["'bucket' is not KEY=VALUE"]),
        (["predict", *ASK, "--set", "a=1", "--set", "a=2"], ["specified twice"]),
        (["predict", *ASK, "--colour"], ["--colour"]),
        (["predikt"], ["predikt"]),
        (
            ["predict", "--cases", "x.jsonl", "--batch", "4"],
            ["remove MODEL and the other options"],
        ),
        (["predict", "--cases", "none.jsonl"], ["none.jsonl does not exist"]),
        (["predict", "--cases", "none.jsonl", "-o", "x.html"], ["FILE.jsonl"]),
        (["explain", "none.json"], ["none.json does not exist"]),
        (["whatif", *ASK], ["--set: missing"]),
        (["sweep", *ASK], ["--vary: missing"]),
        (["sweep", *ASK, "--vary", "sqe=1,2"], ["Did you mean 'seq'"]),
        (["catalog", "list", "device"], ["Did you mean 'devices'"]),
        (["catalog", "show", "h10000"], ["no catalog entry named"]),
        (["validate", "none.jsonl", "--tolerance", "-1"], ["--tolerance"]),
    ],
)
def test_bad_input_is_explained_with_code_2(
    args: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("foretrain: ")
    assert "Traceback" not in captured.err
    for words in said:
        assert words in captured.err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            PlanError("tp 12 does not divide 32 heads. Try 8."),
            2,
            "foretrain: tp 12 does not divide",
        ),
        (DoesNotFit("no room"), 1, "foretrain: no room"),
        (Bug("a broken invariant"), 101, "bug in Foretrain"),
        (ZeroDivisionError("oops"), 101, "internal error: ZeroDivisionError: oops"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_have_their_codes(
    error: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(foretrain, "predict", _fails(error), raising=False)
    assert run(["predict", *ASK]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("how", ["-v", "FORETRAIN_DEBUG"])
def test_tracebacks_on_request(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(foretrain, "predict", _fails(ZeroDivisionError("oops")), raising=False)
    if how == "FORETRAIN_DEBUG":
        monkeypatch.setenv(how, "1")
    assert run(["predict", *ASK, *([how] if how == "-v" else [])]) == 101
    assert "Traceback" in capsys.readouterr().err


# --- cases --------------------------------------------------------------------------------------


def _echo(cases: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for case in cases:
        if case.get("bad"):
            yield {"id": case["id"], "error": {"kind": "PlanError", "message": "no"}}
        else:
            yield {"id": case["id"], "step_seconds": 1.0}


LINES = b'{"id": "a"}\n\nnot json\n{"id": "b", "bad": 1}\n[1]\n{"id": "c", "x": NaN}\n{"id": "d"}\n{"id": "e", \xff}\n'
IDS = ["a", "line-3", "b", "line-5", "line-6", "d", "line-8"]


def test_bad_lines_are_answered_in_their_place() -> None:
    documents = list(case_lines.answered(io.BytesIO(LINES), _echo))
    assert [document["id"] for document in documents] == IDS
    assert all("error" in d for d in documents if d["id"].startswith("line"))


def test_order_survives_an_answerer_that_reads_ahead() -> None:
    def eager(cases: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        yield from _echo(list(cases))

    assert [d["id"] for d in case_lines.answered(io.BytesIO(LINES), eager)] == IDS


def test_a_line_too_long_is_skipped_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case_lines, "MAX_LINE", 20)
    lines = b'{"id": "a"}\n' + b'{"id": "' + b"x" * 1000 + b'"}\n{"id": "b"}'
    documents = list(case_lines.answered(io.BytesIO(lines), _echo))
    assert [d["id"] for d in documents] == ["a", "line-2", "b"]
    assert "longer than 20" in documents[1]["error"]["message"]


def test_cases_to_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(foretrain, "predict_cases", _echo, raising=False)
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(LINES)
    assert run(["predict", "--cases", str(source), "-o", str(target), "--json"]) == 0
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == IDS
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"cases": 7, "failed": 5, "output": str(target)}
    assert "5 of 7 cases could not be predicted" in captured.err


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_cases_is_told(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(content)
    assert run(["predict", "--cases", str(source)]) == 1
    assert "in.jsonl has no cases" in capsys.readouterr().err


def test_a_fault_of_ours_leaves_no_half_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def breaks(cases: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        yield from _echo([next(iter(cases))])
        raise ZeroDivisionError

    monkeypatch.setattr(foretrain, "predict_cases", breaks, raising=False)
    (tmp_path / "in.jsonl").write_bytes(LINES)
    assert (
        run(
            [
                "predict",
                "--cases",
                str(tmp_path / "in.jsonl"),
                "-o",
                str(tmp_path / "out.jsonl"),
                "-q",
            ]
        )
        == 101
    )
    assert [p.name for p in tmp_path.iterdir()] == ["in.jsonl"]


# --- the other answers --------------------------------------------------------------------------


def test_fit_names_the_fastest_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = (
        Remedy("zero2", 5.0, 1.2, "plan", '--plan "dp8 zero2"', 9e10, fits=False),
        Remedy("recompute=full", 6.0, 1.0, "plan", '--plan "dp8 recompute=full"', 5e10),
        Remedy("zero3", 7.0, 0.9, "plan", '--plan "dp8 zero3"', 4e10),
    )
    answer = FitAnswer(sample_prediction(), False, changes)
    monkeypatch.setattr(foretrain, "fit", lambda **_: answer, raising=False)
    assert run(["fit", *ASK]) == 1
    assert "fastest change that fits: recompute=full" in " ".join(capsys.readouterr().out.split())
    assert run(["fit", *ASK, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["changes"][1] == {
        "change": "recompute=full",
        "step_seconds": 6.0,
        "speedup": 1.0,
        "kind": "plan",
        "paste": '--plan "dp8 recompute=full"',
        "peak_bytes": 5e10,
        "fits": True,
        "usd_per_hour": None,
        "remark": "",
    }


def test_whatif_shows_before_and_after(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}
    base = sample_prediction()
    after = replace(
        base,
        step_seconds=base.step_seconds / 2,
        samples_per_second=base.samples_per_second * 2,
    )

    def whatif(**asked: Any) -> WhatIf:
        seen.update(asked)
        return WhatIf(base, after, asked["changes"])

    monkeypatch.setattr(foretrain, "whatif", whatif, raising=False)
    assert (
        run(
            [
                "whatif",
                *ASK,
                "--set",
                "network.bandwidth=2x",
                "--set",
                "batch=512",
                "--runtime-option",
                "bucket_bytes=1",
            ]
        )
        == 0
    )
    assert seen["changes"] == {"network.bandwidth": "2x", "batch": 512}
    assert seen["runtime_options"] == {"bucket_bytes": 1}
    assert "2.00× as fast" in " ".join(capsys.readouterr().out.split())


def test_compare_and_explain_read_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = sample_prediction(), sample_prediction()
    less = b.stalls["compute"] - 0.5
    b = replace(b, step_seconds=b.step_seconds - 0.5, stalls={**b.stalls, "compute": less})
    a.save(tmp_path / "a.json")
    b.save(tmp_path / "b.json")
    assert run(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    out = capsys.readouterr().out
    assert "−0.500 s" in out
    assert "compute shrank by 500 ms" in " ".join(out.split())
    assert run(["explain", str(tmp_path / "a.json"), "-o", str(tmp_path / "why.md")]) == 0
    assert "layer 0" in (tmp_path / "why.md").read_text()


def test_compare_says_no_where_nothing_is_comparable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = sample_prediction()
    b = replace(a, tokens_per_second=None, question={**a.question, "model": "resnet50"})
    a.save(tmp_path / "a.json")
    b.save(tmp_path / "b.json")
    assert run(["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["per"] is None
    assert "Not comparable" in document["summary"]


def test_a_document_of_another_kind_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.json").write_text("[]")
    assert run(["explain", str(tmp_path / "x.json")]) == 2
    err = capsys.readouterr().err
    assert "is not a valid prediction" in err
    assert "expected object, got []" in err


def test_sweep_tries_every_combination(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["sweep", *ASK, "--vary", "seq=4k,8k", "--vary", "plan=tp3,tp4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [point["values"] for point in document["points"]] == [
        {"seq": seq, "plan": plan} for seq in ("4k", "8k") for plan in ("tp3", "tp4")
    ]
    assert [("error" in p) for p in document["points"]] == [True, False, True, False]
    assert document["points"][3]["prediction"]["question"]["seq_len"] == 8192
    assert document["best"] == "seq=4k plan=tp4"


def test_sweep_hands_over_what_is_varied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def sweep(**asked: Any) -> Sweep:
        seen.update(asked)
        return Sweep(("batch",), (SweepPoint({"batch": 4}, sample_prediction()),))

    monkeypatch.setattr(foretrain, "sweep", sweep, raising=False)
    words = [
        "sweep",
        "--vary",
        "model=gpt2,bert-large",
        "--vary",
        "on=x",
        "--vary",
        "micro-batch=4",
    ]
    assert run([*words, "-q"]) == 0
    assert seen["vary"] == {"model": ["gpt2", "bert-large"], "on": ["x"], "micro_batch": [4]}


GROUP = {
    "n": 4, "failed": 0, "mape": 0.08, "median": 0.05, "p90": 0.2, "bias": -0.01, "order": 0.9, "top1_regret": 0.0,
    "memory_mape": None, "coverage": 0.8, "fits_accuracy": 1.0,
    "worst": [{"id": "x", "predicted": 1.0, "measured": 2.0, "error": -0.5}],
}  # fmt: skip


@pytest.mark.parametrize(("tolerance", "code"), [(None, 0), ("0.1", 0), ("0.05", 1)])
def test_validate_answers_by_tolerance(
    tolerance: str | None,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: dict[str, Any] = {}

    def validate(paths: list[str], **how: Any) -> Any:
        seen.update(how, paths=paths)
        how["progress"](1, 2)
        return ValidationReport({"sc21": GROUP}, GROUP)

    monkeypatch.setattr(foretrain, "validate", validate, raising=False)
    extra = [] if tolerance is None else ["--tolerance", tolerance]
    assert run(["validate", "a.jsonl", "b.jsonl", "--quality", "high", *extra, "-v"]) == code
    assert seen["paths"] == ["a.jsonl", "b.jsonl"]
    assert seen["quality"] == ("high",)
    out = capsys.readouterr().out
    assert "sc21" in out
    assert "-50%" in out


def test_schema_prints_one_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(foretrain, "schema", lambda name: {"title": name}, raising=False)
    assert run(["schema", "cluster"]) == 0
    assert json.loads(capsys.readouterr().out) == {"title": "cluster"}
    assert run(["schema"]) == 0
    assert "prediction" in capsys.readouterr().out


def test_doctor_finds_the_catalogue(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--json"]) == 0
    checks = {c["name"]: c for c in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["catalog"]["state"] == "ok"
    assert "engine" in checks


def test_doctor_survives_a_broken_patient(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from foretrain.cli import doctor

    monkeypatch.setitem(doctor.CHECKS, "engine", _fails(RuntimeError("dead")))
    assert run(["doctor"]) == 1
    assert "RuntimeError: dead" in capsys.readouterr().out


# --- catalog ------------------------------------------------------------------------------------


def test_catalog_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", "list", "devices", "--json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["devices"]]
    assert any("h100" in name for name in names)
    assert run(["catalog", "show", names[0], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"]["source"]
    assert run(["catalog", "show", "gpt2"]) == 0
    assert "124,439,808" in capsys.readouterr().out


def test_catalog_check_finds_no_faults(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["catalog", "check"])
    assert code == 0, capsys.readouterr().out


DEVICE = """
my-gpu:
  title: My GPU
  vendor: me
  kind: gpu
  architecture: own
  memory_bytes: 10GiB
  memory_bandwidth: 500GB/s
  peak_flops: {fp32: 10TFLOPS, bf16: 100TFLOPS}
  pcie_bandwidth: 16GB/s
  source: my own data sheet
"""


def test_catalog_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.setenv("FORETRAIN_CATALOG", str(folder))
    (tmp_path / "mine.yaml").write_text(DEVICE)
    assert run(["catalog", "add", str(tmp_path / "mine.yaml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == ["my-gpu"]
    assert (folder / "devices.yaml").exists()
    assert run(["catalog", "add", str(tmp_path / "mine.yaml")]) == 2
    assert "--replace" in capsys.readouterr().err
    assert run(["catalog", "add", str(tmp_path / "mine.yaml"), "--replace"]) == 0
    (tmp_path / "bad.yaml").write_text(
        DEVICE.replace("my-gpu", "other").replace("memory_bandwidth", "memory_bandwith")
    )
    before = (folder / "devices.yaml").read_text()
    assert run(["catalog", "add", str(tmp_path / "bad.yaml")]) == 2
    assert "Did you mean 'memory_bandwidth'" in capsys.readouterr().err
    assert (folder / "devices.yaml").read_text() == before


# --- small parts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.5", 1.5),
        ("true", True),
        ("null", None),
        ("2x", "2x"),
        ("", ""),
        ("NaN", "NaN"),
        ("[1]", "[1]"),
        ('"4"', "4"),
    ],
)
def test_values_are_json_scalars_or_text(text: str, value: Any) -> None:
    assert literal(text) == value
    assert type(literal(text)) is type(value)


def test_assignments_keep_equals_signs_in_values() -> None:
    assert assignments(["plan=tp4 recompute=full"], "--set") == {"plan": "tp4 recompute=full"}
    with pytest.raises(InputError):
        assignments(["=1"], "--set")


@pytest.mark.parametrize(
    ("done", "total", "elapsed", "said"),
    [
        (120, 500, 11.0, "cases 120 of 500, 24 %, 35 s left"),
        (1, None, 3.0, "cases 1, 3 s so far"),
        (1, 3, 3000.0, "cases 1 of 3, 33 %, 1 h 40 min left"),
        (0, 3, 1.0, "cases 0 of 3, 0 %"),
    ],
)
def test_progress_words(done: int, total: int | None, elapsed: float, said: str) -> None:
    assert describe("cases", done, total, elapsed) == said


def test_progress_is_silent_for_a_second_then_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("foretrain.cli.progress.time.monotonic", lambda: now[0])
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    with Progress("cases", 10) as progress:
        for done, moment in enumerate((0.2, 0.9, 1.5, 2.0, 5.0, 12.0), 1):
            now[0] = moment
            progress(done)
    assert err.getvalue().splitlines() == [
        "cases 3 of 10, 30 %, 4 s left",
        "cases 6 of 10, 60 %, 8 s left",
    ]
