"""Closed forms of the search, for many plans at once, beside the same told plan by plan and part by part in plain numbers."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleets import PLANS, SECOND, fleets, parts_of, timed_fleets

from foretrain.planning.contention import Contention, beside
from foretrain.planning.exposed_communication import (
    _backward_overlap,
    _draining,
    _exposed,
    _first_backward,
    _sooner,
    _streaming,
    _ways,
    exposed_reductions,
    parameters,
)
from foretrain.planning.footprint import _largest, workspace
from foretrain.planning.hosts import issue_seconds, issued, leads, running_ahead
from foretrain.planning.replicas import INSIDE, NETWORK, WAYS
from foretrain.planning.steps import _pair, crowded_steps, have_company, lone_steps

SEEDS = st.integers(0, 2**31)
quick = settings(max_examples=40, deadline=None)


def near(found, expected):
    assert np.asarray(found, float) == pytest.approx(
        np.asarray(expected, float), rel=1e-9, abs=1e-12
    )


def stage_sum(f, row, stage):
    """Of a row of parts: all chunks of a stage."""
    return sum(row[chunk * f.stages + stage] for chunk in range(f.chunks))


def blocks_of(f, part):
    """Blocks of a part, one after the other."""
    return [b for b, times in enumerate(f.share[part].astype(int)) for _ in range(times)]


def on_stage(f, part, by_kind):
    """The slowest of the kinds of devices that a part's stage runs on."""
    return max(value for value, is_there in zip(by_kind, f.kinds[part % f.stages], strict=True) if is_there)  # fmt: skip


def sends_of(f, rng):
    """[plans, parts - 1] seconds from each part to the next: less than work takes, or more."""
    return SECOND * rng.choice((0.3, 6.0)) * rng.uniform(0.0, 1.0, (PLANS, len(f.share) - 1))


# --- memory ---------------------------------------------------------------------------------------------


@quick
@given(fleets(), SEEDS)
def test_workspace_is_the_highest_of_all_moments(f, seed):
    """While a block is at work, those behind it keep nothing."""
    needed = np.random.default_rng(seed).uniform(0.0, 4.0, f.layers.saved.shape)
    found = workspace(f, needed)
    for plan, state in enumerate(f.rows):
        for part in range(len(f.share)):
            held = blocks_of(f, part)
            moments = [
                needed[state, block] - sum(f.layers.saved[state, b] for b in held[place + 1 :])
                for place, block in enumerate(held)
            ]
            near(found[plan, part], max(0.0, *moments))


@quick
@given(fleets(), SEEDS, st.integers(1, 3))
def test_the_largest_blocks_of_a_stage_are_held_together(f, seed, count):
    sizes = np.random.default_rng(seed).uniform(0.0, 4.0, (PLANS, f.share.shape[1]))
    found = _largest(f, sizes, count)
    for plan in range(PLANS):
        for stage in range(f.stages):
            held = [b for chunk in range(f.chunks) for b in blocks_of(f, chunk * f.stages + stage)]
            near(found[plan, stage], sum(sorted((sizes[plan, b] for b in held), reverse=True)[:count]))  # fmt: skip


# --- columns --------------------------------------------------------------------------------------------


@quick
@given(fleets(), SEEDS)
def test_columns_are_added_up_over_blocks_parts_and_chunks(f, seed):
    rng = np.random.default_rng(seed)
    column = rng.uniform(0.0, 4.0, f.layers.saved.shape)
    parts = [[sum(column[state, b] for b in blocks_of(f, p)) for p in range(len(f.share))] for state in f.rows]  # fmt: skip
    near(f.by_part(column), parts)
    near(f.by_stage(column), [[stage_sum(f, row, s) for s in range(f.stages)] for row in parts])
    near(f.first_chunk(np.array(parts)), [row[: f.stages] for row in parts])
    assert f.last_blocks().tolist() == [blocks_of(f, part)[-1] for part in range(len(f.share))]
    blocks = rng.uniform(0.0, 4.0, (PLANS, f.kinds.shape[1], f.share.shape[1]))
    near(
        f.seconds_by_part(blocks),
        [
            [on_stage(f, p, [sum(kind[b] for b in blocks_of(f, p)) for kind in plan]) for p in range(len(f.share))]
            for plan in blocks
        ],
    )  # fmt: skip
    batch = f.task.workload.global_batch
    near(f.counts, [batch / (2 * micro) for micro in f.choices.micro])
    few, of = f.distinct(f.choices.zero, f.choices.micro)
    assert [(few.choices.zero[n], few.choices.micro[n]) for n in of] == list(zip(f.choices.zero, f.choices.micro, strict=True))  # fmt: skip
    assert len(few.choices) == len(set(zip(f.choices.zero.tolist(), f.choices.micro.tolist(), strict=True)))  # fmt: skip


