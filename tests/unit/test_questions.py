"""Questions that name a model, machines and a batch, and nothing else: what a practitioner would run there."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from foretrain import predict

TOOLS = Path(__file__).parents[2] / "tools"
PAGE = Path(__file__).parents[2] / "docs" / "questions.md"

# stack, plan, micro-batch: those of the stacks' own guides and of published recipes for models of that size
EXPECTED = {
    ("resnet50", "1 x rtx-4090"): ("ddp", r"dp1", 256),
    ("resnet50", "1 x dgx-a100-80gb"): ("ddp", r"dp8", 256),
    ("vit-l", "1 x dgx-a100-80gb"): ("fsdp2", r"dp8 zero3", 128),
    ("bert-base", "1 x rtx-4090"): ("ddp", r"dp1", 32),
    ("bert-large", "1 x dgx-a100-80gb"): ("fsdp2", r"dp8 zero3", 64),
    ("gpt2", "1 x rtx-4090"): ("ddp", r"dp1", 16),
    ("llama3.2-1b", "1 x a100-80gb"): ("ddp", r"dp1", 1),
    ("t5-3b", "2 x dgx-a100-80gb"): ("megatron", r"dp16", 8),
    ("llama2-7b", "16 x dgx-a100-80gb"): ("megatron", r"dp128 zero1", 1),
    ("llama3-8b", "1 x dgx-h100"): ("fsdp2", r"dp8 zero3", 1),
    ("llama3-8b", "2 x dgx-h100"): ("megatron", r"tp2 dp8 zero1 sp", 2),
    ("llama3-8b", "4 x aws:p4d.24xlarge"): ("megatron", r"tp[24]( pp2)? dp\d+ zero1 sp.*", 1),
    ("llama2-13b", "4 x dgx-a100-80gb"): ("megatron", r"tp2 dp16 zero1 sp", 2),
    ("llama3-70b", "1 x dgx-h100"): ("fsdp2", r"dp8 zero3", 1),
    ("llama3-70b", "32 x dgx-h100"): ("megatron", r"tp[48] pp[48] dp\d+( cp2)?( vpp\d+)? zero1 sp.*", 1),
    ("gpt3-175b", "128 x dgx-a100-80gb"): ("megatron", r"tp[48] pp(8|16) dp\d+ vpp\d zero1 sp interleaved", 1),
    ("llama3.1-405b", "256 x dgx-h100"): ("megatron", r"tp8 pp(8|16) dp\d+ cp2 vpp\d zero1 sp interleaved", 1),
    ("mixtral-8x7b", "8 x dgx-h100"): ("megatron", r"tp2 pp[24] dp\d+ ep[48] vpp\d( etp1)? zero1 sp interleaved", 1),
    ("qwen3-30b-a3b", "4 x dgx-h100"): ("megatron", r"dp32 ep(8|16) zero1", 1),
    ("dlrm-dcnv2", "2 x dgx-h100"): ("torchrec", r"dp16 tables=rows", 3456),
}  # fmt: skip


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("questions", TOOLS / "questions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_question_has_an_expectation(tool: ModuleType) -> None:
    assert [(model, on) for model, on, _ in tool.QUESTIONS] == list(EXPECTED)


@pytest.mark.parametrize("asked", EXPECTED, ids=" on ".join)
def test_the_answer_is_what_a_practitioner_would_run(
    asked: tuple[str, str], tool: ModuleType
) -> None:
    model, on = asked
    batch = next(row[2] for row in tool.QUESTIONS if row[:2] == asked)
    found = predict(model, on=on, batch=batch)
    stack, plan, micro = EXPECTED[asked]
    question = found.to_dict()["question"]
    assert (question["runtime"], question["micro_batch"]) == (stack, micro)
    assert re.fullmatch(plan, question["plan"]), question["plan"]
    for word in ("--runtime", "--micro-batch", "--plan", "--precision", "--optimizer"):
        assert any(word in line for line in found.assumptions), word
    assert found.memory.fits == (asked != ("llama3-70b", "1 x dgx-h100"))


# of the runs whose figures are public: as published, in the unit of `tools/questions.py`
PUBLISHED = (
    ("llama3.1-405b", 0.38, 0.43),
    ("llama2-7b", 0.57, 0.57),
    ("llama2-7b", 0.68, 0.68),
    ("gpt3-175b", 0.514, 0.514),
)


@pytest.mark.parametrize("row", range(len(PUBLISHED)), ids=lambda row: PUBLISHED[row][0])
def test_public_runs_are_in_their_intervals(row: int, tool: ModuleType) -> None:
    runs = [run for run in tool.PUBLIC if run[1] == "MFU"]
    assert [run[2] for run in runs] == [model for model, *_ in PUBLISHED]
    found = predict(runs[row][2], **runs[row][3])
    assert found.mfu is not None
    low, high = (found.mfu * found.step_seconds / end for end in reversed(found.interval))
    _, least, most = PUBLISHED[row]
    assert low < most
    assert least < high


def test_the_page_asks_them(tool: ModuleType) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for model, on, batch in tool.QUESTIONS:
        asked = tool.command(model, {"on": on, "batch": batch})
        assert f"    {asked}\n" in text
        assert shlex.split(asked)[:3] == ["foretrain", "predict", model]
