"""What plans of a search exchange, and how steps are put together: beside the same told plan by plan in plain numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest
from estimated_plan import fleet
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleets import PLANS, parts_of, timed_fleets
from support.plans import tiny_model

from foretrain.compile.execution import Communicator
from foretrain.compile.passes.fold import ranks_of
from foretrain.cost.collective_costs import contended
from foretrain.planning.curves import STEP, SizeCurve
from foretrain.planning.exchanges import Exchanges
from foretrain.planning.replicas import INSIDE, NETWORK, Replicas
from foretrain.planning.sends import sends
from foretrain.planning.times import Times, _work
from foretrain.planning.updates import update
from foretrain.simulate import simulate_scenario
from foretrain.testing.asking import ask

SEEDS = st.integers(0, 2**31)
quick = settings(max_examples=40, deadline=None)
NODE, TWO_NODES = "1 x dgx-a100-80gb", "2 x dgx-a100-80gb"


def near(found, expected, rel=1e-9):
    assert np.asarray(found, float) == pytest.approx(
        np.asarray(expected, float), rel=rel, abs=1e-12
    )


def asked(plan, model="gpt", *, on=NODE, stack="megatron", batch=32, **options):
    words = {"on": on, "plan": plan, "batch": batch, "runtime": stack, "runtime_options": options}
    return ask(tiny_model(model), **words)


# --- functions of a size ----------------------------------------------------------------------------------


@quick
@given(st.lists(st.lists(st.floats(1.0, 1e7), min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_curve_is_linear_between_powers_of_four_and_asks_once(batches):
    asked_for: list[float] = []

    def ask_for(sizes):
        asked_for.extend(sizes)
        return [sqrt(size) for size in sizes]

    curve = SizeCurve(ask_for, 16.0)
    for batch in batches:
        found = curve(np.array([*batch, 0.0]))
        assert found[-1] == 0.0  # nothing takes no time
        for size, value in zip(batch, found, strict=False):
            low = 16.0
            while low * STEP <= max(size, 16.0) * (1.0 + 1e-12):
                low *= STEP
            share = (max(size, 16.0) - low) / (low * STEP - low)
            expected = sqrt(low) + (sqrt(low * STEP) - sqrt(low)) * share
            assert value == pytest.approx(expected, rel=1e-6)
    assert len(asked_for) == len(set(asked_for))
    assert min(asked_for) >= 16.0
    assert sorted(asked_for) == sorted(16.0 * STEP**e for e in range(round(np.log(min(asked_for) / 16) / np.log(4)), round(np.log(max(asked_for) / 16) / np.log(4)) + 1))  # fmt: skip


def test_an_empty_column_asks_for_nothing():
    def never(_):
        raise AssertionError

    assert SizeCurve(never, 16.0)(np.zeros((0, 3))).shape == (0, 3)


# --- collectives of a mesh ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "on"),
    [("tp2 pp2", NODE), ("tp2 pp2", TWO_NODES), ("tp2 pp2 order=pp-tp-dp", "2 x aws:p3.16xlarge")],
)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_an_exchange_costs_what_the_slowest_group_of_all_does(plan, on, collective):
    """… or, of one stage alone, what that of the first does: stages on a node share its card."""
    scenario = asked(plan, on=on)
    f, library = fleet(scenario), scenario.runtime.communication.library
    network = f.task.network
    for axes in (("tp",), ("dp",), ("pp",), ("tp", "dp")):
        groups = ranks_of(f.mesh, Communicator(axes))
        size = 4096.0 * STEP**5  # where a curve is known
        total, flow = contended(network, groups, collective, library).seconds(size)
        found = f.exchange(axes, collective)
        near(found.seconds(np.array([size])), [total])
        near(found.flow(np.array([size])), [flow])
        assert found.ranks == groups.shape[1]
        of_first = groups[np.isin(groups[:, 0], np.flatnonzero(f.mesh.coordinate("pp") == 0))]
        alone = f.exchange(axes, collective, True)
        near(alone.seconds(np.array([size])), [contended(network, of_first, collective, library).seconds(size)[0]])  # fmt: skip
        nodes = np.asarray(f.task.cluster.node_of)[groups]
        assert found.is_network == bool((nodes != nodes[:, :1]).any())


def test_a_rank_alone_exchanges_nothing():
    f = fleet(asked("dp8"))
    found = Exchanges(f.task.network, "nccl").between(f.mesh, Communicator(("tp",)), "all_reduce")
    assert found.seconds(np.array([1e9])).tolist() == [0.0]
    assert found.flow(np.array([1e9])).tolist() == [0.0]


# --- sends ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "on", "is_far"),
    [("pp4 dp2", NODE, [0, 0, 0]), ("pp2 dp8", TWO_NODES, [1]), ("pp4 dp4", TWO_NODES, [0, 1, 0]), ("pp4 dp2 vpp1", NODE, [0, 0, 0])],
)  # fmt: skip
def test_stages_send_what_a_block_hands_on(plan, on, is_far):
    """64 tokens of 1024 in bf16, over the network where the next stage is on another node."""
    f = fleet(asked(plan, on=on, scatters_pipeline=False))
    found = sends(f)
    near(found.size, [[64 * 1024 * 2.0] * len(is_far)])
    assert (found.flow[0] > 0).tolist() == [bool(far) for far in is_far]
    assert (found.seconds > found.flow).all()
    assert found.is_far == any(is_far)
    f = fleet(asked("pp2 vpp2 dp4"))
    assert sends(f).size.shape == (1, 3)


def test_slices_of_a_boundary_are_put_together_where_they_arrive():
    whole, sliced, cut = (
        sends(fleet(asked(f"tp4 pp2{sp}", scatters_pipeline=s)))
        for sp, s in (("", False), ("", True), (" sp", True))
    )
    near(whole.size / sliced.size, [[4.0]])
    assert not whole.arrivals().any()
    assert not cut.arrivals().any()  # a cut sequence is sent as it lies
    ahead, back = sliced.arrivals()
    gather = sliced.f.exchange(("tp",), "all_gather").seconds(whole.size)
    near(ahead[0], [0.0, gather[0, 0]])
    near(back[0], [gather[0, 0], 0.0])


@quick
@given(timed_fleets())
def test_what_a_stage_sends_forward_and_back(t):
    f, flow = t.f, t.sends.flow
    sent = t.sends.sent()
    for plan in range(PLANS):
        for stage in range(f.stages):
            parts = range(stage, len(f.share), f.stages)
            near(sent[0, plan, stage], sum(flow[plan, p] for p in parts if p < len(f.share) - 1))
            near(sent[1, plan, stage], sum(flow[plan, p - 1] for p in parts if p > 0))


@quick
@given(timed_fleets(), SEEDS)
def test_sends_that_block_are_part_of_the_work(t, seed):
    parts = parts_of(t, np.random.default_rng(seed))
    (forward, backward, weight), wait = t.sends.blocking(parts)
    near(weight, parts[2])
    blocks = not t.f.task.runtime.pipeline.overlaps_pipeline and t.f.stages > 1
    near(wait, np.zeros_like(t.sends.seconds) if blocks else t.sends.seconds)
    for plan in range(PLANS):
        send = [*t.sends.seconds[plan], 0.0] if blocks else [0.0] * len(t.f.share)
        near(forward[plan], [work + out for work, out in zip(parts[0][plan], send, strict=True)])
        home = [0.0, *send[:-1]]
        near(backward[plan], [work + out for work, out in zip(parts[1][plan], home, strict=True)])


@quick
@given(timed_fleets(), SEEDS)
def test_sends_that_meet_others_take_longer_as_often_as_links_are_busy(t, seed):
    rng = np.random.default_rng(seed)
    f, parts, send = t.f, parts_of(t, rng), t.sends.seconds
    found = t.sends.met(parts, send, t.follows)
    for plan in range(PLANS):
        flow = t.sends.flow[plan]
        if f.chunks > 1 or not send.any() or not t.sends.flow.any():
            near(found[plan], send[plan])
            continue
        last = len(flow) - 1
        longer = [
            min(own, flow[place - 1] if place else 0.0) + min(own, flow[place + 1] if place < last else 0.0)
            for place, own in enumerate(flow)
        ]  # fmt: skip
        load = max(
            (flow[s] if s <= last else 0.0) + (flow[s - 1] if s else 0.0) for s in range(f.stages)
        )
        work = [a + b for a, b in zip(parts[0][plan], parts[1][plan], strict=True)]
        whole = sum(work) + 2 * sum(send[plan])
        # a turn of the loop: turn · stages = whole + longer · load / turn
        turn = (whole + sqrt(whole**2 + 4 * f.stages * load * sum(longer))) / (2 * f.stages)
        near(turn * f.stages, whole + sum(longer) * load / turn)
        turn = max(turn, load, *work)
        busy = 0.0 if t.follows[plan] else load / turn
        near(found[plan], [s + 0.5 * more * busy for s, more in zip(send[plan], longer, strict=True)])  # fmt: skip


@quick
@given(timed_fleets(), SEEDS, st.sampled_from(((0, 0, 0), (0, 1, 2), (0, 0, 1), (0, 1, 1))))
def test_no_pipeline_is_faster_than_the_links_out_of_its_domains(t, seed, homes):
    f = t.f
    homes = homes[: f.stages]
    mesh = SimpleNamespace(groups=lambda axes: np.arange(f.stages)[None, :])
    task = SimpleNamespace(network=SimpleNamespace(domain_of=np.array(homes)), **vars(f.task))
    f = replace(f, task=task, mesh=mesh)
    parts, send = parts_of(t, np.random.default_rng(seed)), t.sends.seconds
    found = replace(t.sends, f=f).turns(parts, send)
    if f.stages == 1 or not send.any():
        assert not found.any()
        return
    count = len(f.share)
    far = [homes[p % f.stages] != homes[(p + 1) % f.stages] for p in range(count - 1)]
    for plan in range(PLANS):
        turns = 0.0
        for chunk in range(f.chunks):
            loads = dict.fromkeys(homes, 0.0)
            for stage in range(f.stages):
                ahead = chunk * f.stages + stage
                back = (f.chunks - 1 - chunk) * f.stages + stage
                loads[homes[stage]] += send[plan, ahead] if ahead < count - 1 and far[ahead] else 0.0  # fmt: skip
                loads[homes[stage]] += send[plan, back - 1] if back and far[back - 1] else 0.0
            turns += max(loads.values())
        if f.chunks > 1 and all(far) and turns > 0:
            forward = [parts[0][plan][s :: f.stages].sum() for s in range(f.stages)]
            turns += max(forward)
        through = sum(parts[0][plan][: f.stages]) + sum(parts[1][plan][: f.stages])
        near(found[plan], f.counts[plan] * turns + through)


# --- what replicas exchange -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "on", "crosses", "gathers", "shares"),
    [
        ("dp8 zero3", NODE, False, INSIDE, False),
        ("dp16 zero3", TWO_NODES, True, NETWORK, False),
        ("dp16 zero3 shard=8", TWO_NODES, True, INSIDE, False),
        ("pp2 dp8 zero3", TWO_NODES, False, INSIDE, False),
        ("pp2 dp8 zero3 order=pp-tp-dp", TWO_NODES, True, NETWORK, True),
        ("tp8 dp1", NODE, False, INSIDE, False),
    ],
)
def test_the_ways_of_replicas(plan, on, crosses, gathers, shares):
    found = Replicas(fleet(asked(plan, on=on, stack="fsdp")))
    assert (found.crosses, found.gathers_by, found.shares_links) == (crosses, gathers, shares)


def test_how_much_other_stages_exchange_meanwhile():
    """Stages of 1, 2 and 4 on one node: the smallest is never alone, the largest for most of its time."""
    f = fleet(asked("pp4 dp2"))
    sizes = np.array([[1.0, 2.0, 4.0, 4.0]])
    nodes = np.zeros(8, dtype=int)
    cluster = SimpleNamespace(node_of=nodes)
    stub = SimpleNamespace(
        stage_weights=lambda name, kind: sizes if kind == 0 else np.zeros_like(sizes),
        task=SimpleNamespace(cluster=cluster, runtime=f.task.runtime, states=f.task.states),
        mesh=f.mesh,
        stages=4,
    )
    near(Replicas(stub).evenness, [[1.0, (1 / 2 + 1 + 1) / 3, (1 / 4 + 1 / 2 + 1) / 3, (1 / 4 + 1 / 2 + 1) / 3]])  # fmt: skip
    lone, crowded = np.full((1, 4), 2.0), np.full((1, 4), 8.0)
    near(Replicas(stub)._among(lone, crowded), 2.0 + 6.0 * Replicas(stub).evenness)
    nodes[f.mesh.groups(("pp",))[0][2:]] = 1  # two by two
    near(Replicas(stub).evenness, [[1.0, 1 / 2, 1.0, 1.0]])


@pytest.mark.parametrize("zero", [1, 2])
def test_gradients_are_scattered_to_owners_and_added_up_over_the_rest(zero):
    """Hybrid shards: scattered over eight of a node, an eighth of it reduced between the nodes."""
    f = fleet(
        asked(f"dp16 zero{zero} shard=8", on=TWO_NODES, stack="fsdp", scatters_gradients=True)
    )
    kind = next(k for k in f.kinds_held if f.axes_of(k))
    owners, axes = f.owners_of(kind), f.axes_of(kind)
    rest = tuple(axis for axis in axes if axis not in owners)
    assert f.mesh.size(*owners) == 8
    assert f.mesh.size(*rest) == 2
    size = np.array([[3e7]])
    apart = f.exchange(owners, "reduce_scatter").seconds(size[0]) + f.exchange(
        rest, "all_reduce"
    ).seconds(size[0] / 8)
    near(Replicas(f)._reduced(kind, size, False), [apart])
    plain = fleet(asked("dp16", on=TWO_NODES, stack="fsdp"))
    whole = plain.exchange(plain.axes_of(kind), "all_reduce").seconds(size[0])
    near(Replicas(plain)._reduced(kind, size, False), [whole])
    inside = Replicas(f)._reduced(kind, size, False, INSIDE)
    across = Replicas(f)._reduced(kind, size, False, NETWORK)
    near(inside, [f.exchange(owners, "reduce_scatter").flow(size[0])])
    near(across, [f.exchange(rest, "all_reduce").flow(size[0] / 8)])


@pytest.mark.parametrize("stack", ["ddp", "megatron", "fsdp"])
@pytest.mark.parametrize("limit", [1.0, 4.0, 25.0])
def test_buckets_are_filled_in_the_order_of_backward(stack, limit):
    """Head, layers from the last to the first, embedding: a bucket goes once it is full."""
    f = fleet(asked(f"dp8 buckets={limit:g}MB", "llama", stack=stack, overlaps_gradients=True))
    (kind,) = (k for k in f.kinds_held if f.axes_of(k))
    pieces, last = Replicas(f).buckets(kind, f.share)
    states = f.task.states
    if states.reduces_blocks(limit * 1e6):
        assert pieces[0, 0] == f.share.sum()
        return
    limits = states.bucket_limits(limit * 1e6)
    sizes = [
        sum(n for n, _ in pool) * states.reduced_bytes
        for block in reversed(range(f.share.shape[1]))
        for _ in range(int(f.share[0, block]))
        for pool in f.layers.messages[f.rows[0], block, kind]
    ]
    held, sent = 0.0, []
    for size in sizes:
        held += size
        if held >= limits[min(len(sent), 1)]:
            sent.append(held)
            held = 0.0
    sent += [held] if held else []
    assert pieces[0, 0] == len(sent)
    near(last[0, 0], sent[-1])


def test_reruns_gather_what_runs_again():
    plan = "dp8 zero3 recompute=full"
    again, once = (
        Replicas(fleet(asked(plan, stack="fsdp", gathers_rerun=g))) for g in (True, False)
    )
    assert once.reruns(True) is None
    found, whole = again.reruns(True), again.gathers(True)
    assert found is not None
    assert whole is not None
    # embedding tables do not run again, layers do
    assert found[0, 0] == 0.0
    assert found[0, 1] == pytest.approx(whole[0, 1], rel=0.01)


def test_parts_of_a_list_are_named_by_hosts_and_copied():
    calls = 3.0
    listed, plain = (
        Replicas(fleet(asked("dp8 zero3", stack="fsdp", calls_per_part=c))) for c in (calls, 0.0)
    )
    f, more = listed.f, listed.gathers(True) - plain.gathers(True)
    parts = f.layers.large[f.rows] * 8
    named = parts * calls * f.task.runtime.host.host_seconds_per_kernel
    assert (more >= named - 1e-15)[0, 1:3].all()
    (owners,) = {f.owners_of(k) for k in f.kinds_held if f.owners_of(k)}
    size = sum(f.elements("gathered", kind)[f.rows] for kind in f.kinds_held) * 2.0
    near(more, np.where(size > 0, named + listed._fused(parts, size), 0.0))
    assert f.mesh.size(*owners) == 8


# --- steps and what comes after -----------------------------------------------------------------------------


@quick
@given(timed_fleets(), SEEDS)
def test_exchanges_of_experts_without_a_partner(t, seed):
    f = t.f
    times = SimpleNamespace(f=f, t=t)
    found = Times._without_partner(times)
    for plan, state in enumerate(f.rows):
        hidden = [sum(f.layers.hidden[state] * f.share[part]) for part in range(len(f.share))]
        stages = [sum(hidden[s :: f.stages]) for s in range(f.stages)]
        if t.follows[plan]:  # none of the others has one either
            expected = sum(hidden) + (f.counts[plan] - 1) * max(stages)
        elif f.chunks > 1:
            steps = (f.chunks + 1) * f.stages - 1
            expected = sum(hidden) * steps / (f.chunks * f.stages)
        else:
            expected = sum(hidden)
        near(found[plan], expected)
    parts = parts_of(t, np.random.default_rng(seed))
    works = [
        [f.counts[n] * (parts[0][n][s :: f.stages].sum() + parts[1][n][s :: f.stages].sum()) for s in range(f.stages)]
        for n in range(PLANS)
    ]  # fmt: skip
    near(_work(f, parts), [max(row) for row in works])


@quick
@given(SEEDS, st.booleans(), st.integers(1, 4))
def test_stages_update_when_their_own_reductions_are_done_or_all_together(seed, joins, stages):
    rng = np.random.default_rng(seed)
    tail, gathers, updates = (rng.uniform(lo, 2.0, (PLANS, stages)) for lo in (-1.0, 0.0, 0.0))
    barriers = rng.uniform(0.0, 0.5, PLANS)
    replicas = SimpleNamespace(barriers=lambda: barriers, joins_stages=joins)
    times = SimpleNamespace(
        stands_for=np.arange(PLANS),
        t=SimpleNamespace(replicas=replicas, few=np.arange(PLANS)),
        _update=lambda: updates,
    )
    data, end = Times._ended(times, tail, gathers)
    for plan in range(PLANS):
        own = [u + g for u, g in zip(updates[plan], gathers[plan], strict=True)]
        late = max(0.0, *tail[plan])
        if joins:
            near([data[plan], end[plan]], [late, max(own) + barriers[plan]])
        else:
            whole = max(r + u for r, u in zip(tail[plan], own, strict=True)) + barriers[plan]
            near(data[plan] + end[plan], whole)
            near(data[plan], min(late, whole))


@pytest.mark.parametrize("plan", ["dp8", "dp8 zero1", "pp2 dp4", "tp2 pp2 dp2 zero1"])
@pytest.mark.parametrize("stack", ["megatron", "ddp", "deepspeed"])
def test_updates_of_every_stage_are_what_the_simulator_charges(plan, stack):
    scenario = asked(
        plan, stack=stack, jitter_seconds=0.0
    )  # late hosts are no work of the optimizer
    found = update(fleet(scenario))[0]
    simulated = simulate_scenario(scenario).prediction.stalls["optimizer"]
    assert found.max() >= simulated * (1.0 - 1e-6)
    assert found.min() <= simulated * (1.0 + 1e-6)


def test_more_weights_take_longer_to_update_and_shards_less():
    plain, split = (update(fleet(asked(plan, stack="ddp")))[0, 0] for plan in ("dp8", "dp8 zero1"))
    assert split < plain
    sizes = [update(fleet(asked("dp8", model)))[0, 0] for model in ("gpt", "moe")]
    assert all(one < other for one, other in pairwise(sizes))
