"""`foretrain import` from arguments to exit code."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from support.traces import training

from foretrain.analysis.prediction import STALLS
from foretrain.cli import run

NCCL = """# Collective test starting: all_reduce_perf
# Rank  0 Group  0 Pid 1 on a device  0 [0x01] H100
# Rank  1 Group  0 Pid 1 on a device  1 [0x01] H100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1    41.68    0.02    0.05      0    39.92    0.03    0.05    N/A
"""


@pytest.fixture
def ranks(tmp_path: Path) -> list[str]:
    files = [training(3, 8, rank, 2).save(tmp_path / f"rank{rank}.json.gz") for rank in range(2)]
    return [str(file) for file in files]


def test_a_table_and_files(
    tmp_path: Path, ranks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"trace.{fmt}" for fmt in ("html", "json", "md", "txt")]
    outputs = [word for file in files for word in ("-o", str(file))]
    assert run(["import", "trace", *ranks, *outputs]) == 0
    told = capsys.readouterr().out
    assert "per step" in told
    for title in ("Where the time goes", "Ranks", "Communication", "Host overheads"):
        assert title in told
    html = files[0].read_text("utf-8")
    assert "<h2>Ranks</h2>" in html
    assert html.count('class="stalls"') == 2
    assert "aten::addmm" in files[2].read_text("utf-8")
    assert json.loads(files[1].read_text("utf-8"))["steps"] == 3


def test_one_json_document(ranks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["import", "trace", *ranks, "--json", "--devices-per-node", "1"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert tuple(document["stalls"]) == STALLS
    assert sum(document["stalls"].values()) == document["step_seconds"]
    assert document["stalls"]["network"] > 0
    assert document["world_size"] == len(document["ranks"]) == 2
    assert "aten::addmm" in {row["name"] for row in document["operators"]}
    assert {row["stretch"] for row in document["host_overheads"]} == {"T1", "T2", "T3", "T4", "T5"}


def test_names_from_a_trace_are_escaped(tmp_path: Path) -> None:
    trace = training(1, 2)
    evil = "<script>alert(1)</script>[bold]\x1b[31m"
    trace.kernel("gemm", 30, 900, trace.launch(20), trace.op(evil, 15, 30, [[2, 2]]))
    page = tmp_path / "x.html"
    assert (
        run(["import", "trace", str(trace.save(tmp_path / "t.json")), "-q", "-o", str(page)]) == 0
    )
    assert "<script>alert" not in page.read_text("utf-8")
    assert "&lt;script&gt;" in page.read_text("utf-8")


def test_into_a_store(tmp_path: Path, ranks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from foretrain.measurement.store import Store

    store = tmp_path / "s.sqlite"
    results = tmp_path / "out.txt"
    results.write_text(NCCL)
    assert run(["import", "trace", *ranks, "--store", str(store), "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["kept"]
    with Store.open(store) as opened:
        assert len(opened.rows()) == kept["measurements"] > 5
    assert run(["import", "nccl-tests", str(results), "--store", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kept"]["measurements"] == 1
    with Store.open(store) as opened:
        assert len(opened.rows()) == kept["measurements"] + 1


def test_nccl_tests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.txt"
    path.write_text(NCCL)
    assert run(["import", "nccl-tests", str(path)]) == 0
    assert "all_reduce on 2" in capsys.readouterr().out
    assert run(["import", "nccl-tests", str(path), "--json", "--ranks", "4"]) == 0
    assert json.loads(capsys.readouterr().out)["links"][0]["ranks"] == 4


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["trace", "no.json"], "does not exist"),
        (["trace", "deep.json"], "nested deeper"),
        (["trace", "rubbish.json"], "not JSON"),
        (["trace", "good.json", "good.json"], "more than one trace"),
        (["trace", "good.json", "--steps", "0"], "must be 1 or more"),
        (["trace", "good.json", "-o", "x.pdf"], "Supported: .html"),
        (["nccl-tests", "rubbish.json"], "no nccl-tests results"),
        (["nccl-tests", "good.json"], "no nccl-tests results"),
        (["model", "x"], "not implemented yet"),
        (["cluster", "x"], "not implemented yet"),
        (["trace"], "Missing argument"),
    ],
)
def test_bad_input_is_explained(
    args: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deep.json").write_text("[" * 1_000_000)
    Path("rubbish.json").write_bytes(b"\x7fELF" * 100)
    training(1, 2).save(Path("good.json"))
    assert run(["import", *args]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.out == ""


def test_a_cut_file_is_used_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = gzip.compress(training(3, 30).text().encode())
    path = tmp_path / "cut.json.gz"
    path.write_bytes(raw[: len(raw) * 2 // 3])
    assert run(["import", "trace", str(path)]) == 0
    assert "is truncated" in " ".join(capsys.readouterr().out.split())
