"""Rings along cables, ways that take longer, and what may not be asked of a network."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from foretrain import Cluster, predict
from foretrain.cost.collectives import ALGORITHMS, chosen
from foretrain.cost.collectives.cabling import laps, round_trip
from foretrain.cost.collectives.selector import GroupTopology, expect_able, link_efficiency, select
from foretrain.cost.network import Network
from foretrain.errors import InputError

ETHERNET = link_efficiency("network", "ethernet")
RING = next(a for a in ALGORITHMS if a.name == "ring")
DIRECT = (
    "random(p=0.2)", "torus", "torus(dims=3)", "ring", "mesh", "exponential", "binary-tree",
    "fully-connected",
)  # fmt: skip


def ring_rate(cluster: Cluster, follows: bool = True) -> float:
    """Bytes/s of a ring over all devices, at the links' rated bandwidth."""
    network = Network(cluster)
    network.flow_mapping.follows_cables &= follows
    groups = np.arange(cluster.device_count)[None, :]
    loads = network.pattern_loads(RING, groups)
    total = np.bincount(loads.link, loads.weight, minlength=len(network.capacity))
    return float((network.capacity[total > 0] / total[total > 0]).min())


def scarcest(cluster: Cluster) -> float:
    """What the worst joined node can send or receive at most."""
    network, fabric = Network(cluster), cluster.network_fabric
    rate = network.capacity[: network.links][network.is_network[: network.links]]
    doors = np.unique(fabric.port_vertex)
    return min(float(np.bincount(ends, rate)[doors].min()) for ends in (fabric.tail, fabric.head))


@pytest.mark.parametrize("network", DIRECT)
def test_rings_along_cables_beat_the_order_of_ranks_and_no_bound(network):
    cluster = Cluster.of(f"32 x p3.2xlarge on {network}")
    along, in_order = ring_rate(cluster), ring_rate(cluster, follows=False)
    assert along >= in_order * (1 - 1e-9)
    assert along <= scarcest(cluster) * (1 + 1e-6)
    assert along >= 0.8 * scarcest(cluster)


@pytest.mark.parametrize(
    "network", ["star", "fat-tree(leaf_nodes=4, oversubscription=2)", "dragonfly"]
)
def test_switched_networks_keep_the_order_of_ranks(network):
    cluster = Cluster.of(f"16 x p3.2xlarge on {network}")
    assert not Network(cluster).flow_mapping.follows_cables
    assert ring_rate(cluster) == ring_rate(cluster, follows=False)


