"""Kept predictions: a change of any number shows as a difference in `predictions/*.json` and is reviewed there.

`python -m tests.golden.update` writes them anew.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretrain.simulate import answer

from .questions import QUESTIONS, summary

FOLDER = Path(__file__).parent / "predictions"
REMEDY = "If that is meant, run `python -m tests.golden.update` and review the difference."


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    return {name: answer(make()) for name, make in QUESTIONS.items()}


@pytest.mark.parametrize("name", QUESTIONS)
def test_predictions_are_as_kept(name, answers):
    kept = dict(leaves(json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))))
    found = dict(leaves(summary(answers[name])))
    assert found.keys() == kept.keys(), REMEDY
    step = kept["step_seconds"]
    for path, value in found.items():
        was = kept[path]
        if isinstance(value, float) and isinstance(was, int | float):
            # stalls of almost nothing are rounding: hold them to the step
            allowed = 1e-6 * max(abs(was), step if path.startswith("stalls") else 0.0)
            assert abs(value - was) <= allowed, f"{name}: {path} was {was}, is {value}. {REMEDY}"
        else:
            assert value == was, f"{name}: {path} was {was}, is {value}. {REMEDY}"


@pytest.mark.parametrize("name", QUESTIONS)
def test_predictions_hold_together(name, answers):
    p = answers[name]
    assert sum(p.stalls.values()) == pytest.approx(p.step_seconds, rel=1e-12)
    assert sum(p.memory.by_kind.values()) == pytest.approx(p.memory.peak_bytes, rel=1e-12)
    assert p.interval[0] < p.step_seconds < p.interval[1]
    assert p.mfu is None or 0 < p.mfu <= p.hfu * (1 + 1e-9) <= 1 + 1e-9
    path = p.critical_path
    assert path[0].start == 0.0
    assert path[-1].end == p.step_seconds
    for before, after in itertools.pairwise(path):
        assert after.start == pytest.approx(before.end, rel=1e-12)


def test_nothing_is_kept_that_nobody_asks():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(QUESTIONS)