# --- contention -----------------------------------------------------------------------------------------


@quick
@given(timed_fleets())
def test_shares_of_forward_steps_and_of_late_gradients(t):
    f, runtime = t.f, t.f.task.runtime
    crowded, late = t.crowded(), t.at_end()
    for plan in range(PLANS):
        first = f.stages if f.chunks > 1 else (f.stages + 1) / 2  # go before any backward step
        if not t.follows[plan]:
            near(crowded[plan], max(0.0, 1.0 - first / f.counts[plan]))
        held = sum(len(blocks_of(f, part)) for part in range(len(f.share)))
        waits = f.choices.zero[plan] >= 1 and not runtime.gradients.overlaps_scatters
        near(
            late[plan],
            1.0 if waits or not runtime.gradients.overlaps_gradients else len(f.share) / held,
        )


@quick
@given(timed_fleets(), SEEDS)
def test_gradients_go_beside_what_makes_them_then_forward_then_back(t, seed):
    """Those of a stage beside its own work, and beside nothing while it waits for what it sends."""
    f, parts = t.f, parts_of(t, np.random.default_rng(seed))
    stage = seed % f.stages
    mine = np.arange(f.chunks) * f.stages + stage
    found = beside(t, list(parts), mine)
    waits = not f.task.runtime.pipeline.overlaps_pipeline
    out, home = t.sends.leaving(t.sends.seconds)
    for plan, state in enumerate(f.rows):
        ahead, back, late = (sum(part[plan, mine]) for part in parts)
        off = bool(t.puts_off[plan])
        back -= late if off else 0.0
        kernels = sum(
            max(kind[b] for kind in column[state])
            for column in (f.layers.forward, f.layers.backward)
            for part in mine
            for b in blocks_of(f, part)
        )
        meets = min(1.0, kernels / (ahead + back))
        turn = sum(parts[0][plan] + parts[1][plan] - off * parts[2][plan])
        sent = min(1.0, 2.0 * sum(t.sends.flow[plan]) / turn)
        sent = 1.0 - (1.0 - sent) ** 2  # on the links out of a node, or on those into it
        for way in WAYS:
            moving = sum(t.flowing[way][plan, mine]) * (1.0 + (t.slowed[way] - 1.0) * meets)
            making = (late if off else back) * t.slow[way]
            early = min(moving * (1.0 - t.at_end()[plan]), making)
            rest = max(moving - early - waits * sum(home[plan, mine]), 0.0)
            room = 0.0 if t.follows[plan] else ahead * t.slow[way] * t.crowded()[plan]
            next_ahead = min(rest, room)
            rest = max(rest - next_ahead - waits * (not t.follows[plan]) * sum(out[plan, mine]), 0.0)  # fmt: skip
            next_back = min(rest, back * t.slow[way] if off else making - early)
            near(found.forward.data[plan, way], next_ahead / ahead)
            near(found.backward.data[plan, way], (next_back + (0.0 if off else early)) / back)
            near(found.later.data[plan, way], early / late if off else 0.0)
        near([c.sent[plan] for c in found], [sent] * 3)


def test_company_stretches_what_goes_its_way_and_slows_kernels():
    company = Contention(np.array([[0.5, 2.0]]), np.array([0.25]))
    near(company.on(INSIDE), [0.5])
    near(company.on(NETWORK), [1.25])  # at most twice by gradients, and by what is sent
    near(company.slows(np.array([1.25, 2.0])), [1.0 + 0.5 * 0.2 + 2.0 * 0.5])


# --- steps ----------------------------------------------------------------------------------------------


