"""Network fabrics: every one sound at several sizes, their figures right, their mistakes explained."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from foretrain.cluster import Cluster
from foretrain.cluster.describe import bisection_bandwidth, diameter, half_bandwidth, topology_facts
from foretrain.cluster.topologies import NETWORKS
from foretrain.errors import ClusterError
from foretrain.testing.topology import check_fabric, check_topology

PARAMETERS = {
    "fat-tree": "leaf_nodes=2, pod_leaves=2, spines=[2, 3]",
    "rail-optimised": "leaf_nodes=3, spines=2",
    "hierarchical": "sizes=[2, 3]",
    "random": "p=0.9",
    "dragonfly": "group_routers=2, router_nodes=1",
}
ALL = [
    (name, routing)
    for name, shape in NETWORKS.items()
    if name != "graph"
    for routing in shape.routings
]


def cluster(nodes: int, network: str) -> Cluster:
    return Cluster.of(f"{nodes} x p4d.24xlarge on {network}")


def pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    src, dst = np.divmod(np.arange(count * count), count)
    return src[src != dst], dst[src != dst]


def loads(one: Cluster) -> np.ndarray:
    """Network load of everyone sending a byte to everyone."""
    fabric = one.network_fabric
    routes = fabric.routes(*pairs(one.layout.port_count))
    return np.bincount(routes.links, weights=routes.share, minlength=fabric.links)


@pytest.mark.parametrize(("name", "routing"), ALL)
@pytest.mark.parametrize("nodes", [2, 3, 7, 8, 12, 27])
def test_every_network_is_sound(name, routing, nodes):
    given = ", ".join(part for part in (PARAMETERS.get(name), f"routing={routing}") if part)
    one = cluster(nodes, f"{name}({given})")
    check_topology(one.topology)
    check_fabric(one.network_fabric, is_shortest=routing != "minimal")
    assert Cluster.from_dict(one.to_dict()) == one
    assert Cluster.from_dict(one.scaled(network=0.5).to_dict()) == one.scaled(network=0.5)
    half = one.scaled(network=0.5).topology
    assert half.capacity[half.tier == 1] == pytest.approx(
        0.5 * one.topology.capacity[one.topology.tier == 1]
    )


@pytest.mark.parametrize("name", ["ring", "torus", "mesh", "binary-tree", "fat-tree", "star"])
@pytest.mark.parametrize("nodes", [2, 3, 6, 8, 13, 16])
def test_diameters_are_what_the_routes_need(name, nodes):
    fabric = cluster(nodes, name).network_fabric
    hops = (fabric.route(*pairs(len(fabric.port_vertex))) >= 0).sum(axis=1)
    assert hops.max() == fabric.diameter == diameter(cluster(nodes, name))


@pytest.mark.parametrize("sizes", [[4, 4], [5, 3], [2, 6], [3, 3, 3], [4, 2, 5]])
def test_torus_hops_are_the_manhattan_distance_with_wrap(sizes):
    count = int(np.prod(sizes))
    fabric = cluster(count, f"torus(sizes={sizes})").network_fabric
    src, dst = pairs(len(fabric.port_vertex))
    a, b = fabric.port_vertex[src], fabric.port_vertex[dst]
    wanted, stride = 0, 1
    for size in sizes:
        apart = abs(a // stride % size - b // stride % size)
        wanted, stride = wanted + np.minimum(apart, size - apart), stride * size
    assert ((fabric.route(src, dst) >= 0).sum(axis=1) == wanted).all()


def test_mesh_hops_are_the_manhattan_distance():
    fabric = cluster(12, "mesh(sizes=[4, 3])").network_fabric
    src, dst = pairs(len(fabric.port_vertex))
    a, b = fabric.port_vertex[src], fabric.port_vertex[dst]
    wanted = abs(a % 4 - b % 4) + abs(a // 4 - b // 4)
    assert ((fabric.route(src, dst) >= 0).sum(axis=1) == wanted).all()


@pytest.mark.parametrize("network", ["ring", "torus(sizes=[3, 3])", "torus(sizes=[3, 3, 3])"])
def test_odd_rings_and_tori_load_every_cable_alike(network):
    nodes = {"ring": 9, "torus(sizes=[3, 3])": 9, "torus(sizes=[3, 3, 3])": 27}[network]
    load = loads(cluster(nodes, network))
    assert load == pytest.approx(np.full(len(load), load[0]))


@pytest.mark.parametrize("network", ["torus(sizes=[4, 4], routing=ecmp)", "ring(routing=ecmp)"])
def test_ecmp_evens_out_even_tori(network):
    load = loads(cluster(16, network))
    assert load == pytest.approx(np.full(len(load), load[0]))


def test_ecmp_spreads_over_all_spines_and_one_path_takes_one():
    spread = cluster(8, "fat-tree(leaf_nodes=2, spines=4)").topology
    routes = spread.routes(np.array([0, 0]), np.array([8, 63]))
    assert routes[0].tolist() == [spread.link_base[-1], *routes[0][1:].tolist()]
    assert len(routes[0]) == 2, "nodes under one leaf do not climb"
    assert routes.share.tolist() == [1, 1, 1, *[0.25] * 8, 1]
    single = cluster(8, "fat-tree(leaf_nodes=2, spines=4, routing=shortest)").topology
    alone = single.routes(np.array([0]), np.array([63]))
    assert alone.share.tolist() == [1, 1, 1, 1]
    assert set(alone.links.tolist()) < set(routes[1].tolist())


@pytest.mark.parametrize("ratio", [1, 2, 4, 3.5])
@pytest.mark.parametrize("network", ["fat-tree(leaf_nodes=4, ", "rail(leaf_nodes=4, spines=2, "])
def test_bisection_is_what_oversubscription_leaves(ratio, network):
    one = cluster(16, f"{network}oversubscription={ratio})")
    assert bisection_bandwidth(one) == pytest.approx(half_bandwidth(one) / ratio, rel=1e-6)


def test_oversubscription_multiplies_tier_by_tier():
    given = "fat-tree(leaf_nodes=2, pod_leaves=2, oversubscription=[2, 3])"
    one = cluster(16, given)
    assert bisection_bandwidth(one) == pytest.approx(half_bandwidth(one) / 6, rel=1e-6)
    rates = sorted(set(one.network_fabric.capacity.tolist()))
    # 4 cards of 12.5 GB/s a node: 2 nodes over 2, 4 nodes over 6
    assert rates == pytest.approx([12.5e9, 200e9 / 6, 50e9])


@pytest.mark.parametrize(
    ("network", "nodes", "cables"),
    [
        ("ring", 8, 2),
        ("torus(sizes=[4, 4])", 16, 8),
        ("mesh(sizes=[4, 4])", 16, 4),
        ("full", 8, 16),
    ],
)
def test_bisection_of_direct_networks_is_the_cables_cut(network, nodes, cables):
    word = network.removesuffix(")") + (", " if "(" in network else "(")
    one = cluster(nodes, f"{word}link_bandwidth=1GB/s)")
    assert bisection_bandwidth(one) == pytest.approx(cables * 1e9, rel=1e-6)


def test_cards_are_shared_out_over_the_cables():
    fabric = cluster(9, "torus(sizes=[3, 3])").network_fabric
    assert fabric.capacity == pytest.approx(50e9 / 4)
    out = np.bincount(fabric.tail, weights=fabric.capacity)
    assert out == pytest.approx(np.full(9, 50e9))


def test_a_rail_joins_card_r_of_every_node():
    topology = Cluster.of("64 x dgx-h100 on rail(leaf_nodes=32)").topology
    near = topology.routes(np.array([3, 3, 3]), np.array([11, 12, 32 * 8 + 3]))
    assert np.diff(near.ptr).tolist() == [2, 4, 4], "same rail, other rail, other unit"
    same = topology.routes(np.arange(8), np.arange(8) + 8)
    assert len(np.unique(same.links)) == 16


def test_dragonfly_takes_one_global_cable():
    one = Cluster.of("72 x dgx-h100 on dragonfly")
    fabric = one.network_fabric
    names = [fabric.link_name(link) for link in fabric.route(np.array([0]), np.array([575]))[0]]
    groups = [[end.split(".")[0] for end in name.split("->")] for name in names]
    crossings = [ends for ends in groups if all("group" in e for e in ends) and ends[0] != ends[1]]
    assert len(crossings) == 1


def test_exponential_cables_lead_to_powers_of_two():
    fabric = cluster(16, "exponential(one_way=true)").network_fabric
    assert sorted(fabric.head[fabric.tail == 3].tolist()) == [4, 5, 7, 11]
    both = cluster(16, "exponential").network_fabric
    assert sorted(both.head[both.tail == 0].tolist()) == [1, 2, 4, 8, 12, 14, 15]
    check_topology(cluster(13, "exponential(one_way=true)").topology, is_symmetric=False)


def test_random_networks_depend_on_their_seed_alone():
    ends = [
        cluster(20, f"random(p=0.4, seed={seed})").network_fabric.tail.tolist()
        for seed in (1, 1, 2)
    ]
    assert ends[0] == ends[1]
    assert ends[0] != ends[2]


def test_hierarchies_have_the_rates_given():
    one = cluster(12, "hierarchical(sizes=[2, 3], uplink_bandwidths=[100Gb/s, 400Gb/s])")
    route = one.network_fabric.route(np.array([0]), np.array([one.layout.port_count - 1]))[0]
    assert one.network_fabric.capacity[route] == pytest.approx(
        [12.5e9, 12.5e9, 50e9, 50e9, 12.5e9, 12.5e9]
    )


def test_links_say_what_they_are_made_of():
    one = Cluster.of("2 x dgx-h100 + 2 x g5.48xlarge")
    topology = one.topology
    kinds = np.array(topology.kinds)[topology.kind]
    inside = topology.tier == 0
    assert kinds[inside].tolist()[:16] == ["nvlink4-nvswitch"] * 16
    assert set(kinds[inside].tolist()[32:]) == {"pcie4"}
    assert (kinds[~inside] == "infiniband").sum() == 32
    assert (kinds[~inside] == "efa").sum() == 4
    tree = Cluster.of("4 x dgx-h100 on fat-tree(leaf_nodes=2)").topology
    assert set(np.array(tree.kinds)[tree.kind].tolist()) == {"nvlink4-nvswitch", "infiniband"}


EDGES = [
    {"ends": [0, "a"], "bandwidth": "10Gb/s", "back_bandwidth": "5Gb/s", "back_latency": "3us"},
    [1, "a", "10Gb/s", "1us"],
    [1, "a", "10Gb/s", "2us"],
    {"ends": ["a", "b"], "bandwidth": "40Gb/s", "one_way": True},
    {"ends": ["b", "a"], "bandwidth": "20Gb/s", "one_way": True},
    [2, "b", "10Gb/s"],
]


def drawn(edges, nodes=3, **more) -> Cluster:
    network = {"topology": "graph", "edges": edges, **more}
    return Cluster.of({"nodes": f"{nodes} x p3.16xlarge", "network": network})


def test_drawn_cables_may_differ_by_direction():
    one = drawn(EDGES)
    check_topology(one.topology)
    fabric = one.network_fabric
    rate = {fabric.link_name(link): fabric.capacity[link] * 8 for link in range(fabric.links)}
    assert rate["node0->a"] == 10e9
    assert rate["a->node0"] == 5e9
    assert rate["node1->a"] == 20e9, "parallel cables are one link"
    assert (rate["a->b"], rate["b->a"]) == (40e9, 20e9)
    assert Cluster.from_dict(one.to_dict()) == one
    assert one.first(9).topology.routes(np.array([0]), np.array([8])).links.size == 2
    assert drawn(EDGES, routing="ecmp").topology.routes(np.array([0]), np.array([23])).links.size


@pytest.mark.parametrize(
    ("edges", "more", "words"),
    [
        ([[0, 1, "1Gb/s"], [2, 2, "1Gb/s"], [1, 9, "1Gb/s"]], {},
         ["edges[1]: a cable from 2 to itself", "edges[2]: there is no node 9"]),
        ([[0, 1, "1Gb/s"], [2, "s", "1Gb/s"]], {}, ["2 components: node0, node1 | node2, s"]),
        ([[0, 1, 0], [1, 2, -5]], {}, ["edges[0].bandwidth: 0 must be", "edges[1].bandwidth: -5"]),
        ([{"ends": [0, 1], "bandwidth": 1, "one_way": True}, [1, 2, 1]], {},
         ["no path from node1 to node0"]),
        ([[0, "spin", 1], [1, "spin", 1], [2, "spin", 1]], {"switches": ["spine"]},
         ["no switch 'spin'. Did you mean 'spine'"]),
        ([], {}, ["edges: empty"]),
        ([[0, 1, 1]], {"oversubscription": 2}, ["oversubscription: unknown key", "switches"]),
    ],
)  # fmt: skip
def test_drawn_networks_that_cannot_be(edges, more, words):
    with pytest.raises(ClusterError) as refused:
        drawn(edges, **more)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("fat-tre", ["Unknown topology", "Did you mean 'fat-tree'"]),
        ("fat-tree(oversub=2, leaf_nodes=0, routing=valiant)",
         ["network.oversub: unknown key. Did you mean 'oversubscription'", "leaf_nodes: 0 must be",
          "routing: 'valiant'"]),
        ("fat-tree(oversubscription=[1, 2])", ["2 values for 1 tiers"]),
        ("star(leaf_nodes=3)", ["takes: no parameters"]),
        ("torus(sizes=[3, 1])", ["3 x 1 has 3 positions for 8 nodes"]),
        ("torus(dims=1000000000)", ["dims: 1,000,000,000 dimensions"]),
        ("torus(sizes=[1000000, 1000000])", ["4,000,000,000,000 links"]),
        ("ring(link_bandwidth=-3)", ["link_bandwidth: -3 must be positive"]),
        ("ring(3)", ["is not understood"]),
        ("random(p=2)", ["p: 2"]),
        ("random(p=0.01)", ["not connected", "Increase p"]),
        ("exponential(base=1)", ["base: 1 must be 2"]),
        ("exponential(base=1000000000000000000000)", ["too large"]),
        ("hierarchical(sizes=[])", ["sizes: empty"]),
        ("hierarchical(sizes=[2], uplink_bandwidths=[1, 2])", ["2 values for 1 tiers"]),
        ("dragonfly(group_routers=1, router_nodes=1, global_links=1)", ["global_links"]),
        ("dragonfly(routing=ecmp)", ["Known: minimal"]),
    ],
)  # fmt: skip
def test_networks_that_cannot_be(network, words):
    with pytest.raises(ClusterError) as refused:
        cluster(8, network)
    for word in words:
        assert word in str(refused.value)


def test_yaml_and_short_form_say_the_same():
    short = Cluster.of("8 x dgx-h100 on fat-tree(oversubscription=2, leaf_nodes=4)")
    network = {"topology": "fat_tree", "oversubscription": 2, "leaf_nodes": 4}
    long = Cluster.of({"nodes": "8 x dgx-h100", "network": network})
    assert long.network == short.network
    assert "fat-tree(leaf_nodes=4, oversubscription=2)" in short.describe()


def test_huge_networks_are_refused_before_they_are_built(tmp_path):
    start = time.perf_counter()
    for network in ("full", "random", "exponential", "fat-tree(spines=100000)"):
        with pytest.raises(ClusterError, match="at most"):
            Cluster.of(f"500000 x cpu-host on {network}")
    with pytest.raises(ClusterError, match="at most 20,000"):
        drawn([[0, 1, 1]] * 20_001)
    path = tmp_path / "cables.yaml"
    path.write_text(
        "nodes: 2 x cpu-host\nnetwork: {topology: graph, edges: ["
        + ",".join(["[1,0,1]"] * 900_000)
        + "]}"
    )
    with pytest.raises(ClusterError, match="too large for a cluster"):
        Cluster.of(path)
    ring = Cluster.of("500000 x cpu-host on ring").network_fabric
    with pytest.raises(ClusterError, match="too many to trace"):
        ring.routes(np.zeros(20_000, dtype=int), np.ones(20_000, dtype=int))
    assert time.perf_counter() - start < 30


@pytest.mark.parametrize(
    "network",
    ["fat-tree", "fat-tree(spines=8)", "torus(dims=3)", "rail", "dragonfly", "exponential"],
)
def test_regular_networks_route_quickly(network):
    topology = Cluster.of(f"2048 x dgx-h100 on {network}").topology
    src, dst = np.random.default_rng(1).integers(0, 16384, (2, 20_000))
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        topology.routes(src, dst)
        seconds.append(time.perf_counter() - start)
    # 5 to 25 ms on one core of a small machine; a loop over pairs would take seconds
    assert min(seconds) < 0.25


def test_the_facts_of_a_cluster_are_plain_data():
    one = Cluster.of("128 x dgx-a100-80gb on fat-tree(oversubscription=2, leaf_nodes=16, spines=4)")
    facts = json.loads(json.dumps(topology_facts(one)))
    network = facts["network"]
    assert network["bisection_bandwidth"] == pytest.approx(64 * 200e9 / 2)
    assert network["diameter"] == 4
    assert network["routing"] == "ecmp"
    assert [(link["ends"], link["count"]) for link in network["links"]] == [
        (["nic", "leaf"], 1024),
        (["leaf", "spine"], 32),
    ]
    assert topology_facts(Cluster.of("dgx-h100"))["network"] is None


def test_a_cluster_is_drawn():
    from foretrain.report import render
    from foretrain.report.catalog import entry_document

    text = render(entry_document("8 x p3.16xlarge on torus(sizes=[4, 2])"), "txt")
    for words in ("8 x node", "12 cables of 1.0 GB/s each way", "node5 → node1, node4, node6"):
        assert words in text
    assert "33% of the bandwidth of half of the NICs" in text
    assert "diameter" in text
    with pytest.raises(ClusterError, match="Unknown topology"):
        entry_document("8 x p3.16xlarge on moebius")
