"""`foretrain recommend` from arguments to exit code."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from foretrain.cli import run

ASK = [
    "recommend", "resnet50", "--epochs", "2", "--data", "imagenet-1k", "--batch", "256", "--precision",
    "fp16", "--optimizer", "sgd", "--instances", "aws:p3.*",
]  # fmt: skip


def test_an_answer_and_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / f"offers.{fmt}" for fmt in ("html", "json", "md", "csv")]
    args = [word for file in files for word in ("-o", str(file))]
    assert run([*ASK, "--quota", "2", *args]) == 0
    told = capsys.readouterr().out
    assert "aws:p3.2xlarge" in told
    assert "prices as of" in told
    assert all(file.stat().st_size > 200 for file in files)
    assert json.loads(files[1].read_text("utf-8"))["offers"]


def test_one_json_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASK, "--quota", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["price_date"] for row in document["offers"]} == {"2022"}


@pytest.mark.parametrize("words", [["--batch", "64ktok"], ["--batch-tokens", "64k"]])
def test_a_batch_in_tokens(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["recommend", "gpt2", "--tokens", "1B", "--seq", "1024", "--instances", "aws:p4d*"]
    assert run([*asked, "--quota", "1", "--json", *words]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["batch"] == 64


def test_nothing_feasible_is_a_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASK, "--quota", "1", "--budget-usd", "0.01"]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "No feasible offer" in told
    assert "the budget is $0.01" in told


def test_own_prices_change_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.csv"
    own.write_text("instance,usd_per_hour,date\naws:p3.16xlarge,1,2026-11-01\n", encoding="utf-8")
    assert run([*ASK, "--quota", "1", "--json", "--prices", str(own)]) == 0
    best = json.loads(capsys.readouterr().out)["offers"][0]
    assert (best["instance"], best["price_date"]) == ("aws:p3.16xlarge", "2026-11-01")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["recommend"], "MODEL"),
        (["recommend", "llama3-8b"], "tokens"),
        (["recommend", "llama3-8b", "--tokens", "soon"], "tokens: 'soon' is not an amount"),
        (
            ["recommend", "llama3-8b", "--tokens", "1e9", "--deadline", "soon"],
            "deadline: 'soon' is not a time",
        ),
        ([*ASK, "--budget-usd", "much"], "--budget-usd"),
        ([*ASK, "--spot", "--reserved"], "mutually exclusive"),
        ([*ASK, "--reserved"], "--prices"),
        ([*ASK, "--quota", "few"], "few"),
        ([*ASK, "--batch-tokens", "4M"], "--batch and --batch-tokens are mutually exclusive"),
        ([*ASK, "--spot-rate", "2"], "--spot-rate: '2' is not a share below 1, such as 5%"),
        ([*ASK, "--spot-rate", "5%"], "no effect without"),  # understood
        ([*ASK, "--instances", " ,"], "instances: a pattern is empty"),
        ([*ASK, "--discount", "2"], "discount: '2' is not a share"),
        ([*ASK, "--spot", "--discount", "30%"], "no effect on spot prices"),
        ([*ASK, "--deadline", "-5h"], "deadline: '-5h' must be a positive number"),
        ([*ASK, "--startup", "nan"], "startup: 'nan' is not a time"),
        ([*ASK, "--mtbf", "never"], "--mtbf: 'never' is not a time"),
        ([*ASK, "--startup", "-5s"], "startup: '-5s' must be zero or more"),
        ([*ASK, "--critical-batch", "4Mtok"], "critical_batch"),
        ([*ASK, "--storage", "0GB/s"], "--storage"),
        ([*ASK, "-o", "x.pdf"], ".csv"),
        ([*ASK, "--prices", "missing.csv"], "missing.csv"),
    ],
)
def test_mistakes_are_explained(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert told in capsys.readouterr().err


def test_the_whole_catalogue_in_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 3 8B on 1 T tokens; time of this process, since clocks of a shared machine wander."""
    began = time.process_time()
    words = ["recommend", "llama3-8b", "--tokens", "1e12", "--deadline", "14d", "--json", "-q"]
    assert run(words) == 0
    assert time.process_time() - began < 60.0
    document = json.loads(capsys.readouterr().out)
    usd = [row["usd"] for row in document["offers"]]
    assert len(usd) > 30
    assert usd == sorted(usd)
    assert len({row["instance"].split(":")[0] for row in document["offers"]}) >= 4
    named = {row["instance"] for row in (*document["offers"], *document["infeasible"])}
    assert len(named) > 130
    assert all(row["hours"] <= 14 * 24 for row in document["offers"])