def pair(kernels: float, moving: float, slow: float, slowed: float) -> float:
    """Two that start together, each at its slower pace while the other runs."""
    if kernels * slow <= moving * slowed:
        return kernels * slow + moving - kernels * slow / slowed
    return moving * slowed + kernels - moving * slowed / slow


@given(timed_fleets(), st.floats(0.0, 5.0), st.floats(0.0, 5.0))
@quick
def test_two_that_slow_each_other(t, kernels, moving):
    way = t.replicas.gathers_by
    near(_pair(t, np.array(kernels), np.array(moving)), pair(kernels, moving, t.slow[way], t.slowed[way]))  # fmt: skip


def step_by_blocks(t, fetched, companies):
    """[forward, backward, weight][plan][part] seconds, block after block on every kind of device. `companies`: of every
    stage."""
    f, layers, ahead = t.f, t.f.layers, t.f.task.runtime.sharding.prefetched_blocks > 0
    out = np.zeros((3, PLANS, len(f.share)))
    for plan, state in enumerate(f.rows):
        off, split = bool(t.puts_off[plan]), f.choices.zero[plan] >= 3
        for part in range(len(f.share)):
            for phase, (column, wires) in enumerate(((layers.forward, layers.wire_forward), (layers.backward, layers.wire_backward))):  # fmt: skip
                by_kind, plain, gain = [], [], []
                for kind in range(f.kinds.shape[1]):
                    total = 0.0
                    for b in range(f.share.shape[1]):
                        copies = layers.copied[state, kind, b] * split
                        kernels = column[state, kind, b] + (copies[0] if phase == 0 else copies.sum())  # fmt: skip
                        weight = (layers.weight[state, kind, b] + copies[1]) * (phase == 1 and off)
                        kernels -= weight
                        wire = wires[state, b]
                        moving = None if fetched is None else fetched[phase][0][plan, b]
                        company = companies and companies[part % f.stages]
                        alone = _of_block(t, plan, kernels, None, wire, company and company[phase])
                        if moving is not None and company:
                            moving += fetched[phase][1][plan, b] * company[phase].on(t.replicas.gathers_by)[plan]  # fmt: skip
                        both = _of_block(t, plan, kernels, moving, wire, company and company[phase])
                        later = weight * (company.later.slows(t.slow)[plan] if company else 1.0)
                        total += (both + later) * f.share[part, b]
                        gain.append((b, both - alone))
                        plain.append(moving)
                    by_kind.append(total)
                out[phase, plan, part] = on_stage(f, part, by_kind)
                if fetched is not None and ahead:
                    first, last = blocks_of(f, part)[0], blocks_of(f, part)[-1]
                    begins, ends = (first, last) if phase == 0 else (last, first)
                    out[phase, plan, part] += plain[begins] - min(g for b, g in gain if b == ends)
                    if companies:  # it starts with what the step before has sent
                        flow = fetched[phase][1][plan, begins]
                        out[phase, plan, part] += begun_beside_a_send(t, plan, part, phase, flow, company[phase])  # fmt: skip
            weights = [
                sum((layers.weight[state, kind, b] + layers.copied[state, kind, b, 1] * split) * f.share[part, b] for b in range(f.share.shape[1]))
                for kind in range(f.kinds.shape[1])
            ]  # fmt: skip
            out[2, plan, part] = on_stage(f, part, weights)
    return out


def begun_beside_a_send(t, plan, part, phase, flow, company):
    """By how much the gather that a part begins with outlasts what it would by chance."""
    forward, back = (float(way[plan, part]) for way in t.sends.leaving(t.sends.flow))
    if t.follows[plan]:
        sent = (forward, back)[phase]
    else:  # a forward step comes after a backward one, or after weight gradients that were put off
        sent = forward if phase == 1 else 0.0 if t.puts_off[plan] else back
    is_shared = t.replicas.gathers_by == NETWORK
    return max(0.0, min(flow, sent) - flow * company.sent[plan]) if is_shared else 0.0


