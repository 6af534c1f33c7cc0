"""Which plans a search looks at, row by row in plain numbers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import tiny_model

from foretrain.plan.constraints import parse
from foretrain.plan.schedules import SCHEDULES
from foretrain.planning.choices import COLUMNS, Palette, joined
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
     (10, [4], [1, 3]), (7, [3], [1, 3]), (34, [2], [1, 17]), (64, [1, 4], [1, 2, 4, 8, 16])],
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
