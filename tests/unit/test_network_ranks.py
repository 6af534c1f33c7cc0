"""Rank by rank: a drawn graph without folding, slow ranks, and gossip that waits for neighbours only."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from foretrain import Cluster
from foretrain.cost.collectives import algorithms_for
from foretrain.cost.collectives.clocks import joint_clocks, neighbour_clocks
from foretrain.cost.collectives.graphs import graph
from foretrain.cost.network import Network
from foretrain.errors import InputError
from foretrain.forecast import answer, ask, compile_question

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The random graph of the benchmark: 64 nodes, every cable unlike in its two directions."""
    from networks import drawn as text

    path = tmp_path_factory.mktemp("graph") / "random-graph.yaml"
    path.write_text(text())
    return Cluster.of(path)


def question(cluster, stragglers=None, **options):
    return ask(
        "resnet50", on=cluster, plan="dp64", batch=2048, micro_batch=32, runtime="ddp",
        stragglers=stragglers, runtime_options=options,
    )  # fmt: skip


def test_the_graph_is_unlike_in_its_two_directions(drawn):
    fabric = drawn.network_fabric
    rate = {(t, h): c for t, h, c in zip(fabric.tail, fabric.head, fabric.capacity, strict=True)}
    late = {(t, h): c for t, h, c in zip(fabric.tail, fabric.head, fabric.latency, strict=True)}
    assert sum(rate[t, h] != rate[h, t] for t, h in rate) > 0.9 * len(rate)
    assert sum(late[t, h] != late[h, t] for t, h in late) > 0.9 * len(late)


def test_every_rank_by_itself_agrees_with_folding(drawn):
    asked = question(drawn)
    assert compile_question(asked, is_folded=False).fold.classes == 64
    apart, folded = answer(asked, is_folded=False), answer(asked)
    assert apart.step_seconds == pytest.approx(folded.step_seconds, rel=1e-9)
    for kind, seconds in apart.stalls.items():
        assert seconds == pytest.approx(folded.stalls[kind], abs=1e-9 * apart.step_seconds)


def test_a_slow_rank_shows_as_imbalance_of_the_others(drawn):
    even, uneven = (
        answer(question(drawn, stragglers=slow), is_folded=False) for slow in (None, {5: 2.0})
    )
    assert even.stalls["imbalance"] < 1e-6
    # 63 of 64 ranks wait for one that computes twice as long
    compute = even.stalls["compute"]
    assert uneven.stalls["imbalance"] == pytest.approx(63 / 64 * compute, rel=0.25)
    assert uneven.step_seconds > even.step_seconds + 0.5 * compute


# --- who waits for whom -------------------------------------------------------------------------


def hops(graph, start):
    """Steps after which something at `start` can have reached each rank."""
    far = np.full(graph.ranks, -1)
    far[start], now = 0, 0
    while (far < 0).any():
        reached = graph.dst[far[graph.src] == now]
        now += 1
        far[reached[far[reached] < 0]] = now
    return far


@pytest.mark.parametrize("name", ["ring_bidirectional", "exponential2", "torus2d", "edges"])
def test_delay_of_a_slow_rank_spreads_one_hop_per_step(name, drawn):
    if name == "edges":
        (algorithm,) = Network(drawn).algorithms("neighbour_all_reduce(network)")
        name = algorithm.graph
    found = graph(name, 64)
    steps = 4
    work = np.full((steps, 64), 1.0)
    usual = neighbour_clocks(found, work, 0.1)
    work[0, 5] = 1.5  # slow once
    late = neighbour_clocks(found, work, 0.1) - usual
    far = hops(found, 5)
    for step in range(steps):
        # in the step itself only rank 5 and those it sends to; each step later one hop further
        assert (late[step] > 1e-12).tolist() == (far <= step + 1).tolist()
    assert late.max() == pytest.approx(0.5)


def test_slack_swallows_a_delay_and_an_all_reduce_does_not():
    found = graph("ring_left", 8)
    work = np.full((3, 8), 1.0)
    work[:, 0] = 2.0  # everybody near rank 0 waits for it anyway
    usual, joint = neighbour_clocks(found, work, 0.1), joint_clocks(work, 0.1)
    work[0, 7] = 1.4  # sends to 6 only; 0 never hears of it in time to matter
    late = neighbour_clocks(found, work, 0.1) - usual
    assert late[:, 0] == pytest.approx(0.0)
    assert late[0, 6] == pytest.approx(0.4)
    assert (joint_clocks(work, 0.1) == joint).all()  # 7 is still faster than the slowest
    assert (joint >= usual - 1e-12).all()


def test_every_edge_may_take_its_own_time():
    found = graph("edges:0>1,1>0,1>2,2>1", 3)
    exchange = np.where((found.src == 0) & (found.dst == 1), 5.0, 0.1)
    clocks = neighbour_clocks(found, np.ones((2, 3)), exchange)
    assert clocks[0].tolist() == pytest.approx([1.1, 6.0, 1.1])
    assert clocks[1].tolist() == pytest.approx([7.1, 7.1, 7.1])


# --- gossip over the user's own cables ----------------------------------------------------------


def test_gossip_over_the_drawn_cables(drawn):
    network = Network(drawn)
    (algorithm,) = network.algorithms("neighbour_all_reduce(network)")
    fabric = drawn.network_fabric
    flows = algorithm.flows(np.arange(64)[None, :], network.domain_of)
    cables = set(zip(fabric.tail.tolist(), fabric.head.tolist(), strict=True))
    assert set(zip(flows.src.tolist(), flows.dst.tolist(), strict=True)) == cables
    loads = network.pattern_loads(algorithm, np.arange(64)[None, :])
    assert (
        np.bincount(loads.link, loads.weight).max() <= 2.0
    )  # neighbours have a cable of their own
    found = answer(question(drawn, synchronises="neighbour_all_reduce(network)"))
    assert found.stalls["network"] > 0


def test_drawn_communication_graphs_are_checked():
    with pytest.raises(InputError) as refused:
        graph("edges:0>1,1>x,2>2,0>9", 3)
    for word in ("'1>x'", "'2>2'", "'0>9'", "0 to 2"):
        assert word in str(refused.value)
    with pytest.raises(InputError, match="alone"):
        graph("edges:0>1,1>0", 3)
    with pytest.raises(InputError, match="switches"):
        Network(Cluster.of("4 x p3.2xlarge")).algorithms("neighbour_all_reduce(network)")
    assert algorithms_for("neighbour_all_reduce(edges:0>1,1>0)")[0].name == "gossip"
