"""A search's winner asked for by itself: `predict` with the words that the search gives is the same answer."""

from __future__ import annotations

import json
import shlex
from html import escape
from pathlib import Path
from typing import Any

import pytest

import foretrain
from foretrain.asked import command_line
from foretrain.cli import run
from foretrain.model.workload import DataSource

SMALL = "vpp=1, cp=1, no offload, order=default, recompute=none|full, schedule=1f1b"
QUESTIONS: list[dict[str, Any]] = [
    {"model": "resnet50", "on": "1 x dgx-h100", "batch": 2048},
    {"model": "llama3-8b", "on": "1 x dgx-h100", "batch": 64, "where": SMALL},
    {"model": "llama3-8b", "on": "2 x dgx-h100", "batch": 128, "where": SMALL},
    {"model": "mixtral-8x7b", "on": "4 x dgx-h100", "batch": 128, "where": f"{SMALL}, tp<=4"},
    {"model": "gpt3-1.3b", "on": "1 H100", "batch": 64},
    {"model": "gpt2", "on": "1 x dgx-h100", "batch": "512ktok", "micro_batch": 2, "seq": 1024,
     "runtime": "generic", "runtime_options": {"cuda_graphs": True, "bucket_bytes": 5e7},
     "precision": "fp16", "optimizer": "sgd", "headroom": 0.05, "stragglers": {3: 1.25}, "where": SMALL},
]  # fmt: skip


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """All but the spelling of the plan and what was assumed, of which the words of a winner leave less; and changes of
    plans, switches and machines, which a search does not go on to look for."""
    found, asked = one["what_would_help"], other["what_would_help"]
    assert found == [remedy for remedy in asked if remedy["kind"] == "hardware"]
    for name in one:
        if name not in ("question", "assumptions", "what_would_help"):
            assert one[name] == other[name], name
    assert {**one["question"], "plan": ""} == {**other["question"], "plan": ""}


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: f"{asked['model']} {asked['on']}")
def test_predict_gives_the_winner_again(
    asked: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = foretrain.search(**asked, top=2)
    for rank, row in enumerate(found.best, 1):
        same(row.prediction.to_dict(), foretrain.predict(**found.words(rank)).to_dict())
    assert found.command is not None
    program, *words = shlex.split(found.command)
    assert program == "foretrain"
    assert run([*words, "--json"]) == 0
    same(found.best[0].prediction.to_dict(), json.loads(capsys.readouterr().out))


def test_the_command_stands_in_every_view_of_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.html"
    words = ["search", "gpt2", "--on", "1 x dgx-h100", "--batch", "32", "--where", SMALL]
    assert run([*words, "-o", str(path)]) == 0
    printed = capsys.readouterr().out
    assert run([*words, "--json"]) == 0
    command = json.loads(capsys.readouterr().out)["command"]
    assert command.startswith("foretrain predict gpt2 --on '1 x dgx-h100' --batch 32 --plan ")
    assert command.endswith(" --runtime megatron")
    assert f"  {command}\n" in printed  # in one line, to be copied
    assert escape(command) in path.read_text()
    assert "runtime megatron: runs every plan that a search looks at" in path.read_text()


def test_one_device_is_searched_with_the_stack_that_predict_takes() -> None:
    found = foretrain.search("gpt3-1.3b", on="1 H100", batch=8, top=1)
    assert found.task.runtime.name == "ddp"
    assert "runtime ddp: single device (--runtime)" in found.task.assumptions


def test_a_search_for_launch_files_takes_their_stack() -> None:
    found = foretrain.search(
        "gpt2", on="1 x dgx-h100", batch=32, to="deepspeed", where=SMALL, top=1
    )
    assert "runtime deepspeed: --to deepspeed (--runtime)" in found.task.assumptions
    assert found.words()["runtime"] == "deepspeed"


def test_what_has_no_words_has_no_command() -> None:
    asked = {"model": "gpt2", "on": "1 x dgx-h100", "batch": 32}
    assert command_line({**asked, "data": DataSource(bytes_per_sample=1e3)}) is None
    assert command_line({**asked, "on": {"nodes": []}}) is None
    assert command_line(asked) == "foretrain predict gpt2 --on '1 x dgx-h100' --batch 32"


def test_a_calibration_is_named_by_its_file() -> None:
    from foretrain.cli.options import OpenQuestion

    question = OpenQuestion(model="gpt2", on="1 x dgx-h100", calibration="own.json")
    said = {"model": "gpt2", "on": "…", "measured": object(), **question.written()}
    assert command_line(said) == "foretrain predict gpt2 --on '1 x dgx-h100' --calibration own.json"
