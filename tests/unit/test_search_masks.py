"""Which plans a search looks at, row by row in plain numbers; and which walks through layers are worth a simulation."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import tiny_model

from foretrain.plan.constraints import parse
from foretrain.plan.schedules import SCHEDULES
from foretrain.planning import layerwise
from foretrain.planning.choices import COLUMNS, Palette, joined
from foretrain.planning.layerwise import _is_even, _seconds, _walk
from foretrain.planning.markov import LayerState, LayerwiseProblem
from foretrain.planning.space import Space, SpacePart, _chunks, _micros, space
from foretrain.planning.task import Task
from foretrain.testing.asking import ask

BATCH, SCHEDULE, SHARD, EXPERT, LAYERS = (
    "global batch not divisible by replicas x micro-batch",
    "{} schedule: {}",
    "replicas not divisible by the hybrid shard size",
    "ranks not divisible by the expert-parallel size",
    "fewer layers than pipeline stages",
)


def subsets(*values):
    return st.sets(st.sampled_from(values), min_size=1).map(sorted).map(tuple)


@st.composite
def spaces(draw):
    devices = draw(st.sampled_from((4, 6, 8, 12)))
    return Space(
        devices=devices,
        batch=draw(st.sampled_from((8, 12, 24))),
        layers=4,
        tp=draw(subsets(1, 2, 3, 4)),
        pp=draw(subsets(1, 2, 3, 4)),
        vpp=draw(subsets(1, 2)),
        cp=draw(subsets(1, 2)),
        ep=draw(subsets(1, 2, 4)),
        micro=draw(subsets(1, 2, 3)),
        zero=draw(subsets(0, 1, 3)),
        shard=draw(subsets(0, 2, 4)),
        sp=draw(st.sampled_from(((False,), (False, True)))),
        palette=Palette(
            schedule=draw(subsets("1f1b", "interleaved", "gpipe", "zb-v")),
            order=(None, ("tp", "cp", "pp", "dp"))[: draw(st.integers(1, 2))],
            buckets=(None, 1e6)[: draw(st.integers(1, 2))],
            tables=("replicated", "rows")[: draw(st.integers(1, 2))],
        ),
        constraints=parse(draw(st.sampled_from(([], ["dp>1"], ["dp<=4"])))),
        refused_parts=draw(st.sampled_from(({}, {(2, 2): "no"}, {(4, 1): "no"}))),
    )


def verdict(s: Space, row: dict[str, int]) -> str | None:
    """Why a plan is not looked at: "" if another spells the same; None if it is looked at."""
    replicas = row["dp"] * row["cp"]
    if replicas == 1 and (row["zero"] or row["shard"] or row["buckets"]):
        return ""
    if row["shard"] and (row["zero"] == 0 or row["shard"] >= replicas):
        return ""
    if row["order"] and (row["pp"] == 1 or row["dp"] == 1):
        return ""
    if row["tables"] and row["dp"] == 1:
        return ""
    for constraint in s.constraints:
        if not constraint.allows(row["dp"]):
            return constraint.text
    if s.batch % (row["dp"] * row["micro"]):
        return BATCH
    name, count = s.palette.schedule[row["schedule"]], s.batch // (row["dp"] * row["micro"])
    if row["pp"] > 1 and not SCHEDULES[name].fits(row["pp"], count):
        return SCHEDULE.format(name, SCHEDULES[name].needs)
    if row["shard"] and replicas % row["shard"]:
        return SHARD
    if replicas * row["tp"] // row["etp"] % row["ep"]:
        return EXPERT
    return s.refused_parts.get((row["pp"], row["vpp"]))


def inside_experts(part: SpacePart, dp: int) -> list[int]:
    """As elsewhere or none, where the ranks left to hold experts divide; the latter where neither does."""
    if part.ep == 1:
        return [part.tp]
    able = [
        etp for etp in dict.fromkeys((part.tp, 1))
        if dp * part.cp * part.tp // etp % part.ep == 0 and part.ep % (part.tp // etp) == 0
    ]  # fmt: skip
    meant = part.tp if dp * part.cp % part.ep == 0 else 1
    return [meant, *(etp for etp in able if etp != meant)]


def all_rows(s: Space, part: SpacePart):
    for pp, vpp in product(s.pp, s.vpp):
        if s.devices % (part.tp * part.cp * pp) or (vpp > 1 and pp == 1):
            continue
        names = s.palette.schedule
        able = [i for i, name in enumerate(names) if vpp in SCHEDULES[name].chunks]
        options = {
            "tp": [part.tp], "pp": [pp], "vpp": [vpp], "dp": [s.devices // (part.tp * part.cp * pp)],
            "cp": [part.cp], "ep": [part.ep], "micro": s.micro, "zero": s.zero, "shard": s.shard,
            "sp": [int(sp) for sp in s.sp] if part.tp > 1 else [0], "recompute": [0],
            "schedule": able if pp > 1 else [0], "order": range(len(s.palette.order)), "offload": [0],
            "buckets": range(len(s.palette.buckets)), "exchange": [0], "tables": range(len(s.palette.tables)),
            "etp": inside_experts(part, s.devices // (part.tp * part.cp * pp)), "layers": [0],
        }  # fmt: skip
        for values in product(*(options[name] for name in COLUMNS)):
            yield dict(zip(COLUMNS, values, strict=True))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(spaces())
def test_masks_over_columns_say_what_is_said_of_every_row(s):
    for part in s.parts():
        assert s.devices % (part.tp * part.cp) == 0
        assert s.devices // part.cp % part.ep == 0
        found, pruned = s.choices(part)
        left, lost = [], {}
        for row in all_rows(s, part):
            why = verdict(s, row)
            if why is None:
                left.append(tuple(row[name] for name in COLUMNS))
            elif why:
                lost[why] = lost.get(why, 0) + 1
        listed = np.stack([getattr(found, name) for name in COLUMNS], axis=1).tolist()
        assert sorted(map(tuple, listed)) == sorted(left)
        assert pruned == lost
    split = {(p.tp, p.cp, p.ep) for p in s.parts()}
    for tp, cp, ep in product(s.tp, s.cp, s.ep):
        is_whole = s.devices % (tp * cp) == 0 and s.devices // cp % ep == 0
        assert ((tp, cp, ep) in split) == is_whole


def test_a_part_without_plans_has_none_under_a_constraint_on_replicas_either():
    """With tp8 on eight devices there are no stages, and therefore no chunks."""
    where = ("vpp=2", "dp>1", "no cp", "no offload", "micro=1")
    plans = space(Task.of(ask(tiny_model("gpt"), on="1 x dgx-a100-80gb", batch=16)), where)
    found, pruned = plans.choices(SpacePart(8, 1, 1))
    assert (len(found), pruned) == (0, {})
    assert len(plans.choices(SpacePart(1, 1, 1))[0]) > 0


@pytest.mark.parametrize(
    ("batch", "micros"),
    [(64, [1, 2, 4, 8, 16, 32, 64]), (256, [1, 2, 4, 8, 16, 32, 64]), (24, [1, 2, 4, 8]),
     (12, [1, 2, 3, 4, 6, 12]), (7, [1, 7]), (65, [1, 5, 13]), (130, [1, 2, 5, 10, 13, 26])],
)  # fmt: skip
def test_micro_batches_are_powers_of_two_where_a_batch_has_four_of_them(batch, micros):
    assert _micros(batch) == micros


@pytest.mark.parametrize(
    ("layers", "stages", "chunks"),
    [(8, [1, 2, 4], [1, 2, 4]), (8, [1], [1]), (32, [2], [1, 2, 4, 8, 16]), (64, [2], [1, 2, 4, 8, 16]),
     (10, [4], [1, 3]), (7, [3], [1, 3]), (34, [2], [1]), (64, [1, 4], [1, 2, 4, 8, 16])],
)  # fmt: skip
def test_chunks_share_layers_evenly_with_embedding_and_head_as_a_layer_each(layers, stages, chunks):
    assert _chunks(layers, stages) == chunks


def test_what_a_cluster_and_a_model_leave_to_choose():
    def found(model: object, on: str, **words: int) -> Space:
        return space(Task.of(ask(model, on=on, batch=16, runtime="generic", **words)))

    dense, sparse = {"zoo": "llama3-8b", "num_hidden_layers": 4}, tiny_model("moe")
    node, two = (
        found(dense, "1 x dgx-a100-80gb", seq=64),
        found(dense, "2 x dgx-a100-80gb", seq=4096),
    )
    assert (node.tp, two.tp) == ((1, 2, 4, 8),) * 2  # inside a node
    assert (node.pp, two.pp) == ((1, 2, 4),) * 2  # four layers
    assert (node.shard, two.shard) == ((0,), (0, 8))
    assert (node.cp, two.cp) == ((1,), (1, 2, 4, 8))  # slices of 512 tokens
    assert (len(node.palette.order), len(two.palette.order)) == (1, 2)
    assert (node.ep, found(sparse, "1 x dgx-a100-80gb").ep) == ((1,), (1, 2, 4, 8))
    assert found(sparse, "1 x gcp:a2-highgpu-4g").ep == (1, 2, 4)
    images = found(tiny_model("cnn"), "1 x dgx-a100-80gb")
    assert (images.tp, images.sp, images.cp) == ((1,), (False,), (1,))
    assert images.palette.recompute == ("none", "full")
    searched = tuple(name for name, kind in SCHEDULES.items() if kind.is_searched)
    assert node.palette.schedule == searched
    assert node.palette.tables == ("replicated",)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(spaces())
def test_tables_of_plans_are_joined_and_taken_apart_row_by_row(s):
    tables = [s.choices(part)[0] for part in s.parts()]
    whole = joined(tables, s.palette)
    assert len(whole) == sum(map(len, tables))
    texts = [table.text(row) for table in tables for row in range(len(table))]
    assert [whole.text(row) for row in range(len(whole))] == texts
    some = np.arange(0, len(whole), 3)
    assert [whole.take(some).text(i) for i in range(len(some))] == texts[::3]
    for row in range(0, len(whole), 7):
        words = whole.words(row)
        assert (words.schedule is None) == (words.pp == 1)
        assert words.tp * words.pp * words.dp * words.cp == s.devices
        state = whole.state(row)
        order = s.palette.order[whole.order[row]]
        inside = (
            order is not None and words.ep > 1
        )  # dp is outside of pp there, and tp and cp are not
        assert state.pp == (words.pp if inside else 1)
    assert len(joined([], s.palette)) == 0


# --- walks ------------------------------------------------------------------------------------------------

PROBLEM = LayerwiseProblem(2, 1, 4, 1)


def walked(choices, layers=None, replicas=4, micro=2, slowest=0.5):
    schedule = SimpleNamespace(layers=layers, micro_batch=micro)
    plan = SimpleNamespace(schedule=schedule, replicas=replicas)
    return SimpleNamespace(plan=plan, choices=choices, slowest=slowest)


def test_a_walk_takes_its_slowest_stage_for_every_micro_batch_and_to_fill_and_drain():
    task = SimpleNamespace(workload=SimpleNamespace(global_batch=64))
    for replicas, micro, stages in ((4, 2, 2), (1, 1, 4), (8, 8, 1)):
        found = _seconds(task, walked([], None, replicas, micro), LayerwiseProblem(stages, 1, 1, 0))
        assert found == 0.5 * (64 / replicas / micro + stages - 1)


@pytest.mark.parametrize(
    ("layers", "is_even"),
    [(None, True), ((4, 4), True), ((4, 5, 4), True), ((4, 6), False), ((3, 5, 4), False)],
)
def test_stages_are_even_where_they_differ_by_a_layer_at_most(layers, is_even):
    assert _is_even(walked([], layers)) == is_even


ANY = SimpleNamespace(is_hypothetical=True, rules=())
"""A question that leaves plans to no stack."""


@pytest.mark.parametrize(
    ("pinned", "asked"),
    [
        ([], ("none", "selective", "full")),
        (["recompute=full|none"], ("none", "full")),
        (["recompute=no-such"], None),
        (["pp=2"], ("none", "selective", "full")),
        (["pp=4"], None),
        (["micro=4, zero=1"], ("none", "selective", "full")),
        (["micro=2"], None),
        (["zero=0"], None),
        (["cp=2"], None),
        (["no sp"], None),
        (["schedule=gpipe"], None),
        (["schedule=1f1b"], ("none", "selective", "full")),
    ],
)
def test_walks_heed_what_the_user_pins(monkeypatch, pinned, asked):
    """`asked`: the recomputations that a walk may choose from; None where none is made."""
    mixed, tried = walked([LayerState(1, "none"), LayerState(2, "none")]), []

    def walks(task, problem):
        tried.append(problem.recomputes)
        return mixed

    monkeypatch.setattr(layerwise, "best_walk", walks)
    words = [w for w in pinned if "no-such" not in w]
    constraints = parse(words) if words == pinned else [SimpleNamespace(name="recompute", allows=lambda _: False)]  # fmt: skip
    found = _walk(ANY, PROBLEM, constraints)
    assert (found is mixed) == (asked is not None)
    assert tried == ([] if asked is None else [asked])


@pytest.mark.parametrize(
    ("choices", "layers", "pinned", "is_new"),
    [
        ((1, 2), None, [], True),
        ((2, 2), None, [], False),  # uniform
        ((2, 2), (5, 4), [], False),
        ((2, 2), (6, 4), [], True),
        ((1, 2), None, ["tp<=2"], True),
        ((1, 2), None, ["tp=1"], False),
        ((1, 2), None, ["tp>1"], False),
        ((1, 2), None, ["dp=4"], True),
        ((1, 2), None, ["dp=2"], False),
    ],
)
def test_walks_are_new_plans_within_their_constraints(monkeypatch, choices, layers, pinned, is_new):
    walk = walked([LayerState(tp, "none") for tp in choices], layers)
    monkeypatch.setattr(layerwise, "best_walk", lambda task, problem: walk)
    assert (_walk(ANY, PROBLEM, parse(pinned)) is walk) == is_new


def test_no_walk_is_no_plan(monkeypatch):
    monkeypatch.setattr(layerwise, "best_walk", lambda task, problem: None)
    assert _walk(ANY, PROBLEM, []) is None


def ranked(plan, simulated, estimate):
    score = SimpleNamespace(rank=lambda objective: simulated.seconds[objective])
    return SimpleNamespace(plan=plan, simulation=simulated, estimated_seconds=estimate, score=score)


def test_walks_are_ranked_beside_the_plans_whose_ground_they_stand_on(monkeypatch):
    """A walk that does not fit, one that another problem has and one that is known already are left out."""

    def named(text, time, cost, fits=True):
        memory = SimpleNamespace(fits=fits)
        simulated = SimpleNamespace(seconds={"time": time, "cost": cost}, memory=memory)
        schedule = SimpleNamespace(layers=None, micro_batch=2)
        return SimpleNamespace(text=text, replicas=4, schedule=schedule, simulated=simulated)

    plans = [named("a", 3.0, 1.0), named("b", 4.0, 2.0)]
    walks = {
        1: named("fast", 2.0, 9.0),
        2: named("large", 1.0, 1.0, fits=False),
        3: named("a", 0.5, 0.5),
        4: None,
        5: named("higher", 0.1, 0.1),
    }
    posed = tuple(LayerwiseProblem(2, 1, micro, 1) for micro in walks)

    def walk_of(task, problem, pinned):
        plan = walks[problem.micro]
        tps = (2, 4) if problem.micro == 5 else (1, 2)  # all more parallel than the problem
        choices = [LayerState(tp, "none") for tp in tps]
        return plan and SimpleNamespace(plan=plan, choices=choices, slowest=0.5)

    above = LayerwiseProblem(2, 2, 10, 1)
    monkeypatch.setattr(layerwise, "problems", lambda task, rows: (*posed, above))
    monkeypatch.setattr(layerwise, "_walk", lambda task, g, pinned: None if g == above else walk_of(task, g, pinned))  # fmt: skip
    monkeypatch.setattr(layerwise, "described", lambda plan: plan.text)
    monkeypatch.setattr(layerwise, "simulate_scenario", lambda plan: plan.simulated)
    monkeypatch.setattr(layerwise, "Ranked", ranked)
    task = SimpleNamespace(
        scenario=lambda plan: plan, devices=64, workload=SimpleNamespace(global_batch=64)
    )
    rows = [ranked(plan, plan.simulated, 1.0) for plan in plans]
    told = []
    asked = (task, rows, [])
    found = layerwise.with_walks(*asked, "time", 3, lambda done, of: told.append((done, of)))
    assert [row.plan.text for row in found] == ["fast", "a", "b"]
    assert found[0].estimated_seconds == 0.5 * (64 / 2 / 4 + 2 - 1)
    assert told == [(n, 6) for n in range(1, 7)]
    assert [r.plan.text for r in layerwise.with_walks(*asked, "cost", 2)] == ["a", "b"]
