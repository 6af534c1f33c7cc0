"""Plans as columns: what a row says is what its words say, and tables are cut and joined without losing any."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from estimated_plan import choices
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import tiny_model

from foretrain import resolving
from foretrain.model.graph import Model
from foretrain.plan.short_form import Words, parse
from foretrain.planning.choices import COLUMNS, Choices, joined, lone
from foretrain.planning.estimator import Estimator, _placed, alike, row_keys
from foretrain.planning.layers import State, grown, layers, places
from foretrain.planning.layers import _alike as alike_rows
from foretrain.planning.space import space
from foretrain.planning.task import Task
from foretrain.runtime import runtime
from foretrain.testing.asking import ask


def task_of(model: str = "gpt", **words: object) -> Task:
    return Task.of(ask(tiny_model(model), on="1 x dgx-a100-80gb", plan="dp8", batch=64, **words))


def said() -> st.SearchStrategy[Words]:
    """Words of a plan for eight devices, drawn by one number."""
    return st.integers(0, 2**31).map(_words)


def _words(seed: int) -> Words:
    draw = Random(seed).choice
    pp, tp = draw((1, 2, 4)), draw((1, 2))
    return Words(
        tp=tp,
        pp=pp,
        dp=8 // (pp * tp),
        zero=draw(range(4)),
        sp=draw((False, True)) and tp > 1,
        micro=draw((1, 2, 4)),
        recompute=draw(("none", "full")),
        schedule=draw(("1f1b", "gpipe", "zb-h1")) if pp > 1 else None,
        offload=draw(((), ("optimizer",))),
        buckets=draw((None, 4e6)),
        order=draw((None, ("pp", "tp", "cp", "dp"))),
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(said(), min_size=1, max_size=6))
def test_a_row_says_what_its_words_said(words):
    table = choices(task_of(), *words)
    assert [table.words(row) for row in range(len(words))] == words
    backwards = table.take(np.arange(len(words))[::-1])
    assert [backwards.words(row) for row in range(len(words))] == words[::-1]
    assert [lone(one).words(0) for one in words] == words
    twice = joined([table, table], table.palette)
    assert [twice.words(row) for row in range(len(twice))] == words * 2
    assert [twice.take(twice.zero == 1).words(n).zero for n in range(int((twice.zero == 1).sum()))] == [1] * int((twice.zero == 1).sum())  # fmt: skip


def test_tables_without_a_row_can_be_joined():
    table = choices(task_of(), parse("dp8"))
    empty = joined([], table.palette)
    assert len(empty) == 0
    assert all(len(getattr(empty, name)) == 0 for name in COLUMNS)


@settings(max_examples=60, deadline=None)
@given(st.lists(said(), min_size=1, max_size=6), st.lists(st.sampled_from(("tp", "pp", "zero", "micro", "order")), min_size=1, max_size=3, unique=True))  # fmt: skip
def test_keys_are_equal_where_all_named_columns_are(words, names):
    table = choices(task_of(), *words)
    keys = row_keys(table, names).tolist()
    values = [tuple(int(getattr(table, name)[row]) for name in names) for row in range(len(words))]
    for one, value in enumerate(values):
        assert [keys[one] == key for key in keys] == [value == other for other in values]


@settings(max_examples=40, deadline=None)
@given(st.lists(said(), min_size=1, max_size=8))
def test_rows_of_one_mesh_are_put_together_once_each(words):
    table = choices(task_of(), *words)
    parts = [part.tolist() for part in alike(table, np.arange(len(words)))]
    assert sorted(row for part in parts for row in part) == list(range(len(words)))
    meshes = [{(words[row].tp, words[row].pp, words[row].order) for row in part} for part in parts]
    assert all(len(mesh) == 1 for mesh in meshes)
    assert len({next(iter(mesh)) for mesh in meshes}) == len(parts)


@pytest.mark.parametrize(
    ("text", "etp"),
    [("tp2 dp4 ep2", 2), ("tp2 dp4 ep4", 2), ("tp2 dp4 ep8", 1), ("tp4 dp2 ep4", 1), ("tp2 dp4", None)],
)  # fmt: skip
def test_experts_are_tensor_parallel_where_replicas_divide(text, etp):
    """Eight experts over four replicas take the tensor-parallel ranks too, and are not cut themselves."""
    assert lone(parse(text)).state(0).etp == etp


@pytest.mark.parametrize("stack", ["axolotl", "nanotron"])
def test_plans_without_context_parallelism_do_not_say_how_it_exchanges(stack: str) -> None:
    """A word without effect, which a prediction of the plan would warn of."""
    task = Task.of(resolving.ask("gpt2", on="1 x dgx-a100-80gb", batch=64, runtime=stack))
    assert task.defaults.exchange == "ring"
    plans = space(task)
    found, _ = plans.choices(next(part for part in plans.parts() if part.cp == 1))
    assert "cp=" not in " ".join(map(found.text, range(len(found))))


@pytest.mark.parametrize(
    ("text", "pp"),
    [
        ("tp2 pp2 dp2", 1),  # the runtime's order: stages are outermost
        ("tp2 pp2 dp2 order=tp-cp-dp-pp", 1),
        (
            "tp2 pp2 dp2 order=pp-tp-cp-dp",
            2,
        ),  # stages lie between the ranks of a tensor-parallel group
        ("pp2 dp4 order=pp-tp-cp-dp", 1),  # no group of blocks
        ("pp2 dp4 ep2 order=tp-cp-pp-dp", 2),  # … but experts
        ("cp2 pp2 dp2 order=tp-pp-cp-dp", 2),
        ("tp2 dp4 order=pp-tp-cp-dp", 1),
    ],
)
def test_stages_matter_to_blocks_where_they_lie_between_ranks_of_a_group(text, pp):
    assert lone(parse(text)).state(0).pp == pp


@pytest.mark.parametrize("model", ["gpt", "moe", "cnn"])
def test_blocks_that_repeat_have_a_first_and_others(model):
    built: Model = tiny_model(model)
    expected = []
    for number, block in enumerate(built.blocks):
        expected += [(number, 0)] + ([(number, 1)] if block.repeat > 1 else [])
    assert places(built, ("none", "full"), runtime("megatron")).examples == expected


@pytest.mark.parametrize(
    ("stack", "words", "rows"),
    [
        ("megatron", ("none", "selective"), (0, 1, 1, 1, 1, 1)),
        ("megatron", ("none", "full*0.5"), (0, 1, 2, 1, 2, 1)),
        ("fms-fsdp", ("none", "selective"), (0, 1, 2, 1, 2, 1)),
        ("megatron", ("full*0.5", "full@1,2"), (0, 1, 2, 3, 4, 3)),
    ],
)
def test_repetitions_share_a_row_where_every_choice_means_the_same_for_them(stack, words, rows):
    (block, *_) = tiny_model("gpt").blocks
    model = Model("six", (replace(block, repeat=6),), 16)
    assert places(model, words, runtime(stack)).rows == (rows,)


def test_equal_rows_have_equal_numbers():
    one = np.array([[1.0, 2.0], [1.0, 2.0], [3.0, 2.0], [1.0, 2.0]])
    other = np.array([[[0.0]], [[0.0]], [[0.0]], [[5.0]]])
    assert alike_rows(one, other).tolist() == [0, 0, 1, 2]
    assert alike_rows(one[:0], other[:0]).tolist() == []


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_larger_micro_batches_hold_what_a_line_through_two_smaller_ones_says(recompute):
    """Activations are linear in the samples; what was not compiled is not timed until it is filled in."""
    task = task_of()
    plain = State(1, 1, 1, None, False, 1, recompute, "all-gather", "replicated", None, 1)
    states = [plain._replace(micro=micro) for micro in (1, 2, 4, 8)]
    where = places(task.workload.model, (recompute,), task.runtime)
    two = layers(task, states[:2], where)
    found, every = grown(two, dict.fromkeys(states, states[:2])), layers(task, states, where)
    assert found.is_timed.tolist() == [True, True, False, False]
    for name in ("saved", "forward_workspace", "boundary", "elements", "touched"):
        assert getattr(found, name) == pytest.approx(getattr(every, name), rel=1e-6)
    assert found.weights.tolist() == every.weights.tolist()
    assert not np.allclose(found.forward[2:], every.forward[2:])
    changed = found.fill(layers(task, states[2:], where))
    assert changed == (not np.allclose(two.saved[1] * 2, every.saved[2], rtol=1e-9))
    assert found.is_timed.all()
    assert np.array_equal(found.forward, every.forward)


def test_states_of_one_family_are_compiled_twice_at_most(monkeypatch):
    """Of micro-batches 1, 2, 4, 8 the first two; the others once they are known to fit."""
    from foretrain.planning import estimator as module

    asked_for: list[int] = []

    def counted(task, states, where, shared):
        rows = list(states)
        asked_for.extend(state.micro for state in rows)
        return layers(task, rows, where, shared)

    monkeypatch.setattr(module, "layers", counted)
    task = task_of()
    table = choices(task, *(replace(parse("dp8"), micro=micro) for micro in (1, 2, 4, 8)))
    rows, known = Estimator(task).states(table)
    assert sorted(asked_for) == [1, 2]
    assert rows.tolist() == [known.number[table.state(row)] for row in range(4)]
    Estimator(task).estimate(table)
    assert sorted(asked_for) == [1, 1, 2, 2, 4, 8]


def test_orders_that_move_stages_alone_share_a_state():
    task = task_of()
    usual = tuple(reversed(task.runtime.plan.rank_order))
    inner = tuple(axis for axis in usual if axis != "pp")
    table = choices(
        task,
        *(replace(parse("tp2 dp4"), order=order, micro=1) for order in (None, (*inner, "pp"), ("pp", *inner), inner[::-1])),
    )  # fmt: skip
    rows, known = Estimator(task).states(table)
    assert rows[0] == rows[1] == rows[2] != rows[3]
    assert len(known.number) == 2


def test_a_table_of_choices_is_one_array():
    table = choices(task_of(), parse("dp8 zero1"), parse("tp2 dp4"))
    again = Choices(table.palette, *(getattr(table, name) for name in COLUMNS))
    assert again.table is None
    assert [again.take(np.array([1])).words(0)] == [table.words(1)]


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        ("pp4 dp2 1f1b", "pp4 dp2 gpipe", True),
        ("pp4 dp2 1f1b", "pp4 dp2 zb-h1", True),
        ("pp2 vpp2 dp4 zb-v", "pp2 vpp2 dp4 dualpipev", True),
        ("pp2 vpp2 dp4 zb-v", "pp2 vpp2 dp4 interleaved", False),
    ],
)
def test_schedules_that_place_layers_alike_are_estimated_together(one, other, are_alike):
    """A second chunk lies on the stages in turn once more, or in a V the other way round."""
    asked = Task.of(ask(tiny_model("gpt"), on="1 x dgx-a100-80gb", batch=64, runtime="generic"))
    table = choices(asked, asked.words(one), asked.words(other))
    first, second = _placed(table).tolist()
    assert (first == second) == are_alike
    assert len(list(alike(table, np.arange(2)))) == (1 if are_alike else 2)


def test_plans_that_fit_are_timed_and_others_where_all_are_asked_for():
    """A refused plan has no memory, and no limit to it."""
    columns = {"memory": np.array([1.0, 2.0, 3.0, np.inf]), "usable": np.array([2.0, 2.0, 2.0, np.inf])}  # fmt: skip
    fitting, every = (Estimator._wanted(SimpleNamespace(only_fitting=only), columns) for only in (True, False))  # fmt: skip
    assert fitting.tolist() == [True, True, False, False]
    assert every.all()
