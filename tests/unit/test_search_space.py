"""The space of plans by brute force, constraints by their tables, and surveys by looking at every plan."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from support.plans import tiny_model

from foretrain.cluster.cluster import Cluster
from foretrain.errors import PlanError
from foretrain.plan.constraints import kept, parse
from foretrain.planning.estimator import Estimates, Estimator
from foretrain.planning.more_nodes import larger, times
from foretrain.planning.partial_result import (
    REFUSED,
    TOO_LARGE,
    BestPerChoice,
    EstimatedPlan,
    merged,
    survey,
)
from foretrain.planning.space import Space, SpacePart, space
from foretrain.planning.task import Task
from foretrain.testing.asking import ask

PLAIN = ("no offload", "no recompute", "schedule=1f1b")


def task(model: str = "llama", batch: int = 8, on: str = "1 x dgx-a100-80gb") -> Task:
    return Task.of(ask(tiny_model(model), on=on, batch=batch, runtime="generic"))


def rows(plans: Space) -> set[tuple[int, ...]]:
    names = ("tp", "pp", "vpp", "dp", "cp", "ep", "micro", "zero", "shard", "sp", "etp")
    tables = [plans.choices(part)[0] for part in plans.parts()]
    listed = [tuple(int(getattr(t, n)[i]) for n in names) for t in tables for i in range(len(t))]
    assert len(set(listed)) == len(listed)  # no plan twice
    return set(listed)


def test_all_plans_of_eight_devices_and_no_others():
    """Four layers, eight heads, a batch of eight; sequence parallelism where tp splits, ZeRO where there are replicas."""
    found = rows(space(task(), (*PLAIN, "no vpp", "no cp")))
    expected = set()
    for tp, pp, micro, zero, sp in product((1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8), range(4), (0, 1)):
        dp = 8 // (tp * pp)
        if tp * pp * dp != 8 or 8 % (dp * micro):
            continue
        if (zero and dp == 1) or (sp and tp == 1):
            continue
        expected.add((tp, pp, 1, dp, 1, 1, micro, zero, 0, sp, tp))
    assert found == expected


def test_interleaved_plans_have_whole_rounds_of_micro_batches_and_even_chunks():
    where = ("no offload", "no recompute", "schedule=interleaved", "vpp>1", "no cp")
    found = rows(space(task(), where))
    assert found
    for tp, pp, vpp, dp, _, _, micro, *_ in found:
        assert pp > 1
        assert (8 // (dp * micro)) % pp == 0
        counted = 4 if 4 % pp == 0 else 6  # embedding and head may count as a layer each
        assert counted % (pp * vpp) == 0
        assert tp * pp * dp == 8


def test_hybrid_shards_are_of_a_node_and_smaller_than_all_replicas():
    found = rows(space(task(batch=16, on="2 x dgx-a100-80gb"), (*PLAIN, "no vpp", "no cp", "pp=1")))
    for tp, _, _, dp, _, _, _, zero, shard, *_ in found:
        assert shard in (0, 8)
        if shard:
            assert zero > 0
            assert (tp, dp) == (1, 16)  # with fewer replicas a node holds all of them
    assert any(row[8] for row in found)


def test_experts_are_split_over_replicas_that_divide():
    found = rows(space(task("moe"), (*PLAIN, "no vpp", "no cp", "zero=0", "micro=1", "no sp")))
    assert {(tp, pp, ep) for tp, pp, _, _, _, ep, *_ in found} == {
        (tp, pp, ep)
        for tp, pp, ep in product((1, 2, 4, 8), (1, 2, 4), (1, 2, 4, 8))
        if 8 % (tp * pp) == 0
        and (8 // pp) % ep == 0
        and ((8 // (tp * pp)) % ep == 0 or (8 // pp) % ep == 0)
    }


def test_what_cannot_run_is_counted_by_its_reason():
    plans = space(task(batch=12), (*PLAIN, "no vpp", "no cp", "zero=0", "no sp", "pp=1"))
    lost = [plans.choices(part)[1] for part in plans.parts()]
    counts = {part.tp: sum(one.values()) for part, one in zip(plans.parts(), lost, strict=True)}
    # dp = 8 / tp has to divide 12 / micro; micro is one of the divisors of 12
    divisors = (1, 2, 3, 4, 6, 12)
    wrong = {tp: sum(12 % (8 // tp * micro) != 0 for micro in divisors) for tp in (1, 2, 4, 8)}
    assert counts == wrong
    assert {reason for one in lost for reason in one} == {
        "global batch not divisible by replicas x micro-batch"
    }


@pytest.mark.parametrize(
    ("where", "plans"),
    [
        ("schedule=zb-v,pp=2,vpp=2", True),
        ("schedule=zb-v,pp=2", True),
        ("schedule=interleaved,pp=2,vpp=2", True),
        ("schedule=interleaved,pp=2,vpp<4", False),
    ],
)
def test_chunks_are_uneven_where_they_were_asked_for(where, plans):
    model = tiny_model("gpt")
    (first, layers, *rest) = model.blocks
    five = replace(model, blocks=(first, replace(layers, repeat=5), *rest))
    options = space(
        Task.of(ask(five, on="1 x dgx-a100-80gb", batch=64, runtime="generic")), (where,)
    )
    found = [options.choices(part) for part in options.parts()]
    assert any(len(choices) for choices, _ in found) == plans
    assert all("fewer layers" not in reason for _, lost in found for reason in lost)


# --- constraints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "values", "left"),
    [
        ("tp<=4", (1, 2, 4, 8), (1, 2, 4)),
        ("tp<4", (1, 2, 4, 8), (1, 2)),
        ("tp>=4", (1, 2, 4, 8), (4, 8)),
        ("tp>4", (1, 2, 4, 8), (8,)),
        ("tp!=4|8", (1, 2, 4, 8), (1, 2)),
        ("tp=2|8", (1, 2, 4, 8), (2, 8)),
        ("tp=3", (1, 2, 4, 8), (3,)),  # asked for by name
        ("no tp", (1, 2), (1,)),
        ("no zero", (0, 1, 2, 3), (0,)),
        ("no sp", (False, True), (False,)),
        ("sp", (False, True), (True,)),
        ("sp=off", (False, True), (False,)),
        ("no recompute", ("none", "full"), ("none",)),
        ("no offload", ("none", "optimizer"), ("none",)),
        ("no shard", (0, 8), (0,)),
        ("buckets=25MiB", ("default",), (25 * 2.0**20,)),
    ],
)
def test_constraints_keep_what_they_say(word, values, left):
    (one,) = parse([word])
    assert kept(one.name, values, [one]) == left
    assert kept("micro", (1, 2), [one]) == (1, 2)  # others are left alone


def test_all_faults_of_constraints_are_named_at_once():
    with pytest.raises(PlanError) as caught:
        parse(["tp<=x, pp=2|4; no schedule", "recompute<full", "zero>=1|2", "qp=3", "sp=maybe"])
    for word in ("tp<=x", "no schedule", "recompute<full", "zero>=1|2", "qp=3", "sp=maybe"):
        assert word in str(caught.value)
    assert "pp=2|4" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "where", "said"),
    [
        ("cnn", "cp=2", "kv_seq"),
        ("llama", "ep=4", "expert"),
        ("llama", "layers!=even", "say how layers are to be split"),
        ("llama", "tp=0", "tp=0"),
        ("llama", "tp>8", "leaves no value"),
        ("llama", "recompute=bogus", "recompute=bogus: must be none, selective, full or an op"),
        ("llama", "order=bogus", "order=bogus: 'bogus' is not one of tp, cp, dp, pp, ep"),
        ("llama", "offload=bogus", "offload=bogus: 'bogus' is not one of optimizer, activations"),
        ("llama", "tables=bogus", "tables=bogus: 'bogus' is not one of replicated, rows"),
        (
            "llama",
            "cp-exchange=bogus",
            "cp-exchange=bogus: 'bogus' is not one of all-gather, ring",
        ),
        ("llama", "zero=7", "zero=7: 7 is not a stage: the ZeRO stage must be 0 to 3"),
        ("llama", "buckets=-5MB", "buckets of gradients have 1 to"),
        ("llama", "buckets=0", "buckets of gradients have 1 to"),
    ],
)
def test_constraints_that_no_plan_could_keep_are_refused(model, where, said):
    with pytest.raises(PlanError, match=said):
        space(task(model), (where,))


# --- surveys --------------------------------------------------------------------------------------------


class Fixed(Estimator):
    """Estimates that are given: seconds and memory of every plan by lot, of which most fit 50 bytes."""

    def estimate(self, choices, incumbents=None) -> Estimates:
        draw = np.random.default_rng(len(choices))
        count = len(choices)
        seconds, memory = draw.permutation(count) + 1.0, draw.permutation(count) + 1.0
        zero, refused = np.zeros(count), np.full(count, -1)
        refused[:3] = 0
        seconds[:3] = np.inf
        return Estimates(
            seconds, memory, zero + 0.7 * count, zero, zero, zero, zero, zero, ("odd",), refused
        )


@pytest.mark.parametrize("objective", ["time", "memory"])
def test_a_survey_is_what_looking_at_every_plan_gives(objective):
    here = task()
    plans = space(here, (*PLAIN, "no vpp", "no cp", "layers=even"))
    choices, _ = plans.choices(SpacePart(2, 1, 1))
    told = Fixed(here).estimate(choices)
    found = survey(here, plans, SpacePart(2, 1, 1), objective, 4, Fixed(here))
    every = range(3, len(choices))
    fit = [r for r in every if told.memory[r] <= told.usable[r]]
    value = told.memory if objective == "memory" else told.seconds
    assert found.seen == len(every)
    assert found.fitting == len(fit)
    assert found.pruned[TOO_LARGE] == len(every) - len(fit)
    assert found.pruned[REFUSED + "odd"] == 3
    best = sorted(fit, key=lambda r: value[r])[:4]
    assert [one.plan for one in found.best] == [choices.text(r) for r in best]
    front = [
        r for r in sorted(fit, key=lambda r: told.seconds[r])
        if not any(told.seconds[o] < told.seconds[r] and told.memory[o] <= told.memory[r] for o in fit)
    ]  # fmt: skip
    assert [one.plan for one in found.pareto] == [choices.text(r) for r in front]
    loose = [r for r in every if r not in fit]
    nearest = min(loose, key=lambda r: told.memory[r] - told.usable[r])
    assert found.nearest is not None
    assert found.nearest.plan == choices.text(nearest)
    assert found.nearest.lacks == told.memory[nearest] - told.usable[nearest]
    for one in (t for t in found.told if t.choice == "zero"):
        mine = [r for r in every if choices.zero[r] == int(one.value)]
        assert (one.seen, one.fitting) == (len(mine), len([r for r in mine if r in fit]))
        best_of = min((r for r in mine if r in fit), key=lambda r: value[r])
        assert one.best is not None
        assert one.best.plan == choices.text(best_of)


def seen(plan: str, seconds: float, memory: float) -> EstimatedPlan:
    return EstimatedPlan(plan, seconds, memory, 10.0, 0.0, 0.0, 0.0, 0.0)


def test_nothing_is_lacking_where_a_plan_fits():
    assert seen("a", 1.0, 4.0).lacks == 0.0
    assert seen("a", 1.0, 12.0).lacks == 2.0


@pytest.mark.parametrize("objective", ["time", "memory"])
def test_surveys_of_parts_merge_into_that_of_the_whole(objective):
    here = task()
    plans = space(here, (*PLAIN, "no vpp", "no cp"))
    parts = [survey(here, plans, part, objective, 5) for part in plans.parts()]
    whole = merged(parts, objective, 5)
    assert whole.seen == sum(p.seen for p in parts)
    assert whole.fitting == sum(p.fitting for p in parts)
    for reason in whole.pruned:
        assert whole.pruned[reason] == sum(p.pruned.get(reason, 0) for p in parts)

    def order(one: EstimatedPlan) -> tuple[float, float]:
        return (one.memory, one.seconds) if objective == "memory" else (one.seconds, one.memory)

    every = sorted((one for p in parts for one in p.best), key=order)
    assert list(whole.best) == every[:5]
    assert all(a.memory > b.memory for a, b in zip(whole.pareto, whole.pareto[1:], strict=False))
    for told in whole.told:
        mine = [t for p in parts for t in p.told if (t.choice, t.value) == (told.choice, told.value)]  # fmt: skip
        assert told.seen == sum(t.seen for t in mine)
        assert told.best == min((t.best for t in mine if t.fitting and t.best), key=order)


def test_a_value_that_never_fits_tells_of_the_plan_that_lacks_least():
    near, far, fits = seen("near", 1.0, 11.0), seen("far", 0.5, 20.0), seen("fits", 9.0, 5.0)
    told = BestPerChoice("tp", "1", 2, 0, far)

    def with_told(*each: BestPerChoice):
        return [replace(merged([], "time", 3), told=(one,)) for one in each]

    none = merged(with_told(told, replace(told, best=near)), "time", 3)
    assert none.told == (BestPerChoice("tp", "1", 4, 0, near),)
    some = merged(with_told(told, BestPerChoice("tp", "1", 3, 1, fits)), "time", 3)
    assert some.told == (BestPerChoice("tp", "1", 5, 1, fits),)


def test_where_nothing_fits_twice_the_nodes_may_do():
    """Under ZeRO-3 twice the devices hold half as much each: room for what is between the two."""
    one, two = (task(batch=16, on=f"{n} x dgx-a100-80gb") for n in (1, 2))
    where = (*PLAIN, "zero=3", "tp=1", "pp=1", "micro=1", "no shard", "no cp")
    held = [survey(t, space(t, where), SpacePart(1, 1, 1), "time", 1).best[0] for t in (one, two)]
    between = (held[0].memory + held[1].memory) / 2
    context = one.cluster.devices[0].memory_bytes - between
    full = replace(one, runtime=one.runtime.with_options({"context_bytes": context}))
    found = larger(full, held[0], where)
    assert found is not None
    assert (found.factor, found.nodes) == (2, 2)
    assert found.best.memory == pytest.approx(held[1].memory)
    never = replace(one, runtime=one.runtime.with_features({"memory": {"context_bytes": 2.0**50}}))
    assert larger(never, held[0], where) is None


def test_nodes_that_are_unlike_are_not_multiplied():
    mixed = Cluster.of({
        "name": "mixed",
        "nodes": [{"node": "dgx-a100-80gb"}, {"node": "dgx-1-v100-32gb"}],
        "network": {"topology": "star"},
    })  # fmt: skip
    assert times(mixed, 2) is None
    twice = times(Cluster.of("2 x dgx-a100-80gb"), 2)
    assert twice is not None
    assert (twice.node_count, twice.device_count) == (4, 32)
