"""The examples run, and show what they say they show."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def printed(script: str, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    path = EXAMPLES / script
    before, sys.argv = sys.argv, [str(path), *arguments]
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = before
    return capsys.readouterr().out


def test_every_example_is_listed_and_every_listed_one_exists() -> None:
    listed = set(re.findall(r"\]\(([\w.]+)\)", (EXAMPLES / "README.md").read_text("utf-8")))
    there = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    assert listed == there


def test_first_prediction(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    text = printed("first_prediction.py", capsys, str(page))
    step = float(text.split(" s per step")[0])
    parts = [float(s) for s in re.findall(r"^  \w+ +([\d.]+) s$", text, re.MULTILINE)]
    assert sum(parts) == pytest.approx(step, abs=0.02)
    assert page.stat().st_size > 10_000


def test_compare_plans(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("compare_plans.py", capsys).splitlines()
    assert lines[0].startswith("tp3 dp8")
    assert "32 devices" in lines[0]
    verdicts = ["does not fit" in line for line in lines[1:]]
    assert len(verdicts) == 7
    assert verdicts == sorted(verdicts), "what fits comes first"


def test_scaling(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("scaling.py", capsys)
    efficiency = [int(share) for share in re.findall(r"s +(\d+)%   ", text)]
    assert len(efficiency) == 6
    assert efficiency[0] == 100
    assert efficiency == sorted(efficiency, reverse=True)


def test_mixed_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("mixed_cluster.py", capsys)
    assert "16 devices in 3 nodes" in text
    steps = [float(s) for s in re.findall(r"([\d.]+) s per step", text)]
    waits = [float(s) for s in re.findall(r"([\d.]+) s of it waiting", text)]
    assert steps[1] > steps[0]
    assert waits[1] > waits[0]


def test_plan_from_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed("plan_from_yaml.py", capsys)
    steps = [float(s) for s in re.findall(r"([\d.]+) s per step", text)]
    sizes = [float(s) for s in re.findall(r"([\d.]+) GiB", text)]
    assert len(steps) == 3
    assert steps == sorted(steps)
    assert sizes == sorted(sizes, reverse=True)


def test_cases() -> None:
    from foretrain import predict_cases

    lines = (EXAMPLES / "cases.jsonl").read_text("utf-8").splitlines()
    answers: list[dict[str, Any]] = list(predict_cases(json.loads(line) for line in lines))
    assert [answer["id"] for answer in answers] == [json.loads(line)["id"] for line in lines]
    assert ["error" in answer for answer in answers] == [False, False, False, False, True]