def _of_block(t, plan, kernels, moving, wire, company):
    """One block beside what is fetched for the next one."""
    if t.f.task.runtime.sharding.prefetched_blocks < 1 or moving is None:
        if company is not None:
            free = (kernels - sum(wire)) * company.slows(t.slow)[plan]
            kernels = free + sum(wire[way] * (1.0 + company.on(way)[plan]) for way in WAYS)
        return kernels + (moving or 0.0)
    way = t.replicas.gathers_by
    free, ways = kernels - sum(wire), list(wire)
    if company is not None:
        free *= company.slows(t.slow)[plan]
        ways = [ways[w] * (1.0 + company.on(w)[plan]) for w in WAYS]
    return pair(free + ways[1 - way], moving, t.slow[way], t.slowed[way]) + ways[way]


def gathered(t, alone):
    seconds = t.replicas.gathers(alone)
    return None if seconds is None else [(seconds, t.replicas.gathers(alone, True))] * 2


NO_RERUN = {"gathers_rerun": False}


@quick
@given(timed_fleets(**NO_RERUN))
def test_steps_of_a_stage_alone_are_sums_over_its_blocks(t):
    near(lone_steps(t), step_by_blocks(t, gathered(t, t.replicas.shares_links), None))


@quick
@given(timed_fleets(**NO_RERUN))
def test_crowded_steps_are_sums_over_blocks_with_company(t):
    lone = lone_steps(t)
    fetched = gathered(t, False)
    if (
        t.replicas.shares_links
        and fetched is not None
        and t.f.task.runtime.sharding.prefetched_blocks < 1
    ):
        fetched = met_now_and_then(t)
    if t.replicas.shares_links:
        lone = list(step_by_blocks(t, fetched, None))
    parts = np.arange(len(t.f.share))
    each = [beside(t, lone, parts[parts % t.f.stages == stage]) for stage in range(t.f.stages)]
    if not t.moved.any():
        each = [beside(t, lone, parts)] * t.f.stages
    near(crowded_steps(t, lone_steps(t)), step_by_blocks(t, fetched, each))


def met_now_and_then(t):
    """Gathers between those of a stage alone and of all at once, by how much of its turn each is at its links:
    x = work + link + (crowded - link) · (x - work) / x, solved for what a turn of gathers takes."""
    f, (alone, crowd) = t.f, (gathered(t, True)[0], gathered(t, False)[0])
    found = [np.zeros_like(alone[0]) for _ in range(2)]
    for plan, state in enumerate(f.rows):
        link, all_link = (2.0 * sum(one[plan, b] for p in range(len(f.share)) for b in blocks_of(f, p)) for one in (alone[0], crowd[0]))  # fmt: skip
        split = f.choices.zero[plan] >= 3
        work = 0.0
        for part in range(len(f.share)):
            for column, copies in ((f.layers.forward, (1, 0)), (f.layers.backward, (1, 1))):
                by_kind = [
                    sum(column[state, k, b] + split * (f.layers.copied[state, k, b] @ copies) for b in blocks_of(f, part))
                    for k in range(f.kinds.shape[1])
                ]  # fmt: skip
                work += on_stage(f, part, by_kind)
        more = all_link - work
        turn = (more + sqrt(more * more + 4.0 * link * work)) / 2.0
        share = min(max((turn - link) / max(all_link - link, 1e-12), 0.0), 1.0)
        for each, one, other in zip(found, alone, crowd, strict=True):
            each[plan] = one[plan] + (other[plan] - one[plan]) * share
    return [tuple(found)] * 2


@quick
@given(timed_fleets(), SEEDS)
def test_plans_have_company_where_gradients_are_split_or_sends_meet_collectives(t, seed):
    rng = np.random.default_rng(seed)
    parts = list(parts_of(t, rng))
    if t.sends.flow.any():  # about as long as makes a difference
        turns = (parts[0] + parts[1]).sum(axis=1)
        near_it = 200.0 * t.sends.flow.sum(axis=1) / turns * rng.choice((0.8, 0.95, 1.05, 1.2))
        parts = [part * near_it[:, None] for part in parts]
    for plan, state in enumerate(t.f.rows):
        turn = sum(parts[0][plan]) + sum(parts[1][plan])
        far = sum(w[state, b, NETWORK] for w in (t.f.layers.wire_forward, t.f.layers.wire_backward) for b in range(t.f.share.shape[1]))  # fmt: skip
        met = far > 0 and 2.0 * sum(t.sends.flow[plan]) > 0.01 * turn
        assert have_company(t, parts)[plan] == (t.f.choices.zero[plan] >= 2 or met)


