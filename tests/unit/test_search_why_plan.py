"""Why not this plan: what a plan that the user names loses, and on what."""

from __future__ import annotations

import json

import pytest

from foretrain import predict, search
from foretrain.advice.why import is_plan
from foretrain.errors import InputError
from foretrain.report.json import dumps
from foretrain.report.search import search_document
from foretrain.searching import SearchResult


@pytest.fixture(scope="module")
def found() -> SearchResult:
    where = "tp<=4, pp<=4, cp=1, vpp<=2, no offload"
    return search(
        "llama3-8b", on="2 x dgx-h100", batch=256, seq=4096, runtime="megatron", where=where, top=3
    )


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("tp8 pp2 zero1", True), ("tp8", True), ("dp16 micro=2", True), ("tp=8 pp=2", True), ("pp4 zb-v", True),
        ("tp=4", False), ("tp=4, pp=2", False), ("no zero", False), ("sp", False), ("zero>=1", False),
        ("layers=24,8", False), ("pp2 layers=24,8", True), ("recompute=full", False),
    ],
)  # fmt: skip
def test_plans_are_told_from_choices(text: str, is_one: bool) -> None:
    assert is_plan(text) == is_one


@pytest.mark.parametrize("text", ["tp8 pq2", "tpp8", "no nothing", "tp8 tp4", "tp=4, qq=3"])
def test_a_word_that_is_neither_is_a_fault(found: SearchResult, text: str) -> None:
    with pytest.raises(InputError):
        found.why(text)


def test_a_plan_loses_by_what_predict_says_of_it(found: SearchResult) -> None:
    one, best = found.why("tp4 pp2 dp2 zero1 micro=2"), found.best[0].prediction
    own = predict(
        "llama3-8b", on="2 x dgx-h100", batch=256, seq=4096, runtime="megatron", micro_batch=2,
        plan="tp4 pp2 dp2 zero1",
    )  # fmt: skip
    assert one.fits
    assert one.step_seconds == own.step_seconds
    assert one.slower_seconds == own.step_seconds - best.step_seconds
    assert one.more_bytes == own.memory.peak_bytes - best.memory.peak_bytes
    assert one.grew == {name: own.stalls[name] - best.stalls[name] for name in own.stalls}
    assert sum(one.grew.values()) == pytest.approx(one.slower_seconds)
    most = max(one.grew, key=lambda name: one.grew[name])
    assert f"({most} +" in one.sentence
    assert "% slower" in one.sentence


def test_a_micro_batch_that_is_left_open_is_the_fastest_that_fits(found: SearchResult) -> None:
    one = found.why("tp4 dp4 zero1")
    assert one.plan is not None
    assert "the fastest that fits" in one.sentence
    others = (found.why(f"tp4 dp4 zero1 micro={size}") for size in (1, 2, 4, 8, 16))
    steps = [row.step_seconds for row in others if row.fits and row.step_seconds]
    assert one.step_seconds is not None
    assert one.step_seconds <= min(steps) * 1.001


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dp16", "exceeds device memory by"),
        ("dp16", "The fastest change that makes it fit: "),
        ("pp4 zb-v micro=1", "megatron cannot run schedule=zb-v"),
        ("tp8 dp2 zero1", "excluded by tp<=4"),
        ("tp3 dp2", "the plan is for 6 ranks"),
        ("dp8", "16 devices"),
        ("tp3 pp2", "must divide the 16 devices"),
        ("dp16 zero1 micro=3", "Try a micro-batch of 2"),
        ("pp16 vpp4", "not a plan for this work"),
    ],
)
def test_what_stands_against_a_plan_is_told(found: SearchResult, text: str, said: str) -> None:
    one = found.why(text)
    assert said in one.sentence
    assert one.fits == ("Not in the search" in one.sentence)


def test_the_best_plan_is_known_by_another_spelling(found: SearchResult) -> None:
    plan = found.best[0].plan.text
    assert "the best plan itself" in found.why(" ".join(reversed(plan.split()))).sentence


def test_where_nothing_fits_a_plan_is_told_all_the_same() -> None:
    nothing = search(
        "llama3-70b", on="1 x dgx-a100-80gb", batch=16, where="tp=8, micro=1, cp=1", runtime="megatron"
    )  # fmt: skip
    one = nothing.why("tp8 zero1 micro=1")
    assert not one.fits
    assert one.lacks_bytes > 0


def test_pages_and_documents_have_the_answer_first(found: SearchResult) -> None:
    one = found.why("tp4 dp4 zero1 micro=1")
    shown = search_document(found, one)
    assert json.loads(dumps(shown.data))["why"]["plan"] == one.plan
    titles = [section.title for section in shown.sections if section.title.startswith("Why not")]
    assert titles[0] == "Why not tp4 dp4 zero1 micro=1"
