"""Searches and their advice against what stacks can run, on a few of the questions of `tools/stack_plans.py`."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from support.stack_limits import LIMITS, complaints

from foretrain import search
from foretrain.runtime import presets

ROOT = Path(__file__).parents[2]
SAMPLES = 8
MAIN = (*LIMITS,)


@pytest.fixture(scope="module")
def tools() -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import stack_plans

        yield stack_plans
    finally:
        sys.path.remove(str(ROOT / "tools"))


@pytest.mark.parametrize("number", range(SAMPLES))
def test_answers_name_plans_that_the_stack_can_run(tools: Any, number: int) -> None:
    lot = random.Random(150 + number)
    stack = lot.choice(MAIN if number % 2 else (*presets(),))
    row = tools.found(stack, lot.choice(tools.PAIRS))
    assert not row.wrong


def test_a_search_that_heeds_no_rules_is_noticed(tools: Any) -> None:
    """By the table as by the rules: the best plans of all are not those of PyTorch's DDP."""
    pair = tools.PAIRS[0]
    free = search(
        **pair.question, runtime="ddp", where="micro=1, cp=1, zero=1", top=2, hypothetical=True
    )
    rows = [tools._held("winner", row.plan, free.task) for row in free.best]
    assert rows
    for row in rows:
        assert any(fault.startswith("ddp cannot run") for fault in row.faults)
        assert any(fault.startswith("by hand") for fault in row.faults)


def test_the_page_has_every_pair_and_no_plan_that_cannot_be_run(tools: Any) -> None:
    text = (ROOT / "docs/stack-plans.md").read_text("utf-8")
    rows = {line.split(" | ")[0].strip("| ") for line in text.splitlines() if line.startswith("| ")}
    assert {"megatron", "ddp", "fsdp2", "torchtitan", "nanotron", "deepspeed"} <= rows
    assert rows <= {*presets(), "stack"}
    assert all(str(pair) in text for pair in tools.PAIRS)
    assert "## Plans that a stack cannot run\n\nNone." in text


def test_work_that_a_stack_has_no_code_for_is_refused(tools: Any) -> None:
    pair = next(pair for pair in tools.PAIRS if pair.model == "resnet50")
    assert "its models are transformers" in tools.found("megatron", pair).refused
    assert complaints(
        "megatron",
        tools.Words(dp=8),
        {"model": "cnn", "batch": 8, "precision": "bf16", "tied": "no"},
    )
