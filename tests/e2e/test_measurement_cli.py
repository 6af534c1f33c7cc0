"""Calibrating, predicting this machine, and moving measurements: as a user does it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from foretrain.cli import run
from foretrain.measurement.machine import Machine
from foretrain.measurement.store import Store

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
import measured_machine as known

GPT2 = ("gpt2", "--batch", "4", "--seq", "64")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with measurements of this machine (as told by its laws)."""
    path = tmp_path / "store.sqlite"
    monkeypatch.setenv("FORETRAIN_STORE", str(path))
    with Store.open(path) as opened:
        opened.add(*known.measurements(machine=Machine.here()))
    return path


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_from_a_store_to_a_prediction(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.json"
    assert run(["calibrate", "-o", str(file)]) == 0
    shown = capsys.readouterr().out
    assert "gemm" in shown
    assert "all_reduce" in shown
    assert run(["predict", *GPT2, "--on", "2 x local", "--json"]) == 0
    of_store = told(capsys)
    assert run(["predict", *GPT2, "--on", "2 x local", "--calibration", str(file), "--json"]) == 0
    of_file = told(capsys)
    assert of_store == of_file
    assert of_file["question"]["runtime"] == "cpu-eager"  # type: ignore[index]
    assert of_file["question"]["precision"] == "fp32"  # type: ignore[index]
    assert of_file["question"]["devices"] == 2  # type: ignore[index]
    assert of_file["measured_share"] > 0.2  # type: ignore[operator]
    with Store.open(store) as opened:
        assert len(opened.calibrations(Machine.here())) == 1


def test_other_commands_take_it_too(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fit", *GPT2, "--on", "local", "--json"]) == 0
    capsys.readouterr()
    faster = ["whatif", *GPT2, "--on", "local", "--set", "device.compute=2x", "--json"]
    assert run(faster) == 0


def test_searched_with_what_was_measured(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The estimate and the simulation both rest on this machine's own kernels and links."""
    asked = ["search", *GPT2, "--on", "2 x local", "--where", "no offload, vpp=1", "--json"]
    assert run(asked) == 0
    best = told(capsys)["best"][0]  # type: ignore[index]
    assert best["prediction"]["measured_share"] > 0.2
    assert best["estimated_seconds"] == pytest.approx(best["prediction"]["step_seconds"], rel=0.1)
    question = ["predict", *GPT2, "--on", "2 x local", "--plan", best["plan"], "--json"]
    assert run(question) == 0
    assert told(capsys)["step_seconds"] == best["prediction"]["step_seconds"]


def test_a_calibration_leaves_other_machines_alone(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "c.json"
    assert run(["calibrate", "-o", str(file), "-q"]) == 0
    question = ["predict", *GPT2, "--on", "4 x t4", "--json"]
    capsys.readouterr()
    assert run(question) == 0
    plain = told(capsys)
    assert run([*question, "--calibration", str(file)]) == 0
    assert told(capsys)["step_seconds"] == plain["step_seconds"]


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_out_and_in_again(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    file, other = tmp_path / f"rows.{suffix}", str(tmp_path / "other.sqlite")
    assert run(["measure", "export", str(file), "--json"]) == 0
    count = told(capsys)["measurements"]
    assert run(["measure", "import", str(file), "--store", other, "--json"]) == 0
    assert told(capsys)["new"] == count
    assert run(["measure", "import", str(file), "--store", other, "--json"]) == 0
    assert told(capsys)["new"] == 0
    assert run(["calibrate", str(file), "--json"]) == 0
    of_file = told(capsys)
    assert run(["calibrate", "--store", other, "--json"]) == 0
    assert told(capsys) == of_file


def test_a_part_of_the_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(store) as opened:
        opened.add(*known.measurements(machine=replace(known.MACHINE, cores=64))[:2])
    assert run(["measure", "export", "--kind", "link"]) == 0
    found = told(capsys)
    assert {row["kind"] for row in found["measurements"]} == {"link"}  # type: ignore[attr-defined]
    machine = replace(known.MACHINE, cores=64).id
    assert run(["measure", "export", "--machine", machine]) == 0
    assert len(told(capsys)["measurements"]) == 2  # type: ignore[arg-type]


def test_the_catalogue_shows_them(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", "list", "measurements"]) == 0
    assert Machine.here().id in capsys.readouterr().out
    assert run(["catalog", "list", "measurements", "--json"]) == 0
    rows = told(capsys)["measurements"]
    assert len(rows) == len(known.measurements())  # type: ignore[arg-type]


def test_without_a_store_the_catalogue_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORETRAIN_STORE", str(tmp_path / "none.sqlite"))
    assert run(["catalog", "list", "measurements", "--json"]) == 0
    assert told(capsys) == {"measurements": []}
    assert not (tmp_path / "none.sqlite").exists()


def test_bad_input_is_explained(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema_version": 1}')
    diary = tmp_path / "diary.sqlite"
    diary.write_text("dear diary " * 100)
    none = str(tmp_path / "none")
    for args, words in (
        (["calibrate", str(bad)], "machines"),
        (["calibrate", none + ".json"], "does not exist"),
        (["calibrate", "--store", none], "does not exist"),
        (["calibrate", "--store", str(diary)], "not a database"),
        (["calibrate", "--machine", "nobody"], "no measurements of machine nobody"),
        (["calibrate", "--threads", "64"], "64 threads"),
        (["calibrate", "--device", "h10000"], "h10000"),
        (["calibrate", str(bad), "--store", none], "not both"),
        (["measure", "import", str(bad), "--store", none], "machines"),
        (["measure", "import", str(diary)], ".csv"),
        (["measure", "export", str(tmp_path / "x.parquet")], ".csv"),
        (["measure", "export", "--kind", "weather"], "weather"),
        (["measure", "export", "--machine", "nobody"], "nobody"),
        (["predict", *GPT2, "--on", "local", "--calibration", str(bad)], "invalid"),
        (["predict", *GPT2, "--on", "0 x local"], "0 processes"),
    ):
        assert run(args) == 2, args
        assert words in capsys.readouterr().err, args
    assert not Path(none).exists()