# --- hosts ----------------------------------------------------------------------------------------------


def host_by_parts(t, is_far):
    """[forward, backward, weight][plan][part] seconds of hosts."""
    f, layers = t.f, t.f.layers
    out = np.zeros((3, PLANS, len(f.share)))
    columns = ((layers.host_forward, (1, 0)), (layers.host_backward, (1, 1)), (layers.host_weight, (0, 1)))  # fmt: skip
    is_late = is_far and f.task.runtime.network_polling is not None
    for phase, (column, copies) in enumerate(columns):
        for plan, state in enumerate(f.rows):
            for part in range(len(f.share)):
                for b in blocks_of(f, part):
                    out[phase, plan, part] += column[state, b]
                    if f.choices.zero[plan] >= 3:
                        out[phase, plan, part] += layers.host_copied[state, b] @ copies
                    if is_late:
                        out[phase, plan, part] += layers.late[state, b, phase]
    return out


def behind_by_blocks(t, is_late, state):
    """[forward, backward, weight][block] seconds that hosts fall behind devices, and leads."""
    layers = t.f.layers
    columns = ((layers.host_forward, layers.forward), (layers.host_backward, layers.backward), (layers.host_weight, layers.weight))  # fmt: skip
    late = [
        [host[state, b] + is_late * layers.late[state, b, phase] - max(device[state, :, b]) for b in range(t.f.share.shape[1])]
        for phase, (host, device) in enumerate(columns)
    ]  # fmt: skip
    return late, (layers.late_lead if is_late else layers.lead)[state].T


class FarSends:
    """Sends that cross the network or not, as told."""

    def __init__(self, t, is_far):
        self.is_far, self.seconds, self.leaving = is_far, t.sends.seconds, t.sends.leaving


@quick
@given(timed_fleets(), SEEDS, st.booleans())
def test_steps_are_no_faster_than_hosts_issue_them(t, seed, is_far):
    f, runtime = t.f, t.f.task.runtime
    parts, sends = list(parts_of(t, np.random.default_rng(seed))), FarSends(t, is_far)
    host = host_by_parts(t, is_far)
    near(issue_seconds(f, sends), host)
    found = issued(parts, f, sends, t.puts_off)
    waits = runtime.host.host_blocks_on_pipeline and f.stages > 1
    ahead = [[stage_sum(f, host[0, n] + host[1, n], s) for s in range(f.stages)] for n in range(PLANS)]  # fmt: skip
    near(running_ahead(f, sends), np.zeros((PLANS, f.stages)) if waits else ahead)
    if not waits:
        near(found, parts)
        return
    last = len(f.share) - 1
    for plan, state in enumerate(f.rows):
        late, leads = behind_by_blocks(t, is_far and runtime.network_polling is not None, state)
        lead = max(own - max(0.0, behind) for own, behind in zip(leads[0], late[0], strict=True))
        for part in range(last + 1):
            device = [column[plan, part] for column in parts]
            issue = [column[plan, part] for column in host]
            if not runtime.pipeline.overlaps_pipeline:  # a host goes on while its stage sends
                out, back = (float(way[plan, part]) for way in sends.leaving(sends.seconds))
                issue[0], issue[1] = max(issue[0] - out, 0.0), max(issue[1] - back, issue[2])
            forward, backward, weight = (max(d, h) for d, h in zip(device, issue, strict=True))
            if t.puts_off[plan]:
                backward = max(device[1] - device[2], issue[1] - issue[2]) + weight
            turn = max(device[0] + device[1], issue[0] + issue[1])
            whole = forward, backward
            if part == 0:  # nothing comes in going forward …
                forward = max(turn - whole[1], device[0])
            if part == last:  # … nor, at the end, going back
                backward = max(turn - (forward if last == 0 else whole[0]), device[1])
            near([column[plan, part] for column in found], [forward + max(lead, 0.0), backward + max(lead, 0.0), weight])  # fmt: skip


