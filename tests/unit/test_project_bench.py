"""The benchmarks ask what they say they ask."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Modules of the bench folder, loaded as its scripts load each other."""
    monkeypatch.syspath_prepend(str(BENCH))
    loaded: dict[str, ModuleType] = {}
    for name in ("measure", "cases", "run"):
        spec = importlib.util.spec_from_file_location(name, BENCH / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded[name])
        spec.loader.exec_module(loaded[name])
    return loaded


def test_a_thousand_different_cases_in_a_fixed_order(bench: dict[str, ModuleType]) -> None:
    first, again = (list(itertools.islice(bench["cases"].cases(), 1000)) for _ in range(2))
    assert first == again
    asked = {json.dumps({k: v for k, v in case.items() if k != "id"}) for case in first}
    assert len(asked) == 1000
    for case in first:
        plan = case["plan"]
        assert plan["dp"] * plan["tp"] * plan["pp"] == case["devices"]


def test_cases_are_answered(bench: dict[str, ModuleType]) -> None:
    from foretrain import predict_cases

    some = list(itertools.islice(bench["cases"].cases(), 0, 1000, 199))
    answers = list(predict_cases(some))
    assert [answer.get("error") for answer in answers] == [None] * len(some)
    assert len({answer["step_seconds"] for answer in answers}) == len(some)


def test_the_page_says_when_a_target_is_missed(bench: dict[str, ModuleType]) -> None:
    row = bench["measure"].Row
    rows = [row("quick", 1.0, "s", 2.0), row("slow", 3.0, "s", 2.0), row("free", 3.0, "s")]
    lines = [line for line in bench["run"].page(rows, "").splitlines() if line.startswith("| ")]
    verdicts = [line.split("|")[4].strip() for line in lines if line.split("|")[1].strip() in ("quick", "slow", "free")]  # fmt: skip
    assert verdicts == ["yes", "no", ""]
