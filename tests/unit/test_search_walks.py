"""Plans whose layers differ, beside those whose layers are alike: when they are looked for, among what, and what they gain;
and ranking costs no more than it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.plans import tiny_model

from foretrain import simulate
from foretrain.errors import InputError
from foretrain.plan.constraints import parse
from foretrain.plan.short_form import Words
from foretrain.planning import layerwise
from foretrain.planning.layer_trees import LayerwiseProblem
from foretrain.planning.layerwise import ASKED, UNASKED, can_help, with_walks
from foretrain.planning.planner import search
from foretrain.planning.task import Task
from foretrain.report.search import per_layer
from foretrain.searching import SearchResult
from foretrain.searching import search as find
from foretrain.testing.asking import ask

GPT_39B = {
    "family": "gpt", "hidden_size": 8192, "num_hidden_layers": 48, "num_attention_heads": 64,
    "vocab_size": 51200, "max_position_embeddings": 1024,
}  # fmt: skip
V100S = {"on": "8 x aws:p3.16xlarge", "batch": 1024, "seq": 1024, "precision": "fp16"}


def test_plans_are_ranked_without_an_analysis(monkeypatch):
    def refused(simulated: object) -> None:
        raise AssertionError("analysed")

    monkeypatch.setattr(simulate, "_prediction", refused)
    asked = ask(tiny_model("gpt"), on="1 x dgx-a100-80gb", batch=8)
    task = Task(asked.workload, asked.cluster, asked.runtime)
    found = search(task, where=["micro=1", "no offload"], top=3)
    times = [row.score.step_seconds for row in found.best]
    assert len(times) == 3
    assert times == sorted(times)
    with pytest.raises(AssertionError, match="analysed"):
        _ = found.best[0].prediction


# --- what layers may choose from --------------------------------------------------------------------

PROBLEM = LayerwiseProblem(2, 1, 2, 1)
ALL = ("none", "selective", "full")


def stack(*rules: str, per_layer: str = "all", is_hypothetical: bool = False) -> Task:
    """Eight devices and a stack with these rules."""
    asked = ask(tiny_model("gpt"), on="1 x dgx-a100-80gb", batch=32, runtime="generic")
    plans = {"rules": tuple((rule, "why") for rule in rules), "per_layer": per_layer}
    runtime = asked.runtime.with_features({"supported_plans": plans})
    return replace(Task.of(replace(asked, runtime=runtime)), is_hypothetical=is_hypothetical)


@pytest.mark.parametrize(
    ("rules", "pinned", "expected"),
    [
        ((), (), {"recomputes": ALL, "zeros": (1, 2, 3), "sp": True, "is_even": False}),
        ((), ("recompute=full|none",), {"recomputes": ("none", "full")}),
        (("recompute=none|selective",), (), {"recomputes": ("none", "selective")}),
        ((), ("pp=2, micro=2, zero=1",), {"zeros": (1,)}),
        ((), ("zero>=1",), {"zeros": (1, 2, 3)}),
        (("pp>1: zero<=1",), (), {"zeros": (1,)}),
        ((), ("no sp",), {"sp": False}),
        (("no sp",), (), {"sp": False}),
        (("layers=even",), (), {"is_even": True}),
        ((), ("layers=even",), {"is_even": True}),
        ((), ("tp<=2",), {"tps": (1, 2)}),
        ((), ("tp>1",), None),
        ((), ("schedule=1f1b, dp=4",), {"zeros": (1, 2, 3)}),
        ((), ("pp=4",), None),
        ((), ("micro=4",), None),
        ((), ("zero=0",), None),
        ((), ("cp=2",), None),
        ((), ("dp=2",), None),
        ((), ("schedule=gpipe",), None),
        (("pp=1",), (), None),
        (("recompute=none|full",), ("recompute=selective",), None),
    ],
)
def test_layers_choose_from_what_stack_and_user_allow(
    rules: tuple[str, ...], pinned: tuple[str, ...], expected: dict[str, Any] | None
) -> None:
    found = layerwise._allowed(stack(*rules), PROBLEM, parse(pinned))
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert {name: getattr(found, name) for name in expected} == expected


def test_a_stack_that_lets_recomputation_differ_has_it_by_whole_layers() -> None:
    words = Words(pp=2, dp=4, zero=1, schedule="1f1b", micro=2)
    problem = replace(PROBLEM, words=words)
    able = stack(per_layer="recompute")
    found = layerwise._allowed(able, problem, ())
    assert found is not None
    assert (found.recomputes, found.zeros) == (("none", "full"), (1,))
    assert layerwise._allowed(able, problem, parse(["recompute=full"])) is None
    free = layerwise._allowed(replace(able, is_hypothetical=True), problem, ())
    assert free is not None
    assert (free.recomputes, free.zeros) == (ALL, (1, 2, 3))


# --- when -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short() -> SearchResult:
    """A search in which memory is short: everything is recomputed."""
    return find(GPT_39B, **V100S, runtime="alpa", where="tp=4, pp=16", top=4, per_layer=False)


def test_layers_may_differ_where_memory_is_short(short: SearchResult) -> None:
    assert short.per_layer is None
    assert can_help(short.task, short)
    fixed = short.task.runtime.with_features({"supported_plans": {"per_layer": "none"}})
    assert not can_help(replace(short.task, runtime=fixed), short)
    assert can_help(replace(short.task, runtime=fixed, is_hypothetical=True), short)
    roomy = find("gpt2", on="1 x dgx-h100", batch=32, where="vpp=1, cp=1, no offload", top=2)
    assert not can_help(roomy.task, roomy)
    assert roomy.per_layer is None
    assert roomy.to_dict()["per_layer"] is None


def test_different_layers_gain_seven_per_cent_for_a_39b_model_on_v100s(short: SearchResult) -> None:
    """By what Alpa has: no sequence parallelism, layers recomputed as a whole. Found by a plain search, by one problem."""
    rows, outcome = with_walks(short.task, short, (), "time", 4, UNASKED)
    assert rows[0].score.fits
    assert rows[0].score.step_seconds < 0.93 * short.best[0].score.step_seconds
    assert rows[0].estimated_seconds == pytest.approx(rows[0].score.step_seconds, rel=0.02)
    assert outcome.gain == pytest.approx(
        1.0 - rows[0].score.step_seconds / short.best[0].score.step_seconds
    )
    assert outcome.gap == 0.0
    assert outcome.simulated <= UNASKED.simulated
    assert simulate.simulate_scenario(short.task.scenario(rows[0].plan)).step_seconds == rows[0].score.step_seconds  # fmt: skip
    assert "saves 7.5" in per_layer(outcome)
    assert "the fastest possible" in per_layer(outcome)
    assert short.best[0].plan.text in [row.plan.text for row in rows]


def test_a_search_finds_them_by_itself_and_can_be_told_not_to() -> None:
    asked: dict[str, Any] = {
        **V100S,
        "runtime": "megatron",
        "where": "tp=4, pp=16, vpp=1",
        "top": 3,
    }
    found = find(GPT_39B, **asked)
    plain = find(GPT_39B, **asked, per_layer=False)
    assert found.per_layer is not None
    assert not found.best[0].plan.text
    assert plain.best[0].plan.text
    assert found.best[0].score.step_seconds < 0.96 * plain.best[0].score.step_seconds
    assert not any("cannot run" in line for line in found.best[0].prediction.warnings)
    document = found.to_dict()["per_layer"]
    assert document["gain"] == found.per_layer.gain


def test_little_is_no_reason_for_a_tree(short: SearchResult) -> None:
    """Plans that save less than a hundredth are shown only to who asked for them."""
    picky = replace(UNASKED, least_gain=0.2)
    rows, outcome = with_walks(short.task, short, (), "time", 4, picky)
    assert [row.plan for row in rows] == [row.plan for row in short.best]
    assert (outcome.fitting, outcome.gain) == (0, None)
    assert per_layer(outcome).startswith("No plan whose layers differ is faster")
    assert ASKED.least_gain < 0.0 < UNASKED.least_gain


def test_a_stack_without_them_is_told() -> None:
    with pytest.raises(InputError, match="cannot run different strategies per layer"):
        find("gpt2", on="1 x dgx-h100", batch=32, runtime="nanotron", per_layer=True)
