"""Topologies: every builder passes the kit, and the numbers on the links are the vendor's."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from foretrain.cluster import Cluster, ClusterNetwork, Interconnect, NetworkEdge, Site, catalog
from foretrain.cluster.routing import Edge, graph_fabric
from foretrain.cluster.topologies import INTERCONNECTS, NETWORKS
from foretrain.errors import ClusterError
from foretrain.testing.topology import check_fabric, check_topology

CUBE = catalog.meshes()["cube-nvlink2"]
WIRINGS = {
    "nvswitch": Interconnect("nvlink3-nvswitch", "nvswitch", 1e-6),
    "nvlink_mesh": Interconnect("nvlink2", "nvlink_mesh", 1e-6, lanes=CUBE),
    "pcie_tree": Interconnect("pcie4", "pcie_tree", 1e-6, switch_devices=2, socket_devices=4),
    "single": Interconnect("none", "single", 0.0),
}


def site(ports: int, rate: float = 10e9) -> Site:
    return Site(np.full(ports, rate), np.full(ports, 1e-6), np.arange(ports))


def ring(nodes: int) -> ClusterNetwork:
    edges = tuple(NetworkEdge((n, (n + 1) % nodes), 10e9, 1e-6) for n in range(nodes))
    return ClusterNetwork("ethernet", "graph", edges=edges)


@pytest.mark.parametrize("name", list(INTERCONNECTS))
@pytest.mark.parametrize("ports", [1, 2, 3, 4, 5, 7, 8])
def test_every_interconnect_builder_joins_its_ports(name, ports):
    if name == "single" and ports > 1:
        with pytest.raises(ClusterError, match="connects no devices"):
            INTERCONNECTS[name](site(ports), WIRINGS[name])
    else:
        check_fabric(INTERCONNECTS[name](site(ports), WIRINGS[name]))


@pytest.mark.parametrize("name", list(NETWORKS))
@pytest.mark.parametrize("ports", [2, 3, 8])
def test_every_network_builder_joins_its_ports(name, ports):
    given = (("p", 0.9),) if name == "random" else ()
    network = (
        ring(ports) if name == "graph" else ClusterNetwork("infiniband", name, parameters=given)
    )
    check_fabric(NETWORKS[name](site(ports), network), is_shortest=name != "dragonfly")


@pytest.mark.parametrize(
    "spec",
    [
        "1 x dgx-a100-80gb",
        "3 x dgx-h100",
        "2 x dgx-1-v100-16gb",
        "2 x dgx-2",
        "3 x p3.8xlarge",
        "2 x g5.48xlarge",
        "2 x azure:Standard_NC96ads_A100_v4",
        "2 x hgx-mi300x",
        "72 x gb200",
        "100 x gb200",
        "13 x h100",
        "2 x dgx-1 + 1 x dgx-h100 + 3 x g4dn.12xlarge",
        "256 x dgx-h100",
    ],
)
def test_clusters_pass_the_kit(spec):
    check_topology(Cluster.of(spec).topology)


def test_the_kit_refuses_broken_topologies():
    fabric = INTERCONNECTS["nvswitch"](site(4), WIRINGS["nvswitch"])
    swapped = replace(fabric, route=lambda src, dst: fabric.route(dst, src))
    with pytest.raises(AssertionError):
        check_fabric(swapped)

    class Lossy:
        def __init__(self, inner):
            self.inner = inner

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def routes(self, src, dst):
            return self.inner.routes(src, np.roll(dst, 1))

    with pytest.raises(AssertionError):
        check_topology(Lossy(Cluster.of("2 x dgx-h100").topology))


def test_a_switched_node_has_one_port_each_way_per_device():
    topology = Cluster.of("dgx-a100-80gb").topology
    assert len(topology.capacity) == 16
    assert (topology.capacity == 300e9).all()
    routes = topology.routes(np.array([0, 3]), np.array([5, 3]))
    assert [topology.name(link) for link in routes[0]] == [
        "domain0.device0->switch",
        "domain0.switch->device5",
    ]
    assert len(routes[1]) == 0
    assert topology.latency[routes[0]].sum() == pytest.approx(0.6e-6)


def test_the_cube_mesh_has_the_lanes_of_a_dgx_1():
    topology = Cluster.of("dgx-1-v100-16gb").topology
    pairs = {(0, 1): 25e9, (0, 3): 50e9, (0, 4): 50e9, (3, 7): 25e9, (6, 7): 50e9}
    for (a, b), rate in pairs.items():
        way = topology.routes(np.array([a]), np.array([b])).links
        assert topology.capacity[way].tolist() == [rate]
    # each device has six links of 25 GB/s out
    tail, _ = topology.ends()
    out = np.bincount(tail, weights=topology.capacity)
    assert out == pytest.approx(np.full(8, 150e9))
    # devices without a link in common are reached through one in between
    far = topology.routes(np.array([0, 0, 0]), np.array([5, 6, 7]))
    assert np.diff(far.ptr).tolist() == [2, 2, 2]


def test_part_of_a_mesh_keeps_the_rate_of_its_lanes():
    four = Cluster.of("p3.8xlarge").topology
    assert sorted(set(four.capacity.tolist())) == [25e9, 50e9]
    part = Cluster.of("p3.16xlarge").first(4).topology
    assert part.capacity.tolist() == four.capacity.tolist()


def test_pcie_shares_the_host_bridge_and_the_cpu_link():
    topology = Cluster.of("g5.48xlarge").topology
    near = topology.routes(np.array([0]), np.array([3])).links
    far = topology.routes(np.array([0]), np.array([7])).links
    assert [topology.name(link).split(".", 1)[1] for link in near] == [
        "device0->bridge0",
        "bridge0->device3",
    ]
    assert len(far) == 3
    assert topology.capacity[far[1]] == 16e9
    assert topology.latency[far].sum() == pytest.approx(1e-6)


def test_pcie_switches_keep_neighbours_off_the_bridge():
    wiring = Interconnect("pcie3", "pcie_tree", 1e-6, switch_devices=2, socket_devices=4)
    fabric = INTERCONNECTS["pcie_tree"](site(8), wiring)
    hops = (fabric.route(np.array([0, 0, 0]), np.array([1, 2, 7])) >= 0).sum(axis=1)
    assert hops.tolist() == [2, 4, 5]


def test_bridged_pcie_cards_have_their_own_link_in_pairs():
    topology = Cluster.of("azure:Standard_NC96ads_A100_v4").topology
    pair = topology.routes(np.array([0, 1, 2]), np.array([1, 2, 3]))
    assert np.diff(pair.ptr).tolist() == [1, 2, 1]
    assert topology.capacity[pair[0]].tolist() == [300e9]


def test_a_rack_is_one_switched_domain_across_hosts():
    cluster = Cluster.of("144 x gb200")
    assert cluster.node_count == 36
    assert cluster.domain_of.tolist() == [0] * 72 + [1] * 72
    topology = cluster.topology
    routes = topology.routes(np.array([0, 0]), np.array([71, 72]))
    assert set(topology.tier[routes[0]].tolist()) == {0}
    assert topology.capacity[routes[0]].tolist() == [900e9, 900e9]
    assert set(topology.tier[routes[1]].tolist()) == {1}
    assert topology.capacity[routes[1]].tolist() == [50e9, 50e9]


def test_devices_keep_to_their_own_network_card():
    topology = Cluster.of("2 x dgx-a100-80gb").topology
    routes = topology.routes(np.arange(8), np.arange(8) + 8)
    assert len(np.unique(routes.links)) == 16
    assert (topology.capacity[routes.links] == 25e9).all()
    assert (topology.tier[routes.links] == 1).all()


def test_few_cards_are_shared_by_neighbours_and_many_are_bonded():
    shared = Cluster.of("2 x p4d.24xlarge").topology
    out = shared.routes(np.arange(8), np.full(8, 8))
    first = out.links[out.ptr[:-1]]
    assert first.tolist() == [first[0] + n for n in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert (shared.capacity[first] == 12.5e9).all()
    bonded = Cluster.of("2 x p5.48xlarge").topology
    network = bonded.capacity[bonded.tier == 1]
    assert len(network) == 2 * 2 * 8
    assert network == pytest.approx(50e9)


def test_a_user_drawn_network_is_followed():
    cluster = Cluster.of(
        {
            "nodes": "4 x p3.16xlarge",
            "network": {
                "topology": "graph",
                "edges": [
                    {"ends": [0, "left"], "bandwidth": "10Gb/s"},
                    {"ends": [1, "left"], "bandwidth": "10Gb/s"},
                    {"ends": [2, "right"], "bandwidth": "10Gb/s"},
                    {"ends": [3, "right"], "bandwidth": "10Gb/s"},
                    {"ends": ["left", "right"], "bandwidth": "40Gb/s", "latency": "5us"},
                ],
            },
        }
    )
    check_topology(cluster.topology)
    far = cluster.topology.routes(np.array([0, 0]), np.array([8, 31]))
    assert [len(far[0]), len(far[1])] == [2, 3]
    assert cluster.topology.capacity[far[1]].tolist() == [1.25e9, 5e9, 1.25e9]
    assert cluster.topology.name(int(far[1][1])) == "network.left->right"
    assert Cluster.from_dict(cluster.to_dict()) == cluster


def test_a_drawn_network_that_misses_nodes_is_refused():
    edge = {"ends": [0, 9], "bandwidth": "10Gb/s"}
    data = {"nodes": "3 x p3.16xlarge", "network": {"topology": "graph", "edges": [edge]}}
    with pytest.raises(ClusterError, match="no node 9"):
        _ = Cluster.of(data).topology
    data["network"]["edges"] = [{"ends": [0, 1], "bandwidth": "10Gb/s"}]
    with pytest.raises(ClusterError, match=r"it has 2 components: node0, node1 \| node2"):
        Cluster.of(data).topology.routes(np.array([0]), np.array([16]))


def test_routes_prefer_few_hops_then_wide_ways():
    # 0 to 3 over 1 (narrow) or over 2 (wide); 0 to 4 directly though narrow
    edges = [
        Edge(0, 1, 1, 0),
        Edge(1, 3, 9, 0),
        Edge(0, 2, 5, 0),
        Edge(2, 3, 5, 0),
        Edge(0, 4, 1, 0),
    ]
    edges += [Edge(3, 4, 9, 0)]
    fabric = graph_fabric(edges, np.arange(5), str)
    rows = fabric.route(np.array([0, 0, 0]), np.array([3, 4, 0]))
    assert rows.tolist() == [[2, 3], [4, -1], [-1, -1]]


def test_nodes_without_a_network_cannot_meet():
    cluster = Cluster.of("2 x lambda:gpu_8x_h100_sxm5")
    inside = cluster.topology.routes(np.array([0]), np.array([1]))
    assert len(inside.links) == 2
    with pytest.raises(ClusterError, match="no network"):
        cluster.topology.routes(np.array([0]), np.array([8]))


def test_device_numbers_are_checked():
    topology = Cluster.of("dgx-h100").topology
    for bad in (-1, 8):
        with pytest.raises(ClusterError, match="0 to 7"):
            topology.routes(np.array([0]), np.array([bad]))
    with pytest.raises(ClusterError, match="the counts must match"):
        topology.routes(np.array([0, 1]), np.array([1]))
    assert len(topology.routes(np.array([], dtype=int), np.array([], dtype=int))) == 0


def test_routing_is_quick_on_a_large_cluster():
    cluster = Cluster.of("2048 x dgx-h100")
    topology = cluster.topology
    draw = np.random.default_rng(1)
    src, dst = draw.integers(0, 16384, (2, 20_000))
    best = min(_seconds(topology, src, dst) for _ in range(5))
    # 4 ms on one core of a small machine; a loop over pairs would take seconds
    assert best < 0.1


def _seconds(topology, src, dst):
    start = time.perf_counter()
    topology.routes(src, dst)
    return time.perf_counter() - start


def test_peers_that_meet_at_the_root_share_the_slot_of_their_socket():
    """P2: what leaves a device goes up one slot of 15.75 GB/s that eight share, even to its neighbour."""
    topology = Cluster.of("aws:p2.16xlarge").topology
    near = topology.routes(np.array([0]), np.array([1])).links
    far = topology.routes(np.array([0]), np.array([8])).links
    assert [topology.name(link).split(".", 1)[1] for link in near] == [
        "device0->up16", "up16->bridge0", "bridge0->down16", "down16->device1",
    ]  # fmt: skip
    assert len(far) == 5
    other = topology.routes(np.array([7]), np.array([6])).links
    assert near[1] == other[1], "all eight go up the same slot"
    assert topology.capacity[near[1]] == 15.75e9
