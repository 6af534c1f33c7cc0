"""Why the others lose: what is said is what the figures say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from foretrain.errors import InputError
from foretrain.plan.constraints import value_in
from foretrain.plan.short_form import parse
from foretrain.planning.explain import (
    ALL_REPLICAS,
    WORTH_TELLING,
    _because,
    _missing,
    against,
    bytes_told,
    estimated,
    explanations,
    seconds_told,
    why,
    winning,
)
from foretrain.planning.partial_result import BestPerChoice, EstimatedPlan
from foretrain.searching import SearchResult, search

FEW = "vpp=1, cp=1, no offload, schedule=1f1b, zero<=1"

BEST = EstimatedPlan("tp2 dp4", 1.0, 40e9, 80e9, work=0.8, pipeline=0.0, data=0.1, update=0.1)


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search("gpt2", on="1 x dgx-a100-80gb", batch=32, where=FEW, top=4, runtime="megatron")


def told(
    rival: EstimatedPlan, choice: str = "pp", value: str = "2", fitting: int = 3
) -> BestPerChoice:
    return BestPerChoice(choice, value, 10, fitting, rival)


def sentence(rival: EstimatedPlan, objective: str = "time") -> str:
    return against(objective, BEST, rival, told(rival)).sentence


def test_a_slower_plan_is_told_with_what_grew_most_first() -> None:
    rival = replace(
        BEST, plan="tp2 pp2 dp2", seconds=1.4, pipeline=0.35, work=0.86, data=0.09, memory=30e9
    )
    assert sentence(rival) == (
        "pp=2: at best tp2 pp2 dp2, 1.40 s: 40 % slower (pipeline bubble +350 ms, compute and in-layer "
        "communication of the slowest stage +60.0 ms); 9.3 GiB less memory per device."
    )


def test_what_shrank_is_told_too() -> None:
    rival = replace(BEST, plan="x", seconds=1.2, work=1.2, data=0.0, update=0.0)
    said = sentence(rival)
    assert "(compute and in-layer communication of the slowest stage +400 ms" in said
    assert "data-parallel communication −100 ms" in said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1.001, "about as fast"), (1.03, "3.0 % slower"), (2.5, "150 % slower"), (0.9, "estimated 10.0 % faster")],
)  # fmt: skip
def test_how_much_slower(seconds: float, said: str) -> None:
    assert said in sentence(replace(BEST, plan="x", seconds=seconds, work=seconds - 0.2))


def test_under_the_objective_of_memory_memory_comes_first() -> None:
    rival = replace(BEST, plan="x", seconds=0.5, memory=50e9)
    assert ": 9.3 GiB more memory per device, estimated 50.0 % faster." in sentence(rival, "memory")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.123456, "123 ms"), (0.09996, "100 ms"), (0.0999, "99.9 ms"), (0.01234, "12.3 ms"), (0.009996, "10.0 ms"),
     (0.00912, "9.12 ms"), (1234.0, "1,234 s"), (3e-6, "3.00 us")],
)  # fmt: skip
def test_seconds_are_told_with_three_digits(seconds: float, said: str) -> None:
    assert seconds_told(seconds).replace("µ", "u") == said


@pytest.mark.parametrize(
    ("more", "said"),
    [(0.0, "same memory"), (9e5, "same memory"), (-9e5, "same memory"), (2**30, "1 GiB more memory"), (-(2**30), "1 GiB less memory")],
)  # fmt: skip
def test_bytes_are_told_where_they_differ(more: float, said: str) -> None:
    assert bytes_told(float(more)).replace(".0", "") == said


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (BestPerChoice("pp", "2", 10, 0, None), "pp=2: none of 10 plans fits in memory."),
        (BestPerChoice("pp", "2", 1, 0, None), "pp=2: its only plan does not fit in memory."),
        (BestPerChoice("sp", "", 3, 0, None), "sp: none of 3 plans fits in memory."),
        (BestPerChoice("shard", "0", 3, 0, None), f"shard over {ALL_REPLICAS}: none of 3 plans fits in memory."),
        (BestPerChoice("shard", "8", 3, 0, None), "shard=8: none of 3 plans fits in memory."),
    ],
)  # fmt: skip
def test_values_without_a_plan_that_fits_say_so(row: BestPerChoice, said: str) -> None:
    told_ = _missing(row)
    assert told_.sentence == said
    assert told_.plan is None


def test_the_closest_of_plans_that_do_not_fit_says_what_it_lacks() -> None:
    rival = replace(BEST, plan="dp8", memory=81.0 * 2**30, usable=80.0 * 2**30)
    found = _missing(BestPerChoice("zero", "0", 7, 0, rival))
    assert found.lacks_bytes == 2**30
    assert "none of 7 plans fits; the closest, dp8, exceeds device memory by 1" in found.sentence


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("dp8", {"tp": 1, "pp": 1, "shard": 0, "micro": 1, "recompute": "none", "schedule": None, "offload": "none",
                 "order": "default", "cp-exchange": "all-gather", "layers": "even", "buckets": "default"}),
        ("tp2 pp2 dp2 micro=4 recompute=full zb-h1 zero1", {"tp": 2, "pp": 2, "micro": 4, "recompute": "full", "schedule": "zb-h1"}),
        ("pp2 dp4", {"schedule": "1f1b"}),
        ("dp8 zero1 offload=optimizer buckets=4MB shard=4", {"offload": "optimizer", "buckets": 4e6, "shard": 4}),
        ("cp2 dp4 cp=ring order=dp-cp-tp-pp", {"cp-exchange": "ring", "order": "-".join(parse("cp2 dp4 order=dp-cp-tp-pp").order or ())}),
        ("pp2 dp4 layers=5,3", {"layers": "5,3"}),
    ],
)  # fmt: skip
def test_what_a_plan_has_of_every_choice(text: str, values: dict[str, object]) -> None:
    assert {choice: value_in(parse(text), choice) for choice in values} == values


def test_the_smallest_parts_are_left_out() -> None:
    """A part that changed by less than a twentieth of the largest change is not worth a word."""
    grew = {"pipeline": 0.4, "work": 0.4 * WORTH_TELLING * 0.99, "data": -0.2, "update": 0.0}
    said = _because(grew, 0.2)
    assert said == " (pipeline bubble +400 ms, data-parallel communication −200 ms)"
    assert _because(dict.fromkeys(grew, 0.0), 0.0) == ""


# --- of a search ------------------------------------------------------------------------------------


def test_every_other_value_is_explained_once(found: SearchResult) -> None:
    winner = winning(found)
    assert winner is not None
    words = parse(winner.plan.text)
    others = {
        (row.choice, row.value)
        for row in found.told
        if row.best and value_in(parse(row.best.plan), row.choice) != value_in(words, row.choice)
    }
    given = [(one.choice, one.value) for one in explanations(found)]
    assert set(given) == others
    assert len(given) == len(others)
    assert ("tp", "2") in others


def test_the_figures_are_those_of_the_estimates(found: SearchResult) -> None:
    winner = winning(found)
    assert winner is not None
    mine = estimated(found, winner)
    rows = {(row.choice, row.value): row for row in found.told}
    for one in explanations(found):
        rival = rows[one.choice, one.value].best
        assert rival is not None
        assert one.fits
        assert one.plan == rival.plan
        assert one.step_seconds == rival.seconds
        assert one.slower_seconds == rival.seconds - mine.seconds
        assert one.more_bytes == rival.memory - mine.memory
        assert sum(one.grew.values()) == pytest.approx(one.slower_seconds, abs=1e-9)
        assert one.sentence.startswith(f"{one.choice}={one.value}: at best {one.plan}, ")


def test_values_of_a_choice_come_nearest_first(found: SearchResult) -> None:
    slower = [one.slower_seconds or 0.0 for one in explanations(found) if one.choice == "micro"]
    assert len(slower) > 2
    assert slower == sorted(slower)


def test_what_is_estimated_faster_but_lost_is_said_so(found: SearchResult) -> None:
    """Turn the simulated order around: the last of the best wins."""
    turned = replace(found, best=found.best[::-1])
    assert turned.best[0].estimated_seconds > found.best[0].estimated_seconds
    assert any(
        ("Slower than the best plan when simulated.") in o.sentence for o in explanations(turned)
    )


def test_where_nothing_fits_each_value_says_what_it_lacks() -> None:
    where = "tp=4|8, vpp=1, cp=1, no offload, micro=1, schedule=1f1b"
    result = search("llama3-70b", on="1 x dgx-a100-80gb", batch=16, where=where)
    lines = explanations(result)
    assert {one.choice for one in lines} >= {"tp", "zero", "recompute"}
    assert "cp" not in {one.choice for one in lines}  # one value explains nothing
    for one in lines:
        assert not one.fits
        assert re.search(
            "none of [\\d,]+ plans fits; the closest, .*, exceeds device memory by [\\d.]+ GiB",
            one.sentence,
        )
    lacks = [one.lacks_bytes for one in lines if one.choice == "recompute"]
    assert lacks == sorted(lacks)
    assert why(result, "tp=8").sentence.startswith("tp=8: none of")


# --- why ----------------------------------------------------------------------------------------------


def test_why_adds_a_simulation(found: SearchResult) -> None:
    one = found.why("tp=2")
    assert one.plan is not None
    assert "tp2" in one.plan.split()
    assert re.search(r"Simulated: [\d.]+ ms vs. [\d.]+ ms for the best plan \(", one.sentence)


def test_why_of_several_choices_looks_at_plans_with_all_of_them(found: SearchResult) -> None:
    one = found.why("tp=2, pp=2")
    assert one.plan is not None
    assert {"tp2", "pp2"} <= set(one.plan.split())
    assert one.slower_seconds is not None
    assert one.slower_seconds >= max(
        o.slower_seconds or 0.0 for o in explanations(found) if (o.choice, o.value) == ("tp", "2")
    )


def test_why_keeps_to_the_constraints(found: SearchResult) -> None:
    one = found.why("tp=2, pp=2")
    assert one.plan is not None
    assert parse(one.plan).zero <= 1


def test_why_of_what_the_best_plan_has(found: SearchResult) -> None:
    assert found.why("tp=1").sentence.startswith("tp=1: used by the best plan (")


@pytest.mark.parametrize(
    ("text", "said"),
    [("tp=8", "must be divisible by tp 8"), ("tp=3", "must divide the 8 devices")],
)
def test_why_of_what_cannot_be_says_what_stands_against_it(
    found: SearchResult, text: str, said: str
) -> None:
    one = found.why(text)
    assert one.plan is None
    assert said in one.sentence


def test_why_needs_a_choice(found: SearchResult) -> None:
    for text in ("", "tpp=3", "soon"):
        with pytest.raises(InputError):
            found.why(text)
