"""Rank by rank: a drawn graph without folding, slow ranks, and gossip that waits for neighbours only."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.clocks import joint_clocks, neighbour_clocks
from support.verify import verify

from foretrain import Cluster
from foretrain.analysis.prediction import STALLS
from foretrain.analysis.stalls import stalls
from foretrain.compile.execution import CHAIN, COLLECTIVE, UPDATE
from foretrain.cost.collectives import algorithms_for
from foretrain.cost.collectives.graphs import Graph, graph
from foretrain.cost.network import Network
from foretrain.errors import InputError
from foretrain.simulate import answer, compile_scenario, cost_scenario, network_for, simulate
from foretrain.testing.asking import ask

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
    assert compile_scenario(asked, is_folded=False).fold.classes == 64
    apart, folded = answer(asked, is_folded=False), answer(asked)
    assert apart.step_seconds == pytest.approx(folded.step_seconds, rel=1e-9)
    for kind, seconds in apart.stalls.items():
        assert seconds == pytest.approx(folded.stalls[kind], abs=1e-9 * apart.step_seconds)


def test_a_slow_rank_shows_as_imbalance_of_the_others(drawn):
    even, uneven = (
        answer(question(drawn, stragglers=slow), is_folded=False) for slow in (None, {5: 4.0})
    )
    assert even.stalls["imbalance"] < 1e-6
    # 63 of 64 ranks wait for one that computes four times as long
    compute = even.stalls["compute"]
    assert uneven.stalls["imbalance"] == pytest.approx(63 / 64 * 3 * compute, rel=0.25)
    # what it computes longer hides part of the communication that others had to wait for
    assert uneven.step_seconds > even.step_seconds + 1.5 * compute


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
    with pytest.raises(InputError, match="isolated"):
        graph("edges:0>1,1>0", 3)
    with pytest.raises(InputError, match="switches"):
        Network(Cluster.of("4 x p3.2xlarge")).algorithms("neighbour_all_reduce(network)")
    assert algorithms_for("neighbour_all_reduce(edges:0>1,1>0)")[0].name == "gossip"


# --- the simulated step waits for neighbours only -----------------------------------------------

RING = "neighbour_all_reduce(ring_bidirectional)"
PLAIN = {"host_seconds_per_kernel": 0.0, "host_seconds_per_collective": 0.0, "overlap_slows": False}


class Step:
    """A step of 16 replicas (or as asked), rank by rank."""

    def __init__(self, synchronises, slow=None, on="16 x p3.2xlarge", **options):
        cluster = Cluster.of(on)
        self.ranks = cluster.device_count
        self.question = ask(
            "resnet50", on=cluster, plan=f"dp{self.ranks}", batch=32 * self.ranks, micro_batch=32,
            runtime="ddp", stragglers=slow,
            runtime_options={"synchronises": synchronises, **PLAIN, **options},
        )  # fmt: skip
        self.graph = compile_scenario(self.question, is_folded=False)
        verify(self.graph)
        self.costs = cost_scenario(self.question, self.graph)
        self.run = simulate(self.graph, self.costs)

    def of(self, kept, value, pick):
        return np.array(
            [pick(value[kept & (self.graph.task_class == r)]) for r in range(self.ranks)]
        )

    @property
    def computed(self):
        """When each rank has its gradients."""
        before = (self.graph.task_kind == CHAIN) & (self.graph.task_phase != UPDATE)
        return self.of(before, self.run.end, np.max)

    @property
    def heard(self):
        """When each rank goes on to its update."""
        return self.of(self.graph.task_phase == UPDATE, self.run.start, np.min)

    @property
    def ends(self):
        return self.of(self.graph.task_kind >= 0, self.run.end, np.max)

    @property
    def imbalance(self):
        found = stalls(self.graph, self.costs, self.run, float(self.run.end.max()))
        return found.by_class[:, STALLS.index("imbalance")]


def late(slow, usual):
    """Ranks that end later than they would if nobody was slow."""
    return np.flatnonzero(slow.ends > usual.ends * (1 + 1e-9)).tolist()


@pytest.mark.parametrize("options", [{}, {"overlaps_gradients": False}, {"bucket_bytes": 1e6}])
def test_a_slow_rank_delays_its_neighbours_alone(options):
    usual, slow = Step(RING, **options), Step(RING, {5: 2.0}, **options)
    assert late(slow, usual) == [4, 5, 6]
    others = [rank for rank in range(16) if rank not in (4, 5, 6)]
    assert slow.ends[others] == pytest.approx(usual.ends[others], rel=1e-12)
    # nothing they do is held up: all they wait for is the end of the step
    assert slow.imbalance[others] == pytest.approx(slow.ends.max() - slow.ends[others], rel=1e-9)
    if options.get("overlaps_gradients") is False:
        # followed back, the neighbours' wait is what rank 5 sends and before that what it computes longer
        held_up = slow.imbalance[[4, 6]] - (slow.ends.max() - slow.ends[[4, 6]])
        assert held_up == pytest.approx(slow.computed[5] - slow.computed[4], rel=1e-9)


def test_an_all_reduce_makes_everybody_late():
    usual, slow = Step("all_reduce"), Step("all_reduce", {5: 2.0})
    assert late(slow, usual) == list(range(16))
    assert np.ptp(slow.heard) <= 1e-12 * slow.ends.max()


@pytest.mark.parametrize("name", ["ring_bidirectional", "ring_left", "exponential2", "torus2d"])
def test_the_step_keeps_the_clocks_of_gossip(name):
    """One buffer after the chain: a rank goes on when it has sent, and heard all who send to it."""
    step = Step(f"neighbour_all_reduce({name})", {5: 2.0, 11: 1.3}, overlaps_gradients=False)
    found, own = graph(name, 16), np.arange(16)
    moving = step.graph.task_kind == COLLECTIVE
    assert moving.sum() == 16
    exchange = float((step.run.end - step.run.start)[moving].min())
    ends = np.concatenate([found.src, own]), np.concatenate([found.dst, own])
    clocks = neighbour_clocks(Graph(16, *ends, found.mixing), step.computed[None, :], exchange)
    assert step.heard == pytest.approx(clocks[0], rel=1e-9)
    # without its own sends, as the recursion has it, only ranks that are slower than all they hear differ
    bare = neighbour_clocks(found, step.computed[None, :], exchange)[0]
    assert np.flatnonzero(np.abs(step.heard - bare) > 1e-9 * bare).tolist() == [5, 11]


def test_domains_of_a_hierarchical_exchange_wait_for_those_they_hear():
    asked = {
        "synchronises": "hierarchical_neighbour_all_reduce(ring_left)",
        "on": "4 x p3.16xlarge",
    }
    usual, slow = Step(**asked), Step(slow={8: 2.0}, **asked)
    assert late(slow, usual) == list(range(16))  # domain 1, and 0 to which it sends


def test_one_rank_of_a_domain_goes_out_and_the_others_do_not_wait_for_it():
    step = Step("inner_outer_all_reduce", on="2 x p3.16xlarge", overlaps_gradients=False)
    exchange = step.heard - step.computed
    inside = [rank for rank in range(16) if rank not in (0, 8)]
    assert exchange[inside].max() < 0.5 * exchange[[0, 8]].min()


def test_a_rank_that_only_hears_waits_and_sends_nothing():
    """Of three nodes the last is sent to and sends to nobody."""
    asked = {"synchronises": "neighbour_all_reduce(edges:0>1,1>0,0>2)", "on": "3 x p3.2xlarge"}
    usual, slow = Step(**asked), Step(slow={0: 2.0}, **asked)
    silent = (usual.graph.task_kind == COLLECTIVE) & (usual.graph.task_class == 2)
    assert (usual.costs.volume[silent] == 0).all()
    assert late(slow, usual) == [0, 1, 2]
    assert late(Step(slow={2: 2.0}, **asked), usual) == [2]


def test_ranks_that_are_alike_stay_one_task():
    asked = Step(RING).question
    folded = compile_scenario(asked)
    assert folded.fold.classes == 1
    joint = compile_scenario(Step("all_reduce").question)
    assert (folded.task_kind == COLLECTIVE).sum() == (joint.task_kind == COLLECTIVE).sum()


@pytest.mark.parametrize("name", [RING, "inner_outer_all_reduce", "neighbour_all_reduce(star)"])
def test_what_senders_load_adds_up_to_what_their_group_does(name):
    step = Step(name, on="2 x p3.16xlarge")
    network, routes = network_for(step.question), step.costs.network_routes
    (algorithm,) = network.algorithms(name)
    flows = algorithm.flows(np.arange(16)[None, :], network.domain_of)
    ways = network.cluster.topology.routes(flows.src, flows.dst)
    load = np.bincount(ways.links, flows.weight[ways.owner] * ways.share, len(network.capacity))
    mine = [n for (_, pattern, _), n in routes.number.items() if pattern == algorithm.pattern]
    assert len(mine) == 16
    entries = np.concatenate([np.arange(routes.ptr[n], routes.ptr[n + 1]) for n in mine])
    total = np.bincount(routes.link[entries], routes.weight[entries], len(routes.capacity))
    assert total == pytest.approx(load[routes.example], rel=1e-12)
    assert routes.count.sum() == (load > 0).sum()
