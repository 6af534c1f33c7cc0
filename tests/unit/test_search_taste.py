"""Of plans that are as good the simpler one, and how plans stand where things are worse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretrain import predict, search
from foretrain.analysis.differences import PARTS, StepParts, deviations, is_within_noise, spread
from foretrain.analysis.prediction import STALLS
from foretrain.plan.defaults import PLAIN
from foretrain.plan.short_form import parse
from foretrain.planning.planner import Ranked
from foretrain.planning.robustness import robustness
from foretrain.planning.task import Task
from foretrain.planning.taste import TRADE, Fastest, as_good, complexity, fastest, tasteful
from foretrain.report.search import search_document
from foretrain.resolving import ask
from foretrain.searching import SearchResult
from foretrain.simulate import simulate_scenario

# --- simplicity -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("simpler", "odder"),
    [
        ("dp8", "dp8 recompute=selective"),
        ("dp8 recompute=selective", "dp8 recompute=full"),
        ("dp8 recompute=full", "dp8 recompute=full*0.5"),
        ("dp8 recompute=full", "dp8 offload=optimizer"),
        ("dp8", "tp2 dp4"),
        ("tp8", "tp2 pp2 dp2"),
        ("tp2 dp4", "tp4 dp2"),
        ("pp4 dp2", "pp4 dp2 vpp2"),
        ("pp4 dp2", "pp4 dp2 zb-h1"),
        ("pp2 dp4 vpp2", "pp2 dp4 vpp4"),
        ("pp2 dp4", "pp2 dp4 layers=17,15"),
        ("pp4 dp2", "pp3 dp2"),
        ("dp8", "dp8 zero1"),
        ("dp8 zero1", "dp8 zero2"),
        ("dp8 zero3", "dp8 zero3 shard=4"),
        ("tp2 dp4", "tp2 dp4 sp"),
        ("dp8", "dp8 buckets=100MB"),
        ("pp2 dp4", "pp2 dp4 order=tp-cp-pp-dp"),
        ("dp8 micro=4", "dp8 micro=2"),
    ],
)
def test_what_is_simpler(simpler: str, odder: str) -> None:
    one, other = (complexity(parse(text), PLAIN) for text in (simpler, odder))
    assert one < other


def test_what_the_stack_does_by_itself_is_simple() -> None:
    fsdp = Task.of(ask("gpt2", on="1 x dgx-h100", plan="dp8", batch=64, runtime="fsdp2")).defaults
    one, other = (complexity(parse(text, fsdp), fsdp) for text in ("dp8 zero3", "dp8 zero0"))
    assert one < other


# --- the pick -------------------------------------------------------------------------------------------


def ranked(plans: dict[str, float], **asked: Any) -> tuple[Task, tuple[Ranked, ...]]:
    """Simulated plans whose steps are so many times that of the first, in order of their time."""
    base: dict[str, Any] = {"on": "1 x dgx-a100-80gb", "batch": 64, "runtime": "megatron", **asked}
    rows, task = [], None
    for text, factor in plans.items():
        scenario = ask("gpt3-1.3b", plan=text, micro_batch=2, **base)
        task = task or Task.of(scenario)
        found = simulate_scenario(scenario)
        step = found.step_seconds if not rows else rows[0].simulation.step_seconds * factor
        found.__dict__["step_seconds"] = step
        rows.append(Ranked(scenario.plan, found, step))
    assert task is not None
    return task, tuple(sorted(rows, key=lambda row: row.score.rank("time")))


def test_recomputation_that_costs_nothing_does_not_win() -> None:
    task, rows = ranked({"dp8 recompute=full": 1.0, "dp8": 1.0, "dp8 recompute=selective": 1.0})
    assert rows[0].plan.text == "dp8 recompute=full"  # it needs the least memory
    assert tasteful(task, rows, "time")[0].plan.text == "dp8"


def test_simplicity_is_paid_for_with_so_much_and_no_more() -> None:
    plans = {"dp8 recompute=full": 1.0, "dp8 recompute=selective": 1.0009, "dp8": 1.0011}
    task, rows = ranked(plans)
    found = tasteful(task, rows, "time")
    assert [row.plan.text for row in found] == [
        "dp8 recompute=selective", "dp8 recompute=full", "dp8",
    ]  # fmt: skip
    assert TRADE == 0.001
    assert fastest(found) == Fastest("dp8 recompute=full", rows[0].score.step_seconds)


def test_where_memory_is_the_goal_both_figures_count() -> None:
    """One that is as small and slower does not win, however simple."""
    task, rows = ranked({"dp8 recompute=full": 1.0, "dp8": 1.0})
    small = sorted(rows, key=lambda row: row.score.rank("memory"))
    assert tasteful(task, small, "memory")[0].plan.text == "dp8 recompute=full"


def test_room_in_memory_comes_before_simplicity() -> None:
    task, rows = ranked({"dp8": 1.0, "dp8 zero1": 1.0})
    full = max(row.simulation.memory.total_bytes for row in rows)
    cluster = 79.25 * 2**30
    headroom = 1.0 - 1.02 * full / cluster  # `dp8` fits just so
    task, rows = ranked({"dp8": 1.0, "dp8 zero1": 1.0}, headroom=headroom)
    assert all(row.simulation.memory.fits for row in rows)
    assert tasteful(task, rows, "time")[0].plan.text == "dp8 zero1"


SEARCHES: tuple[dict[str, Any], ...] = (
    {"model": "gpt2", "on": "1 x dgx-a100-80gb", "batch": 32, "where": "cp=1, pp<=2"},
    {"model": "bert-large", "on": "1 x dgx-1-v100-32gb", "batch": 64, "where": "cp=1, pp=1"},
    {"model": "llama3.2-1b", "on": "1 x dgx-h100", "batch": 64, "runtime": "torchtitan", "where": "pp=1"},
)  # fmt: skip


@pytest.fixture(scope="module", params=SEARCHES, ids=lambda asked: asked["model"])
def found(request: pytest.FixtureRequest) -> SearchResult:
    asked = dict(request.param)
    return search(asked.pop("model"), top=4, **asked)


def test_the_pick_is_near_the_fastest_and_none_that_is_simpler_is_as_near(
    found: SearchResult,
) -> None:
    steps = [row.score.step_seconds for row in found.best]
    assert steps[0] <= min(steps) * (1.0 + TRADE)
    assert steps[1:] == sorted(steps[1:])
    assert found.fastest is not None
    assert found.fastest.step_seconds <= min(steps) <= found.fastest.step_seconds * (1.0 + TRADE)
    defaults = found.task.defaults
    own = complexity(found.task.words(found.best[0].plan.text), defaults)
    for row in found.best[1:]:
        if row.score.step_seconds <= min(steps) * (1.0 + TRADE):
            assert own <= complexity(found.task.words(row.plan.text), defaults)


def test_few_wanted_are_the_first_of_many(found: SearchResult) -> None:
    asked = next(one for one in SEARCHES if one["model"] == found.said["model"])
    asked = dict(asked)
    one = search(asked.pop("model"), top=1, **asked)
    assert one.best[0].plan.text == found.best[0].plan.text
    assert one.fastest == found.fastest


def test_documents_count_and_mark_those_that_are_as_good(found: SearchResult) -> None:
    document = found.to_dict()
    assert document["as_good"] == sum(row["as_good"] for row in document["best"]) >= 1
    assert document["fastest"]["step_seconds"] <= document["best"][0]["prediction"]["step_seconds"]
    assert [row["robustness"] is None for row in document["best"]] == [False, False, False, True]
    text = str(search_document(found).data)
    assert "as_good" in text


# --- what two plans share -------------------------------------------------------------------------------


def step(text: str, seconds: float = 1.0, **shares: float) -> StepParts:
    stalls = {**dict.fromkeys(STALLS, 0.0), **{name: s * seconds for name, s in shares.items()}}
    return StepParts.of(stalls, parse(text))


def test_what_both_run_alike_is_off_alike() -> None:
    """Only the difference of the shares counts; where the plans are unlike, both shares do."""
    sizes = deviations()
    one = step("tp2 dp4", compute=0.7, network=0.3)
    other = step("tp2 dp4 zero1", compute=0.8, network=0.2)
    kernels, network = sizes["kernels"] * 0.1, sizes["network"]
    assert spread(one, other) ** 2 == pytest.approx(kernels**2 + network**2 * (0.3**2 + 0.2**2))
    assert spread(one, replace(one, seconds=2.0)) == 0.0
    assert spread(one, other) == spread(other, one)
    assert set(sizes) == set(PARTS)


def test_twins_are_told_apart_by_anything() -> None:
    one = step("dp8", compute=1.0)
    assert is_within_noise(one, one)
    assert not is_within_noise(one, replace(one, seconds=1.0001))


def test_a_plan_without_a_short_form_shares_nothing() -> None:
    one = step("dp8", compute=1.0)
    assert spread(one, replace(one, words=None)) == pytest.approx(2**0.5 * deviations()["kernels"])


def test_steps_that_are_all_network_are_less_sure() -> None:
    fast, slow = step("dp8", compute=1.0), step("tp2 dp4", 1.2, compute=0.7, network=0.3)
    assert is_within_noise(fast, slow)
    assert not is_within_noise(fast, step("tp2 dp4", 1.2, compute=1.0))


def test_the_fastest_is_as_good_as_itself() -> None:
    task, rows = ranked({"dp8": 1.0, "dp8 zero1": 1.01, "tp8": 3.0})
    assert as_good(task, rows)[0]
    assert not as_good(task, rows)[2]
    assert as_good(task, ()) == ()


# --- robustness -----------------------------------------------------------------------------------------


def test_robustness_is_what_predict_says_of_the_worse_cluster() -> None:
    asked: dict[str, Any] = {
        "on": "2 x dgx-a100-80gb", "plan": "tp2 pp2 dp4 zero1", "batch": 64, "micro_batch": 1, "runtime": "megatron",
    }  # fmt: skip
    found = simulate_scenario(ask("gpt3-6.7b", **asked))
    told = robustness(found)
    slow = [
        predict("gpt3-6.7b", **asked, stragglers=f"{rank}:1.1").step_seconds for rank in range(16)
    ]
    assert told.straggler_seconds in slow
    assert told.straggler_seconds > 1.03 * found.step_seconds
    assert told.slower_network_seconds >= found.step_seconds
    held = found.memory
    assert told.fits_with_more_memory == (held.peak_bytes * 1.05 <= held.usable_bytes)
    assert told.fits_probability == held.fits_probability


def test_a_slower_network_is_felt_where_there_is_one() -> None:
    def told(on: str) -> float:
        plan = {"plan": "dp16" if on[0] == "2" else "dp8", "batch": 64, "micro_batch": 4}
        found = simulate_scenario(ask("bert-large", on=on, runtime="megatron", **plan))
        return robustness(found).slower_network_seconds / found.step_seconds

    assert told("1 x dgx-a100-80gb") == 1.0
    assert told("2 x dgx-a100-80gb") > 1.001