def test_every_byte_goes_round_every_domain_once():
    cluster = Cluster.of("24 x p3.8xlarge on random(p=0.3)")
    groups = np.arange(96)[None, :]
    flows = Network(cluster).flow_mapping.flows(RING, groups)
    sent, got = (np.bincount(end, flows.weight, minlength=96) for end in (flows.src, flows.dst))
    assert sent == pytest.approx(np.ones(96))
    assert got == pytest.approx(np.ones(96))
    far = flows.src // 4 != flows.dst // 4
    assert np.bincount(flows.src[far] // 4, flows.weight[far]) == pytest.approx(np.ones(24))


def test_uneven_domains_and_groups_of_some_nodes_are_laid_too():
    network = {"topology": "ring"}
    cluster = Cluster.of(
        {
            "nodes": [{"node": "p3.8xlarge", "used": 2}, "2 x p3.8xlarge", "2 x p3.2xlarge"],
            "network": network,
        }
    )
    flows = Network(cluster).flow_mapping.flows(RING, np.arange(12)[None, :])
    assert np.bincount(flows.dst, flows.weight, minlength=12).min() > 0
    eight = Cluster.of("8 x p3.2xlarge on random(p=0.6)")
    flows = Network(eight).flow_mapping.flows(RING, np.array([[0, 2, 4, 6], [1, 3, 5, 7]]))
    assert set(flows.group.tolist()) == {0, 1}
    assert all(src % 2 == dst % 2 for src, dst in zip(flows.src, flows.dst, strict=True))


def test_the_slow_direction_of_a_cable_is_avoided():
    """A ring of cables that are ten times slower one way: nearly all goes the other way."""
    edges = [
        {"ends": [i, (i + 1) % 6], "bandwidth": "10Gb/s", "back_bandwidth": "1Gb/s"}
        for i in range(6)
    ]
    cluster = Cluster.of(
        {"nodes": "6 x p3.2xlarge", "network": {"topology": "graph", "edges": edges}}
    )
    # both directions side by side: 11 Gb/s at the 60 % that TCP reaches
    assert ring_rate(cluster) == pytest.approx(ETHERNET * 11e9 / 8, rel=1e-3)


def test_a_line_drawn_in_any_order_is_walked_along_itself():
    """More nodes than rings are searched among: the walk depth first still finds the line."""
    order = np.random.default_rng(3).permutation(300)
    edges = [[int(a), int(b), "10Gb/s"] for a, b in pairwise(order)]
    cluster = Cluster.of(
        {"nodes": "300 x p3.2xlarge", "network": {"topology": "graph", "edges": edges}}
    )
    assert ring_rate(cluster) == pytest.approx(ETHERNET * 10e9 / 8, rel=1e-9)
    assert ring_rate(cluster, follows=False) < 0.1 * ring_rate(cluster)


@pytest.mark.parametrize(
    "network", ["torus", "torus(dims=3)", "exponential", "random(p=0.05)", "mesh"]
)
def test_large_groups_use_more_than_one_ring(network):
    cluster = Cluster.of(f"300 x p3.2xlarge on {network}")
    assert ring_rate(cluster) >= 0.45 * scarcest(cluster)
    assert ring_rate(cluster) >= 1.5 * ring_rate(cluster, follows=False)


def test_the_same_network_gives_the_same_rings():
    found = [ring_rate(Cluster.of("20 x p3.2xlarge on random(p=0.4)")) for _ in range(2)]
    assert found[0] == found[1]


def test_a_round_trip_visits_all_and_is_cheap():
    rng = np.random.default_rng(0)
    cost = rng.random((40, 40)) + 1.0
    order = rng.permutation(40)
    cost[order, np.roll(order, -1)] = 0.01  # one cheap way round
    found = round_trip(cost)
    assert sorted(found.tolist()) == list(range(40))
    assert cost[found, np.roll(found, -1)].sum() == pytest.approx(0.4)


def test_two_domains_have_one_ring():
    cluster = Cluster.of("2 x p3.2xlarge on ring")
    routes = cluster.topology.routes([0, 0, 1, 1], [0, 1, 0, 1])
    (only,) = laps(2, routes, np.asarray(cluster.topology.capacity))
    assert only.share == 1.0


def test_the_random_network_of_64_takes_seconds_not_most_of_a_minute():
    """A ring in the order of ranks took 41 s; the worst joined node bounds the step from below."""
    spec = "64 x p3.2xlarge on random(p=0.2)"
    found = predict("resnet50", on=spec, plan="dp64", batch=256)
    least = 2 * 63 / 64 * 25.6e6 * 4 / scarcest(Cluster.of(spec))
    assert least < found.step_seconds < 1.25 * least


# --- latency ------------------------------------------------------------------------------------


def line(latency: str, back: str) -> Cluster:
    edges = [
        {"ends": [i, i + 1], "bandwidth": "10Gb/s", "latency": latency, "back_latency": back}
        for i in range(7)
    ]
    return Cluster.of({"nodes": "8 x p3.2xlarge", "network": {"topology": "graph", "edges": edges}})


def test_latency_of_cables_counts_per_direction():
    near, far, later = (
        predict("resnet50", on=line(there, back), plan="dp8", batch=64).step_seconds
        for there, back in (("1us", "1us"), ("1us", "1ms"), ("1ms", "1ms"))
    )
    assert near < far < later


def test_a_hop_is_as_late_as_its_cables():
    cluster = line("1ms", "3ms")
    flow_mapping = Network(cluster).flow_mapping
    send = next(a for a in ALGORITHMS if a.name == "send")
    usual = cluster.layout.port_latency[0]
    late = flow_mapping.delays(send, np.array([[0, 2], [2, 0]]))
    assert late == pytest.approx([2e-3 - usual, 6e-3 - usual])


def test_one_switch_adds_nothing():
    cluster = Cluster.of("8 x p3.2xlarge")
    assert Network(cluster).flow_mapping.delays(RING, np.arange(8)[None, :]).tolist() == [0.0]


# --- choices that cannot run --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "plan", "wish", "words"),
    [
        ("1 x dgx-a100-80gb", "tp8", "nvls", ["Hopper", "ampere"]),
        ("8 x p3.2xlarge", "dp8", "nvls", ["NVSwitch", "ring or tree"]),
        ("2 x dgx-h100", "tp8 dp2", "nvls", ["spans 2 NVLink domains"]),
        ("1 x dgx-h100", "tp8", "nvls_tree", ["within one"]),
        ("8 x p3.2xlarge", "dp8", "nvls_tree", ["NVSwitch"]),
    ],
)
def test_algorithms_that_cannot_run_there_are_refused(on, plan, wish, words):
    with pytest.raises(InputError) as refused:
        predict(
            "llama3-8b",
            on=on,
            plan=plan,
            batch=64,
            runtime_options={"algorithms": f"all_reduce:{wish}"},
        )
    for word in (f"algorithms.all_reduce: {wish!r}", "cannot run", *words):
        assert word in str(refused.value)


def test_all_refused_choices_at_once():
    wishes = chosen({"all_reduce": "nvls", "all_gather": "nvls"})
    wiring = GroupTopology(4, 4, "default", 1e9)
    with pytest.raises(InputError) as refused:
        expect_able(
            wishes, [("all_reduce", wiring), ("all_gather", wiring), ("all_reduce", wiring)]
        )
    assert len(refused.value.faults) == 2


@pytest.mark.parametrize("wish", ["ring", "tree", "halving_doubling", "hierarchical", "all_pairs"])
def test_other_algorithms_run_on_any_group(wish):
    found = select(
        "all_reduce", 1e8, GroupTopology(6, 3, "pcie", 1e9), "nccl", chosen({"all_reduce": wish})
    )
    assert found.algorithm == wish


def test_a_choice_that_can_run_is_taken():
    found = predict(
        "gpt2", on="1 x dgx-h100", plan="dp8", batch=64,
        runtime_options={"algorithms": "all_reduce:nvls"},
    )  # fmt: skip
    assert found.step_seconds > 0
