"""Collectives on any group: bytes are kept, programs agree with flows, ports carry what they can."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.cost.collectives import ALGORITHMS
from foretrain.cost.collectives.base import in_order
from foretrain.cost.collectives.ring import Ring
from foretrain.testing.collectives import received, sent

layouts = st.lists(st.integers(0, 3), min_size=2, max_size=12).map(
    lambda domains: in_order(np.array(domains))
)
algorithms = st.sampled_from([a for a in ALGORITHMS if a.name != "send"])


@settings(max_examples=300, deadline=None)
@given(algorithms, layouts)
def test_flows_and_programs_move_the_same_bytes(algorithm, layout):
    n, collective = len(layout), algorithm.collectives[0]
    program = algorithm.program(collective, 1.0, layout)
    if program.uses_switch:
        return
    flows = algorithm.flows(np.arange(n)[None, :], layout)
    volume = algorithm.volume(collective, 1.0, n)
    out, into = sent(flows, n) * volume, received(flows, n) * volume
    assert np.isclose(out.sum(), into.sum())
    assert (flows.weight > 0).all()
    assert (flows.src != flows.dst).all()
    if algorithm.is_bound:
        _check_bound(flows, volume, program, layout)
    elif algorithm.name != "ring":
        ratio = out[program.sent() > 0] / program.sent()[program.sent() > 0]
        assert np.allclose(ratio, ratio[0])
    if algorithm.name == "ring":
        assert np.allclose(out, program.sent())
        assert np.allclose(into, program.received())


def _check_bound(flows, volume, program, layout):
    """The busiest port inside and the busiest one between domains carry no less than the program's."""
    src, dst, size = program.edges()
    for crosses in (False, True):
        ours = (layout[flows.src] != layout[flows.dst]) == crosses
        theirs = (layout[src] != layout[dst]) == crosses
        for end, their_end in ((flows.src, src), (flows.dst, dst)):
            load = np.bincount(end[ours], flows.weight[ours] * volume, minlength=1).max()
            assert load >= np.bincount(their_end[theirs], size[theirs], minlength=1).max() - 1e-9


@settings(max_examples=200, deadline=None)
@given(layouts)
def test_rings_leave_a_domain_through_as_many_ports_as_the_smallest_has(layout):
    n = len(layout)
    flows = Ring().flows(np.arange(n)[None, :], layout)
    crosses = layout[flows.src] != layout[flows.dst]
    smallest = int(np.bincount(layout).min())
    assert np.allclose(sent(flows, n), 1.0)
    assert np.allclose(received(flows, n), 1.0)
    if crosses.any():
        per_port = np.bincount(flows.src[crosses], flows.weight[crosses], minlength=n)
        assert np.isclose(per_port.max(), 1.0 / smallest)
        assert np.allclose(np.bincount(layout[flows.src[crosses]], flows.weight[crosses]), 1.0)


@settings(max_examples=100, deadline=None)
@given(algorithms, st.lists(layouts, min_size=2, max_size=3))
def test_groups_do_not_disturb_each_other(algorithm, several):
    n = min(len(layout) for layout in several)
    domain_of = np.concatenate([layout[:n] + 10 * i for i, layout in enumerate(several)])
    groups = np.arange(n * len(several)).reshape(len(several), n)
    together = algorithm.flows(groups, domain_of)
    for number, group in enumerate(groups):
        mine = together.group == number
        alone = algorithm.flows(group[None, :], domain_of)
        kept = np.stack([together.src[mine], together.dst[mine], together.weight[mine]])
        ours = np.stack([alone.src, alone.dst, alone.weight])
        assert np.array_equal(kept[:, np.lexsort(kept)], ours[:, np.lexsort(ours)])