@quick
@given(timed_fleets(), st.booleans())
def test_hosts_have_to_be_ahead_of_every_block_of_a_step(t, is_far):
    """A block starves by its own lead and by what hosts have fallen behind over those before it."""
    f = t.f
    found = leads(f, FarSends(t, is_far))
    for plan, state in enumerate(f.rows):
        late, own = behind_by_blocks(t, is_far and f.task.runtime.network_polling is not None, state)  # fmt: skip
        for part in range(len(f.share)):
            for phase in range(3):
                order = blocks_of(f, part)
                order = order if phase == 0 else order[::-1]
                before = [sum(late[phase][b] for b in order[:n]) for n in range(len(order))]
                lead = max(so_far + own[phase][b] for so_far, b in zip(before, order, strict=True))
                near(found[phase][plan, part], max(lead, 0.0))


# --- what outlasts the last backward step -----------------------------------------------------------------


def way_to(works, sends, stage):
    """Over all stages before one, and the sends between."""
    return sum(works[:stage]) + sum(sends[:stage])


@quick
@given(timed_fleets(), SEEDS)
def test_how_much_sooner_a_stage_is_through(t, seed):
    rng = np.random.default_rng(seed)
    f, parts = t.f, parts_of(t, rng)
    send, seconds = (
        sends_of(f, rng),
        SECOND * rng.uniform(1.0, 60.0, PLANS),
    )
    near(_ways(f.first_chunk(parts[1]), send), [[way_to(parts[1][n], send[n], s) for s in range(f.stages)] for n in range(PLANS)])  # fmt: skip
    found = _sooner(t, parts, send, seconds)
    for plan in range(PLANS):
        forward, back = parts[0][plan], parts[1][plan]
        count, first = f.counts[plan], parts[1][plan][: f.stages]
        for stage in range(f.stages):
            way = way_to(back, send[plan], stage)
            if t.puts_off[
                plan
            ]:  # work that was put off fills the time, as far as there is some left
                busy = way_to(forward, send[plan], stage) + count * stage_sum(f, forward + back, stage)  # fmt: skip
                way = min(way, max(seconds[plan] - busy, 0.0))
            if t.follows[plan]:
                way += (count - 1) * (max(first) - max(first[stage:]))
            near(found[plan, stage], way)


def while_exchanged(t, seconds, wires):
    """Of a second of work beside an exchange of replicas: seconds on top, and seconds of the exchange that go by.
    Kernels and the exchange slow each other, collectives on the same links take as long again, others do not mind."""
    way = NETWORK if t.replicas.crosses else INSIDE
    inside, far = (wire / max(seconds, 1e-30) for wire in wires)
    kernels = max(1.0 - inside - far, 0.0)
    longer = kernels * (t.slow[way] - 1.0) + (far if way == NETWORK else inside)
    return longer, kernels * t.slow[way] / t.slowed[way] + 1.0 - kernels


def backward_while_exchanged(t, plan, stage):
    f, state = t.f, t.f.rows[plan]
    held = [b for chunk in range(f.chunks) for b in blocks_of(f, chunk * f.stages + stage)]
    wires = sum(f.layers.wire_backward[state, b] for b in held) * (not t.puts_off[plan])
    longer, moved = while_exchanged(t, sum(max(f.layers.backward[state, :, b]) for b in held), wires)  # fmt: skip
    # what goes with every micro-batch has made steps longer before
    return (0.0 if f.choices.zero[plan] >= 2 else longer), moved


def outlasting(exchange, work, longer, moved):
    """What of an exchange is left after so much work, and by how much that takes longer."""
    both = min(work, exchange / moved)
    return exchange - both * moved + both * longer


@quick
@given(timed_fleets(), SEEDS)
def test_buckets_follow_one_another_once_they_are_made(t, seed):
    f, runtime, kind = t.f, t.f.task.runtime, 3
    backward = SECOND * np.random.default_rng(seed).uniform(0.5, 4.0, (PLANS, f.stages))
    buckets = t.replicas.reductions(kind)
    found = _exposed(t, buckets, backward, kind, _backward_overlap(t))
    for plan, state in enumerate(f.rows):
        for stage in range(f.stages):
            whole = buckets.each[plan, stage] * buckets.pieces[plan, stage]
            mine = whole / f.chunks
            others = (f.chunks - 1) * min(f.stages, f.counts[plan]) * backward[plan, stage]
            others = max(whole - mine - others, 0.0)
            last, work = min(buckets.last[plan, stage], mine), backward[plan, stage]
            longer, moved = backward_while_exchanged(t, plan, stage)
            late = last + min(work, (mine - last) / moved) * longer
            held = blocks_of(f, stage)
            made = [f.layers.reduced[state, b, kind] for b in held]
            works = [max(f.layers.backward[state, :, b]) for b in held]
            scale = backward[plan, stage] / max(sum(works), 1e-30)
            for block in set(held):
                last = max(place for place, b in enumerate(held) if b == block)
                moving = mine * sum(made[: last + 1]) / max(sum(made), 1e-30)
                room = scale * sum(works[:last])
                before = min(work - room, (mine - moving) / moved) * longer
                late = max(late, before + outlasting(moving, room, longer, moved))
            if f.choices.zero[plan] >= 1 and not runtime.gradients.overlaps_scatters:
                late = mine
            near(
                found[plan, stage],
                (late if runtime.gradients.overlaps_gradients else mine) + others,
            )


