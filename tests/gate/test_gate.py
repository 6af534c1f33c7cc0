"""Old against new: every kept answer is the answer of today, or the change says why (`tests/gate/DRIFT.md`)."""

from __future__ import annotations

import math

import pytest

from foretrain.model import zoo
from foretrain.runtime import presets
from tests.gate.answers import answered
from tests.gate.questions import FAMILIES
from tests.gate.store import Drift, drifts, read

PARTS = 24
REMEDY = '`python -m tests.gate` lists what differs; if it is meant: `python -m tests.gate --allow "the cause"`.'

NEW = "When `python -m tests.gate` finds no difference: `python -m tests.gate --draw` asks for what is new."


@pytest.fixture(scope="module")
def kept():
    return read()


@pytest.mark.parametrize("part", range(PARTS))
def test_answers_are_as_kept(kept, part):
    changed = [
        one
        for row in kept[part::PARTS]
        for one in drifts(row.name, row.answer, answered(row.question))
    ]
    assert not changed, f"{changed[:5]} and {max(0, len(changed) - 5)} more. {REMEDY}"


def test_questions_cover_stacks_models_and_estimates(kept):
    assert len(kept) >= 2000
    answers = [row for row in kept if "step" in row.answer]
    stacks = {row.question["runtime"] for row in answers if "runtime" in row.question}
    models = {row.question["model"] for row in answers if isinstance(row.question["model"], str)}
    missing = [*(set(presets()) - stacks), *(set(zoo.names()) - models)]
    assert not missing, f"no question asks for {missing}. {NEW}"
    assert sum("estimate.seconds" in row.answer for row in answers) >= 1500


@pytest.mark.parametrize("family", ["dense", "experts", "latent", "bert"])
def test_a_family_is_answered_under_every_stack(kept, family):
    rows = [row for row in kept if row.question["model"] == FAMILIES[family]]
    trained = {row.question.get("runtime") for row in rows if "step" in row.answer}
    assert not set(presets()) - trained  # those for tables say that they do not run it


@pytest.mark.parametrize(
    ("was", "now", "differ"),
    [
        ({"step": 1.0}, {"step": 1.0 + 1e-13}, False),
        ({"step": 1.0}, {"step": 1.0 + 1e-9}, True),
        ({"step": 1.0, "stall.host": 1e-20}, {"step": 1.0, "stall.host": 0.0}, False),
        ({"step": 1.0}, {"refused": "yes"}, True),
        ({"plan": "dp8"}, {"plan": "dp4 tp2"}, True),
    ],
)
def test_drift_is_more_than_rounding(was, now, differ):
    assert bool(drifts("row", was, now)) == differ


def test_size_of_drift():
    assert Drift("row", "step", 2.0, 2.2).size == pytest.approx(0.1)
    assert Drift("row", "plan", "dp8", "dp4").size == math.inf
