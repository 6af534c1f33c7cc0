"""Which pipelines are run on the engine and with what steps, and copies to host memory: plan by plan in plain numbers."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fleets import PLANS, SECOND, fleets, parts_of, timed_fleets

from foretrain.planning import steps, times
from foretrain.planning.exchanges import SendLinks
from foretrain.planning.short_runs import Limits, _pieces
from foretrain.planning.times import Times

SEEDS = st.integers(0, 2**31)
quick = settings(max_examples=30, deadline=None)


def near(found, expected):
    assert np.asarray(found, float) == pytest.approx(
        np.asarray(expected, float), rel=1e-9, abs=1e-12
    )


def blocks_of(f, part):
    """Blocks of a part, one after the other."""
    return [b for b, count in enumerate(f.share[part].astype(int)) for _ in range(count)]


def on_stage(f, part, by_kind):
    """The slowest of the kinds of devices that a part's stage runs on."""
    return max(value for value, is_there in zip(by_kind, f.kinds[part % f.stages], strict=True) if is_there)  # fmt: skip


# --- which are run ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "tasks", "is_met"),
    [
        (0.02, 100, True),
        (0.01, 100, False),
        (0.02, 200, True),
        (0.02, 201, False),
        (0.005, 1, False),
    ],
)
def test_a_run_is_worth_it_where_there_is_something_to_tell_and_it_is_short(share, tasks, is_met):
    limits = Limits(least_share=0.01, tasks_per_share=10_000, rounds=2, even=0.1, tasks_per_program=9)  # fmt: skip
    assert limits.are_met(np.array([share]), np.array([tasks])).tolist() == [is_met]


@quick
@given(timed_fleets(), SEEDS)
def test_pipelines_are_run_where_what_waits_is_much_of_their_time(t, seed):
    """By what steps that send take longer and by sends, at first; then by what a pipeline without them takes."""
    f, rng = t.f, np.random.default_rng(seed)
    lone, parts = list(parts_of(t, rng)), parts_of(t, rng)
    seconds, bare, sizes = (rng.uniform(5.0, 50.0, PLANS) * unit for unit in (SECOND, SECOND, 1.0))
    shares, run = [], []

    def are_met(share, tasks):
        shares.append((share.copy(), tasks.copy()))
        return share > 0.4

    def run_pipelines(those, work):
        run.append((those.f.choices.zero.tolist(), work))
        return np.ones((len(work[0]), f.stages))

    small = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(times, "limits", lambda: SimpleNamespace(are_met=are_met))
        patch.setattr(times, "tasks_of_run", lambda _: sizes)
        patch.setattr(times, "_pipelined", lambda those, alone, send: _of_few(small, bare, send, alone, lone))  # fmt: skip
        patch.setattr(times, "run_pipelines", run_pipelines)
        rows, done = Times._runs(SimpleNamespace(f=f, t=t), seconds, lone, parts)
    if f.stages == 1:
        assert (len(rows), done.shape, shares) == (0, (0, 1), [])
        return
    work, waiting = ([sum(each[0]) + sum(each[1]) for each in _by_plan(column)] for column in (lone, parts))  # fmt: skip
    most = [
        (slow - own) / own + 2.0 * f.counts[n] * sum(t.sends.seconds[n]) / seconds[n]
        for n, (own, slow) in enumerate(zip(work, waiting, strict=True))
    ]
    near(shares[0][0], most)
    near(shares[0][1], sizes)
    few = [n for n in range(PLANS) if most[n] > 0.4]
    expected = []
    if few:
        share = [seconds[n] / bare[place] - 1.0 for place, n in enumerate(few)]
        near(shares[1][0], share)
        near(shares[1][1], sizes[few])
        expected = [n for n, one in zip(few, share, strict=True) if one > 0.4]
    assert rows.tolist() == expected
    assert done.shape == (len(expected), f.stages)
    if expected:
        ((zero, given_work),) = run
        assert zero == f.choices.zero[expected].tolist()
        for phase in range(3):
            near(given_work[phase], lone[phase][expected])


def _of_few(small, bare, send, alone, lone):
    """What a bare pipeline takes: it is asked for with the work of stages alone, and without sends."""
    assert not send.any()
    rows = [int(np.flatnonzero((lone[0] == row).all(axis=1))[0]) for row in alone[0]]
    for phase in range(3):
        near(alone[phase], lone[phase][rows])
    small.extend(rows)
    return bare[: len(rows)]


def _by_plan(parts):
    return [[column[n] for column in parts] for n in range(PLANS)]