@quick
@given(timed_fleets(), SEEDS)
def test_what_stages_reduce_makes_the_last_micro_batches_late(t, seed):
    """Of the last one its own step and its send are longer, of the first one of the next chunk what it still meets: the
    later it comes, the less, and it comes later by what it met at the other stages."""
    f = t.f
    rng = np.random.default_rng(seed)
    moving, backward = (rng.uniform(0.1, 4.0, (PLANS, f.stages)) for _ in range(2))
    pieces = rng.integers(1, 5, (PLANS, f.stages)).astype(float)
    found = _draining(t, moving, pieces, backward, _backward_overlap(t))
    for plan in range(PLANS):
        own, later = [], []
        for stage in range(f.stages):
            longer, moved = backward_while_exchanged(t, plan, stage)
            exchange, work = moving[plan, stage], backward[plan, stage]
            beside = min(work * (1.0 - max(t.at_end()[plan], 1.0 / pieces[plan, stage])), exchange / moved)  # fmt: skip
            left = exchange - beside * moved
            sent = t.sends.flow[plan, stage - 1] if stage and t.replicas.crosses else 0.0
            own.append(beside * longer + min(left, sent))
            later.append(min(left * longer / moved / (1.0 + (f.stages - 1) * longer / moved), work * longer))  # fmt: skip
            if later[-1] < work * longer:  # it meets what is left when it comes
                near(later[-1], longer * (left - (f.stages - 1) * later[-1]) / moved)
        for stage in range(f.stages):
            expected = sum(own[stage + 1 :]) + (f.chunks - 1) * max(sum(own), sum(later))
            is_alone = f.stages == 1 or f.choices.zero[plan] >= 2
            near(found[plan, stage], 0.0 if is_alone else expected)


@quick
@given(timed_fleets(), SEEDS)
def test_split_gradients_stream_from_the_first_backward_step_on(t, seed):
    rng = np.random.default_rng(seed)
    f, parts = t.f, parts_of(t, rng)
    send = sends_of(f, rng)
    found, firsts = _streaming(t, parts, send), _first_backward(t, parts, send)
    way, far = (NETWORK if t.replicas.crosses else INSIDE), t.replicas.crosses
    fetched = t.replicas.gathers(False, True)
    for plan, state in enumerate(f.rows):
        count, follows = f.counts[plan], bool(t.follows[plan])
        crowd = 0.0 if follows else t.crowded()[plan]
        for stage in range(f.stages):
            first = sum(parts[0][plan]) + sum(send[plan])
            for after in range(f.stages - 1, stage, -1):
                part = len(f.share) - f.stages + after
                first += parts[1][plan][part] + send[plan][part - 1]
            if follows:
                first += (count - 1) * max(*parts[0][plan], *send[plan])
            near(firsts[plan, stage], first)
            mine = [b for chunk in range(f.chunks) for b in blocks_of(f, chunk * f.stages + stage)]
            ahead = back = 0.0
            moved = stage_sum(f, t.moved[plan], stage)  # beside kernels, which slow it
            if far:
                ahead, back = (sum(w[state, b, NETWORK] for b in mine) for w in (f.layers.wire_forward, f.layers.wire_backward))  # fmt: skip
                if fetched is not None and t.replicas.gathers_by == NETWORK:
                    moved += sum(fetched[plan, b] for b in mine) * (1.0 + crowd)
            wire = back + crowd * ahead
            pairs = (f.layers.forward, f.layers.wire_forward), (f.layers.backward, f.layers.wire_backward)  # fmt: skip
            forward, backward = (max(0.0, sum(work[state, :, b].max() - sum(w[state, b]) for b in mine)) for work, w in pairs)  # fmt: skip
            kernels = count * (backward + (0.0 if follows else forward))
            busy = min(kernels * t.slow[way], count * moved * t.slowed[way])
            link = count * (moved + wire) + busy * (1.0 - 1.0 / t.slowed[way])
            if far:
                out, home = (stage_sum(f, way_[plan], stage) for way_ in t.sends.leaving(t.sends.flow))  # fmt: skip
                link += count * (home + (0.0 if follows else t.crowded()[plan] * out))
            near(found[plan, stage], first + link if f.choices.zero[plan] >= 2 else 0.0)


