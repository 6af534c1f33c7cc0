"""Wrong input gets one clear message, exit code 2 (1 for "does not fit"), and never a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrain.cli import run

ASK = ["predict", "llama3-8b", "--on", "2 x dgx-h100", "--plan", "tp4 dp4", "--batch", "16"]

OFFERS = ["recommend", "gpt2", "--tokens", "1B", "--instances", "aws:p4d*"]
SEARCH = ["search", "gpt2", "--on", "1 x dgx-h100", "--batch", "16"]


def changed(**words: str) -> list[str]:
    """The good question with some words replaced."""
    asked = list(ASK)
    for name, value in words.items():
        if name == "model":
            asked[1] = value
        else:
            asked[asked.index(f"--{name}") + 1] = value
    return asked


CLUSTER = "nodes:\n  - node: dgx-h100\n    count: 2\n"
FILES = {
    "typo.yaml": CLUSTER + "netwrok: {kind: infiniband}\n",
    "negative.yaml": CLUSTER + "    nics: {kind: infiniband, count: 8, bandwidth: -50GB/s}\n",
    "plan.yaml": "mesh: {dp: 16}\ntree: {splitt: {batch: dp}, schedule: {kind: 1f2b}}\n",
    "words.yaml": "tp: 2\nfoo: 1\n",
    "deep.json": "[" * 1_000_000,
}

MISTAKES = {
    "unknown model": (changed(model="lama3-8b"), ["'lama3-8b'", "llama3-8b"]),
    "tp does not divide heads": (
        changed(on="3 x dgx-h100", plan="tp12 dp2"),
        ["tp 12", "32 attention heads", "Try"],
    ),
    "ranks differ from devices": (changed(plan="tp4 dp2"), ["8 ranks", "16 devices"]),
    "batch not divisible": (changed(batch="17"), ["17", "4 replicas", "16 or 20"]),
    "misspelt key": (changed(on="typo.yaml"), ["typo.yaml", "netwrok", "network"]),
    "negative bandwidth": (changed(on="negative.yaml"), ["nics.bandwidth", "-50GB/s"]),
    "missing file": (changed(on="nothere.yaml"), ["nothere.yaml", "does not exist"]),
    "binary garbage": (changed(on="garbage.yaml"), ["garbage.yaml", "not UTF-8 text"]),
    "nested a million deep": (changed(model="deep.json"), ["deep.json", "nested deeper"]),
    "two faults of a plan at once": (changed(plan="plan.yaml"), ["splitt", "split", "1f2b"]),
    "unknown word in a file of plan words": (changed(plan="words.yaml"), ["foo", "tp"]),
    "unknown keyword of a plan": (changed(plan="tp4 zeor1"), ["zeor1", "zero1"]),
    "unknown runtime": ([*ASK, "--runtime", "megatorn"], ["megatorn", "megatron"]),
    "runtime option of the wrong kind": (
        [*ASK, "--set", "bucket_bytes=abc"],
        ["bucket_bytes", "abc"],
    ),
    "dataset without epochs": (
        [*ASK, "--tokens", "1B", "--dataset-tokens", "1000"],
        ["dataset_tokens", "no effect without epochs", "--epochs"],
    ),
    "storage without data": (
        [*OFFERS, "--storage", "2GB/s"],
        ["storage", "no effect without data", "--data"],
    ),
    "spot rate without spot": (
        [*OFFERS, "--spot-rate", "0.05"],
        ["spot_rate", "no effect without", "--spot"],
    ),
    "restart without state": ([*SEARCH, "--restart"], ["restart", "no effect without", "--state"]),
    "seed without stragglers": (
        [*SEARCH, "--seed", "1"],
        ["seed", "no effect without", "--stragglers"],
    ),
    "seed with fixed stragglers": (
        [*SEARCH, "--seed", "1", "--stragglers", "3:1.5"],
        ["seed", "as a distribution"],
    ),
    "varied and given": (
        ["sweep", *ASK[1:], "--vary", "batch=16,32"],
        ["batch: specified twice, as 16 and as values to sweep"],
    ),
    "cluster varied and given": (
        ["sweep", *ASK[1:], "--vary", "on=4 x dgx-h100,8 x dgx-h100"],
        ["on: specified twice, as 2 x dgx-h100 and"],
    ),
    "unknown file format": ([*ASK, "-o", "x.foo"], ["x.foo", ".html"]),
    "too many stages": (changed(on="8 x dgx-h100", plan="pp64"), ["64", "32 layers"]),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "garbage.yaml").write_bytes(bytes(range(128, 256)) * 20)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_explained(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, told = MISTAKES[name]
    before = sorted(here.iterdir())
    assert run(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("foretrain: ")
    for word in told:
        assert word in err, err
    assert sorted(here.iterdir()) == before, "nothing may be written"


def test_a_plan_that_does_not_fit_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", "llama3-70b", "--on", "1 x dgx-h100", "--plan", "dp8", "--batch", "16"]
    assert run(words) == 1
    out, err = capsys.readouterr()
    assert "DOES NOT FIT" in out
    assert "Traceback" not in out + err