# --- with what steps ----------------------------------------------------------------------------------------


@quick
@given(timed_fleets(host_delay_on_network=0.0), SEEDS)
def test_steps_of_a_run_are_work_and_what_arrives_and_hosts_that_issue_it(t, seed):
    f, rng = t.f, np.random.default_rng(seed)
    parts, count = parts_of(t, rng), len(f.share)
    arrivals = SECOND * rng.uniform(0.0, 1.0, (2, PLANS, count))
    late = SECOND * rng.uniform(0.0, 1.0, (PLANS, 1, count - 1))
    sends = SimpleNamespace(
        arrivals=lambda: arrivals, latencies=lambda links: late, flow=t.sends.flow, is_far=False
    )
    links = SendLinks([np.arange(1)], np.zeros((1, 2, 0)), np.ones((1, 2)))
    found = _pieces(replace(t, sends=sends), parts, links)
    near(found.latency, late[:, 0])
    near(found.flow, t.sends.flow)
    layers = f.layers
    columns = (
        (layers.forward, layers.host_forward, (1, 0)), (layers.backward, layers.host_backward, (1, 1)),
        (layers.weight, layers.host_weight, (0, 1)),
    )  # fmt: skip
    for plan, state in enumerate(f.rows):
        for part in range(count):
            device = [parts[0][plan, part] + arrivals[0, plan, part], parts[1][plan, part] + arrivals[1, plan, part], parts[2][plan, part]]  # fmt: skip
            host, lead = [], []
            for phase, (seconds, issue, copies) in enumerate(columns):
                held = blocks_of(f, part)
                copied = [layers.host_copied[state, b] @ copies * (f.choices.zero[plan] >= 3) for b in held]  # fmt: skip
                host.append(sum(issue[state, b] for b in held) + sum(copied))
                behind, ahead = 0.0, 0.0
                for b in held if phase == 0 else held[::-1]:
                    ahead = max(ahead, behind + layers.lead[state, b, phase])
                    behind += issue[state, b] - max(seconds[state, :, b])
                lead.append(ahead)
            if t.puts_off[plan]:  # weight gradients are steps of their own
                device[1], host[1] = max(device[1] - device[2], 0.0), max(host[1] - host[2], 0.0)
            for phase in range(3):
                at = phase * count + part
                near(found.device[plan, at], device[phase])
                near(found.host[plan, at], host[phase])
                near(found.lead[plan, at], min(lead[phase], host[phase]))


# --- copies to host memory ----------------------------------------------------------------------------------


@quick
@given(fleets(), SEEDS, st.sampled_from(((1.0, 1.0), (1.3, 1.5))))
def test_copies_to_host_memory_slow_each_other_while_both_go(f, seed, factors):
    into, out = factors
    rng = np.random.default_rng(seed)
    shape = (PLANS, f.kinds.shape[1], f.share.shape[1])
    copies, backward = (SECOND * rng.uniform(least, 2.0, shape) for least in (0.0, 0.5))
    ahead = SECOND * rng.uniform(0.5, 5.0, (PLANS, len(f.share)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "copied", lambda _: copies)
        patch.setattr(steps, "_between_copies", lambda _: factors)
        busy_slot = steps.copies_out(f, ahead)
        longer = steps._behind_copies(f, copies, backward, ahead)
    for plan in range(PLANS):
        for part in range(len(f.share)):
            held = blocks_of(f, part)

            def summed(column, part=part, held=held):
                return on_stage(f, part, [sum(kind[b] for b in held) for kind in column])

            def waited(factor, plan=plan, held=held, summed=summed):
                """Copies of each block beside the work of the one before; nothing is beside the first that comes back."""
                moving = copies[plan] * factor
                more = np.maximum(moving - backward[plan], 0.0)
                return summed(more) + moving[:, held[-1]].max() - more[:, held[0]].max()

            total, work = summed(copies[plan]), summed(backward[plan])
            left = max(total - ahead[plan, part], 0.0)
            near(busy_slot[plan, part], total + left * (out - 1.0))
            alone, crowded = work + waited(1.0), work + waited(into)
            busy = min(total * into / crowded, 1.0)
            met = min(left * (1.0 + (out - 1.0) * busy) / crowded, 1.0)
            near(longer[plan, part], met * crowded + (1.0 - met) * alone - work)


@quick
@given(fleets())
def test_what_stays_is_not_copied(f):
    assert steps.copied(f) is None
    assert not steps.copies_out(f, np.ones((PLANS, len(f.share)))).any()