@quick
@given(timed_fleets(), SEEDS)
def test_what_outlasts_a_pipeline_is_the_later_of_the_last_buckets_and_the_stream(t, seed):
    rng = np.random.default_rng(seed)
    f, parts = t.f, parts_of(t, rng)
    send, seconds = (
        sends_of(f, rng),
        SECOND * rng.uniform(1.0, 60.0, PLANS),
    )
    slow = rng.uniform(0.5, 3.0, (PLANS, f.stages)) * f.summed(parts[0] + parts[1])
    stream = _streaming(t, parts, send)
    for host in (np.zeros_like(slow), slow):
        lag = np.maximum(1.0, host / f.summed(parts[0] + parts[1]))
        late = tuple(np.array([[part[n, p] * lag[n, p % f.stages] for p in range(len(f.share))] for n in range(PLANS)]) for part in parts)  # fmt: skip
        making = np.where(t.puts_off[:, None], late[2], late[1])
        made, beside, moved = making[:, : f.stages], _backward_overlap(t), t.replicas.reductions(3)
        buckets = _exposed(t, moved, made, 3, beside)
        buckets += _draining(t, moved.each * moved.pieces / f.chunks, moved.pieces / f.chunks, made, beside)  # fmt: skip
        sooner = _sooner(t, late, send, seconds)
        done = SECOND * rng.uniform(
            1.0, 60.0, (1, f.stages)
        )  # of the first plan, whose pipeline was run
        for runs in ((np.zeros(0, dtype=np.int64), done[:0]), (np.array([0]), done)):
            sooner[runs[0]] = runs[1].max(initial=0.0) - runs[1]
            expected = np.maximum(buckets - sooner, stream - seconds[:, None])
            near(exposed_reductions(t, parts, send, seconds, host, runs), expected)


@quick
@given(timed_fleets(), SEEDS)
def test_updated_weights_are_gathered_before_or_beside_the_next_forward_pass(t, seed):
    rng = np.random.default_rng(seed)
    f, forward = t.f, SECOND * rng.uniform(0.5, 3.0, (PLANS, len(t.f.share)))
    send, gathers = (
        sends_of(f, rng),
        t.replicas.parameters(),
    )
    starts, ends = parameters(t, forward, send)
    if not f.task.runtime.sharding.overlaps_parameter_gather:
        near(starts, np.zeros(PLANS))
        near(ends, gathers)
        return
    near(ends, np.zeros_like(gathers))
    gather = t.replicas.block_parameters()
    for plan, state in enumerate(f.rows):
        late = []
        for part in range(len(f.share)):
            held = blocks_of(f, part)
            works = [max(f.layers.forward[state, :, b]) for b in held]
            wires = sum(f.layers.wire_forward[state, b] for b in held)
            beside = while_exchanged(t, sum(works), wires)
            first, scale = gather[plan, held[0]], forward[plan, part] / sum(works)
            others = [sum(gather[plan, b] for b in held[1 : n + 1]) for n in range(len(held))]
            late.append(max(first + outlasting(others[n], scale * sum(works[:n]), *beside) for n in range(len(held))))  # fmt: skip
        for stage in range(f.stages):  # the first chunk has the way to its stage for it
            late[stage] -= way_to(forward[plan], send[plan], stage)
        by_chunk = [max(0.0, *late[c * f.stages : (c + 1) * f.stages]) for c in range(f.chunks)]
        near(starts[plan], sum(by_chunk))
