"""The door to searching: what it adds to the planner, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from foretrain import predict, searching
from foretrain.errors import FileError, InputError
from foretrain.plan.short_form import parse
from foretrain.planning import more_nodes, planner, space
from foretrain.planning.executors import InOrder, Processes, RayExecutor
from foretrain.planning.explain import estimate
from foretrain.planning.task import Task
from foretrain.resolving import ask
from foretrain.searching import SearchResult, executor_of, search, spread

FEW = "vpp=1, cp=1, no offload, schedule=1f1b, zero<=1"
ASK = {"model": "gpt2", "on": "1 x dgx-a100-80gb", "batch": 32}
TOO_LARGE = {"model": "llama3-70b", "on": "1 x dgx-a100-80gb", "batch": 16}
TOO_FEW = "tp=8, vpp=1, cp=1, no offload, micro=1, schedule=1f1b"


@pytest.fixture(scope="module")
def found() -> SearchResult:
    return search(**ASK, where=FEW, top=4)


@pytest.fixture(scope="module")
def nothing() -> SearchResult:
    return search(**TOO_LARGE, where=TOO_FEW)


def plans(result: planner.RankedPlans) -> list[tuple[str, float]]:
    return [(row.plan.text, row.prediction.step_seconds) for row in result.best]


def test_names_are_resolved_as_predict_does(found: SearchResult) -> None:
    asked = ask("gpt2", on="1 x dgx-a100-80gb", batch=32, runtime="megatron")
    task = Task(asked.workload, asked.cluster, asked.runtime)
    assert plans(planner.search(task, where=[FEW], top=4)) == plans(found)
    best = found.best[0]
    again = predict(**ASK, plan=best.plan.text)
    assert again.step_seconds == best.prediction.step_seconds


def test_the_answer_is_the_same_every_time(found: SearchResult) -> None:
    again = search(**ASK, where=FEW, top=4)
    assert replace(again, seconds=0.0).to_dict() == replace(found, seconds=0.0).to_dict()


def test_the_micro_batch_is_pinned() -> None:
    result = search(**ASK, where=FEW, micro_batch=2, top=3)
    assert {parse(row.plan.text).micro for row in result.best} == {2}
    assert result.where == (FEW, "micro=2")


def test_options_reach_the_question(found: SearchResult) -> None:
    slower = search(**ASK, where=FEW, top=1, stragglers="0:2.0", precision="fp32", seq=512)
    assert slower.task.workload.seq_len == 512
    assert slower.task.workload.precision.name == "fp32"
    assert len(slower.task.cluster.devices) == 2  # the slow one is another device


def test_the_seed_draws_slow_devices() -> None:
    where = f"{FEW}, tp=1, pp=1, micro=4"
    drawn = [search(**ASK, where=where, top=1, stragglers="sigma=0.1", seed=n) for n in (1, 1, 2)]
    assert plans(drawn[0]) == plans(drawn[1]) != plans(drawn[2])
    own = search(**ASK, where=where, top=1, stragglers="sigma=0.1,seed=1", seed=2)
    assert plans(own) == plans(drawn[0])


def test_an_estimate_alone_is_that_of_the_survey(found: SearchResult) -> None:
    assert len(found.pareto) > 5
    for row in found.pareto[::4]:
        assert estimate(found.task, parse(row.plan)) == row


# --- the front --------------------------------------------------------------------------------------


def test_plans_of_a_front_trade_time_for_memory() -> None:
    result = search(**ASK, where=FEW, top=5, objective="pareto")
    assert result.objective == "pareto"
    assert 3 <= len(result.best) <= 5
    times = [row.prediction.step_seconds for row in result.best]
    sizes = [row.prediction.memory.peak_bytes for row in result.best]
    assert times == sorted(times)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)


def test_a_front_starts_with_the_fastest(found: SearchResult) -> None:
    front = search(**ASK, where=FEW, top=4, objective="pareto")
    assert plans(front)[0][1] == plans(found)[0][1]


@pytest.mark.parametrize(
    ("count", "kept"), [(1, [0]), (2, [0, 9]), (4, [0, 3, 6, 9]), (10, list(range(10))), (99, list(range(10)))]
)  # fmt: skip
def test_a_few_of_many_are_spread_with_both_ends(count: int, kept: list[int]) -> None:
    assert spread(list(range(10)), count) == kept


# --- different layers -------------------------------------------------------------------------------


TIGHT = {
    "model": "llama3-8b", "on": "1 x dgx-a100-40gb", "batch": 16, "top": 8, "hypothetical": True,
}  # fmt: skip
ONE_STAGE = "vpp=1, cp=1, no offload, pp=1, micro=1, tp<=2"


def test_different_layers_win_where_memory_is_tight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "SHARES", ())  # one recomputation for all layers
    uniform = search(**TIGHT, where=ONE_STAGE, per_layer=False)
    result = search(**TIGHT, where=ONE_STAGE, per_layer=True)
    best = result.best[0]
    assert not best.plan.text
    assert best.prediction.fits
    assert best.prediction.step_seconds < uniform.best[0].prediction.step_seconds
    assert best.estimated_seconds == pytest.approx(best.prediction.step_seconds, rel=0.15)
    assert {node.recompute or "none" for node in best.plan.root.children} == {"none", "full"}
    alike = [row for row in plans(result) if row[0]]
    assert alike == plans(uniform)[: len(alike)]
    told = result.explanations[0]
    assert (told.choice, told.value, told.plan) == ("layers", "alike", uniform.best[0].plan.text)
    assert "slower than per-layer strategies" in told.sentence


@pytest.mark.parametrize("where", ["recompute=selective|full", "no sp", "zero=1", "dp=8"])
def test_walks_keep_to_the_constraints(where: str) -> None:
    result = search(**TIGHT, where=[ONE_STAGE, where], per_layer=True)
    walks = [row.plan for row in result.best if not row.plan.text]
    assert walks
    for plan in walks:
        below = plan.root.children
        cuts = [cut for node in (plan.root, *below) for cut in node.split]
        split = {role for node in (plan.root, *below) for role, axes in node.state if axes}
        match where:
            case "no sp":
                assert not [cut for cut in cuts if "seq" in cut.dims]
            case "zero=1":
                assert split <= {"optimizer"}
            case "dp=8":
                assert plan.replicas == 8
            case _:
                assert {node.recompute for node in below} <= {"selective", "full"}
                assert sum(1 for node in below) > 1


# --- nothing fits -----------------------------------------------------------------------------------


def test_where_nothing_fits_the_nearest_is_told_and_more_nodes_do_it(nothing: SearchResult) -> None:
    assert not nothing.best
    assert nothing.nearest is not None
    assert nothing.nearest.lacks > 0
    larger = nothing.with_more_nodes
    assert larger is not None
    assert larger.nodes == larger.factor * nothing.task.cluster.node_count
    bigger = {**TOO_LARGE, "on": f"{larger.nodes} x dgx-a100-80gb"}
    assert predict(**bigger, plan=larger.best.plan).fits
    assert not search(**TOO_LARGE, where=TOO_FEW, top=1).best


def test_only_clusters_of_one_kind_are_grown(nothing: SearchResult) -> None:
    cluster = nothing.task.cluster
    grown = more_nodes.times(cluster, 4)
    assert grown is not None
    assert (grown.node_count, grown.device_count) == (4, 32)
    mixed = ask("gpt2", on="1 x dgx-a100-80gb + 1 x dgx-h100", batch=32).cluster
    assert more_nodes.times(mixed, 2) is None


def test_more_nodes_are_not_looked_for_where_plans_fit(found: SearchResult) -> None:
    assert found.with_more_nodes is None


# --- who does the work, and what is kept --------------------------------------------------------------


def test_who_does_the_work() -> None:
    assert isinstance(executor_of(None, None), InOrder)
    assert isinstance(executor_of(1, None), InOrder)
    assert isinstance(executor_of(2, None), Processes)
    assert isinstance(executor_of(None, "local"), RayExecutor)
    with pytest.raises(InputError):
        executor_of(0, None)


def test_a_search_goes_on_from_its_file(
    found: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "state.db"
    first = search(**ASK, where=FEW, top=4, state=file)
    assert plans(first) == plans(found)
    monkeypatch.setattr(planner, "survey", None)  # every part is known: none is looked at
    again = search(**ASK, where=FEW, top=4, state=file)
    assert plans(again) == plans(found)
    assert again.pareto == found.pareto


def test_a_file_of_another_search_is_left_alone_unless_told_so(tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    where = f"{FEW}, tp=1, pp=1"
    search(**ASK, where=where, top=1, state=file)
    with pytest.raises(FileError, match="another search"):
        search(**{**ASK, "batch": 64}, where=where, top=1, state=file)
    assert search(**{**ASK, "batch": 64}, where=where, top=1, state=file, restart=True).best


# --- bad questions ----------------------------------------------------------------------------------


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        search("gpt2", on="1 x dgx-a100-80gb", batch=0, objective="speed", top=0)
    assert len(caught.value.faults) == 3
    assert "Known: time, cost, memory, pareto" in str(caught.value)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("tpp<=8", "Did you mean"),
        ("tp>64", "leaves no value of tp"),
        ("tp=3", "cannot be split this way"),
        ("schedule=1f2b", "1f1b"),
    ],
)
def test_constraints_are_checked(where: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        search(**ASK, where=where)


def test_goals_are_those_of_the_planner_and_the_front() -> None:
    assert searching.GOALS == ("time", "cost", "memory", "pareto")
