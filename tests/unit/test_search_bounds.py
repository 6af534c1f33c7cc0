"""What a search leaves out changes nothing in what it tells: programs that follow from others, plans that cannot win."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import tiny_model

from foretrain.compile.passes.scale import Bent, Line
from foretrain.planning import estimator as module
from foretrain.planning.choices import joined
from foretrain.planning.estimator import Estimator
from foretrain.planning.incumbents import Incumbents, least_seconds
from foretrain.planning.layers import SharedBlocks, State, layers, places
from foretrain.planning.partial_result import TOLD, incumbents_of, merged, survey
from foretrain.planning.space import space
from foretrain.planning.task import Task
from foretrain.testing.asking import ask
from tests.gate.questions import FAMILIES

EXPERTS = FAMILIES["experts"]
ONE = State(1, 1, 1, None, False, 1, "none", "all-gather", "replicated", None, 1)


def task_of(model: object, on: str = "2 x dgx-h100", **words: object) -> Task:
    return Task.of(
        ask(model, on=on, plan="dp16" if on.startswith("2") else "dp8", batch=64, **words)
    )


@pytest.mark.parametrize(
    ("model", "state"),
    [
        ("gpt", ONE),
        ("gpt", ONE._replace(tp=2, sp=True, recompute="full")),
        (EXPERTS, ONE._replace(ep=4, etp=1)),
        (EXPERTS, ONE._replace(tp=2, sp=True, cp=2, ep=2, etp=2, recompute="selective")),
        (FAMILIES["cnn"], ONE),
        (FAMILIES["recommender"], ONE),
    ],
)
def test_programs_on_a_line_are_those_that_are_compiled(model, state):
    task = task_of(tiny_model(model) if model == "gpt" else model)
    where = places(task.workload.model, (state.recompute,), task.runtime)
    states = [state._replace(micro=micro) for micro in (1, 2, 4)]
    alone = [layers(task, [one], where) for one in states]
    together = layers(task, states, where, SharedBlocks(task))
    for row, one in enumerate(alone):
        for name in ("forward", "backward", "weight", "saved", "backward_workspace", "elements", "lead", "wire_forward"):  # fmt: skip
            assert getattr(together, name)[row] == pytest.approx(getattr(one, name)[0], rel=1e-12)


def test_sizes_that_do_not_grow_with_the_batch_are_on_no_line():
    line = Line(1, 2, 8, 1)
    assert line._size(3.0, 6.0) == 24.0
    assert line._dim(5, 5) == 5
    assert line._sum(1.0 + 3.0, 1.0 + 6.0) == 1.0 + 24.0
    for bent in (lambda: line._size(3.0, 5.0), lambda: line._dim(3, 5), lambda: Line(1, 2, 8, 8)._dim(4, 8)):  # fmt: skip
        with pytest.raises(Bent):
            bent()


ORDERS = [ONE._replace(ep=4, etp=1, order=order, pp=pp) for order, pp in ((None, 1), (("tp", "cp", "pp", "dp"), 2), (("dp", "tp", "cp", "pp"), 1), (("tp", "cp", "pp", "dp"), 4))]  # fmt: skip


def test_states_that_differ_in_where_ranks_lie_are_told_apart_by_what_links_take():
    task = task_of(EXPERTS)
    where = places(task.workload.model, ("none",), task.runtime)
    alone = [layers(task, [one], where) for one in ORDERS]
    together = layers(task, ORDERS, where, SharedBlocks(task))
    for row, one in enumerate(alone):
        for name in ("forward", "backward", "saved", "elements", "gathered", "trained", "wire_forward"):  # fmt: skip
            assert getattr(together, name)[row] == pytest.approx(getattr(one, name)[0], rel=1e-12)
    assert alone[0].forward.sum() != alone[3].forward.sum()


@pytest.mark.parametrize(
    ("model", "runtime"),
    [("gpt", "megatron"), (EXPERTS, "megatron"), ("gpt", "torchtitan"), ("gpt", "deepspeed")],
)
def test_no_plan_is_faster_than_its_bound(model, runtime, monkeypatch):
    task = task_of(tiny_model(model) if model == "gpt" else model, runtime=runtime)
    plans = space(task)
    parts = plans.parts()
    tables = [plans.choices(part)[0] for part in parts[:: 3 if len(parts) > 9 else 1]]
    table = joined([one for one in tables if len(one)], plans.palette)
    rows = np.random.default_rng(7).permutation(len(table))[:1500]
    found: list[tuple[np.ndarray, np.ndarray]] = []

    def timed(mine, ships, columns):
        for name, values in module.Times(ships).columns().items():
            columns[name][mine] = values
        found.append((least_seconds(ships), columns["seconds"][mine]))

    monkeypatch.setattr(Estimator, "_timed", staticmethod(timed))
    Estimator(task, only_fitting=False).estimate(table.take(rows))
    assert sum(len(bound) for bound, _ in found) > 100
    for bound, seconds in found:
        assert (bound <= seconds).all()
    assert np.max(np.concatenate([bound / seconds for bound, seconds in found])) > 0.3


@pytest.mark.parametrize("model", ["gpt", EXPERTS])
def test_plans_that_are_not_timed_would_not_have_been_told_of(model):
    """Surveys that know of one another's best against those that time all."""
    task = task_of(tiny_model(model) if model == "gpt" else model)
    plans = space(task, ("layers=even", "tp<=2", "cp=1"))

    class All(Estimator):
        def estimate(self, choices, incumbents=None):
            return super().estimate(choices)

    parts = plans.parts()
    every = merged([survey(task, plans, one, "time", 6, All(task)) for one in parts], "time", 6)
    whole = merged([], "time", 6)
    for part in parts:
        known = incumbents_of(whole, 6)
        whole = merged([whole, survey(task, plans, part, "time", 6, incumbents=known)], "time", 6)
    assert whole == every


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31))
def test_those_that_are_not_wanted_beat_nothing(seed):
    """Of any plans in any order, the best few, the best of every value and the front are as if all were timed."""
    draw = np.random.default_rng(seed)
    task = task_of(tiny_model("gpt"), on="1 x dgx-h100")
    table = _table(task)
    rows = draw.permutation(len(table))[:40]
    seconds, memory = draw.integers(1, 12, 40).astype(float), draw.integers(1, 9, 40).astype(float)
    least = seconds * draw.choice([0.5, 0.9, 1.0], 40)
    best, timed = Incumbents(TOLD, 3), np.zeros(40, dtype=bool)
    for few in np.array_split(np.arange(40), 8):
        some = few[best.wanted(table.take(rows[few]), least[few], memory[few])]
        timed[some] = True
        best.add(table.take(rows[some]), seconds[some], memory[some])
    assert sorted(seconds)[:3] == best.best.tolist()
    assert seconds.min() == seconds[timed].min()
    for row in range(40):
        assert seconds[timed & (memory <= memory[row])].min() <= seconds[row]
    for name in TOLD:
        column = getattr(table, name)[rows]
        for value in np.unique(column):
            mine = column == value
            assert seconds[mine].min() == seconds[mine & timed].min()


_TABLES = {}


def _table(task: Task):
    if not _TABLES:
        plans = space(task)
        _TABLES[0] = joined([plans.choices(part)[0] for part in plans.parts()], plans.palette)
    return _TABLES[0]
