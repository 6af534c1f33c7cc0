"""The case format: what it names is taken, what it leaves out is assumed aloud."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.cluster import Cluster, catalog
from foretrain.errors import ClusterError


def described(cluster, **more):
    """The cluster of such words, and what had to be assumed."""
    found = Cluster.read({**cluster, **more} if isinstance(cluster, dict) else cluster)
    return found.cluster, list(found.assumptions)


def case(
    device="a100-sxm4-80gb",
    per_node=8,
    nodes=2,
    intra="nvlink3-nvswitch",
    kind="infiniband",
    gbps=1600,
):
    return {
        "device": device,
        "devices_per_node": per_node,
        "nodes": nodes,
        "intra_node": intra,
        "network": {"kind": kind, "gbps_per_node": gbps},
    }


def test_a_full_case_needs_no_assumption():
    cluster, assumed = described(case())
    assert assumed == []
    assert cluster.device_count == 16
    assert cluster.node(0).name == "dgx-a100-80gb"
    assert cluster.network.kind == "infiniband"


@pytest.mark.parametrize(
    ("given", "cards", "each"),
    [
        (case(gbps=800), 4, 200),
        (case(gbps=400, kind="omnipath"), 4, 100),
        (case(gbps=100), 1, 100),
        (case("h100-sxm5-80gb", intra="nvlink4-nvswitch", kind="efa", gbps=3200), 32, 100),
        (case("v100-sxm2-16gb", intra="nvlink2", kind="ethernet", gbps=25), 1, 25),
        (case("gb200-nvl72", 4, 36, "nvlink5-nvl72", gbps=1600), 4, 400),
    ],
)
def test_cards_add_up_to_what_the_case_says(given, cards, each):
    cluster, _ = described(given)
    nics = cluster.node(0).nics
    assert nics.count == cards
    assert nics.bandwidth * 8e-9 == pytest.approx(each)
    assert nics.kind == given["network"]["kind"]


def test_a_known_instance_brings_its_price_and_another_network_does_not():
    cluster, _ = described(case("v100-sxm2-16gb", 8, 4, "nvlink2", "ethernet", 25))
    assert cluster.node(0).cloud == "aws:p3.16xlarge"
    assert cluster.usd_per_hour == pytest.approx(4 * 24.48)
    other, _ = described(case(kind="omnipath", gbps=400))
    assert other.usd_per_hour is None


def test_uneven_placement():
    given = case("t4", 4, 3, "pcie3", "ethernet", 50)
    cluster, _ = described(given, placement=[1, 3, 4], devices=8)
    assert np.bincount(cluster.node_of).tolist() == [1, 3, 4]
    assert cluster.node(0).name == "aws:g4dn.12xlarge"
    assert cluster.usd_per_hour == pytest.approx(3 * 3.912)
    with pytest.raises(ClusterError, match="uses 8 devices, not the 9"):
        described(given, placement=[1, 3, 4], devices=9)
    for bad in ([], [0, 1], [True], [1.5], [-1]):
        with pytest.raises(ClusterError, match="placement"):
            described(given, placement=bad)


def test_fewer_devices_than_the_nodes_hold():
    cluster, assumed = described(case(nodes=3), devices=20)
    assert np.bincount(cluster.node_of).tolist() == [8, 8, 4]
    assert any("20 of 24 devices" in line for line in assumed)
    with pytest.raises(ClusterError, match="25 devices are used"):
        described(case(nodes=3), devices=25)


def test_nulls_are_filled_from_the_usual_machine_and_said():
    given = {
        "device": "h200-sxm5-141gb",
        "devices_per_node": None,
        "nodes": 2,
        "intra_node": None,
        "network": None,
    }
    cluster, assumed = described(given)
    assert cluster.device_count == 16
    assert cluster.node(0).name == "dgx-h200"
    text = "\n".join(assumed)
    for word in ("devices_per_node", "intra_node", "network.kind", "network.gbps_per_node"):
        assert word in text
    only_device, assumed = described({"device": "h100"}, devices=12)
    assert only_device.device_count == 12
    assert only_device.node_count == 2
    assert any(line.startswith("nodes is not specified") for line in assumed)


def test_one_node_without_a_network_assumes_none():
    cluster, assumed = described(case(nodes=1, kind=None, gbps=None))
    assert assumed == []
    assert cluster.node(0).nics is None
    assert cluster.network.kind == "none"
    assert len(cluster.topology.capacity) == 16


def test_a_rack_spans_hosts():
    cluster, _ = described({**case("gb200-nvl72", 4, 36, "nvlink5-nvl72"), "nvlink_domain": 72})
    assert np.bincount(cluster.domain_of).tolist() == [72, 72]
    small, _ = described({**case("gb200-nvl72", 4, 4, "nvlink5-nvl72"), "nvlink_domain": 8})
    assert np.bincount(small.domain_of).tolist() == [8, 8]


def test_a_rate_in_the_interconnect_is_both_directions():
    cluster, _ = described(case("h800-sxm5-80gb", intra="nvlink4-400gbs", gbps=3200))
    topology = cluster.topology
    assert (topology.capacity[topology.tier == 0] == 200e9).all()


@pytest.mark.parametrize("name", list(catalog.devices()))
@pytest.mark.parametrize("per_node", [1, 2, 8])
def test_every_device_can_stand_in_a_case(name, per_node):
    given = {
        "device": name,
        "devices_per_node": per_node,
        "nodes": 2,
        "intra_node": None,
        "network": None,
    }
    cluster, assumed = described(given)
    assert cluster.device_count == 2 * per_node
    assert assumed
    routes = cluster.topology.routes(np.array([0]), np.array([per_node]))
    assert len(routes.links) >= 1


@pytest.mark.parametrize(
    "intra",
    ["nvlink2", "nvlink3", "nvlink4-nvswitch", "pcie3", "pcie5", "xgmi3", "nvlink2-nvswitch"],
)
def test_any_interconnect_word_works_for_any_device(intra):
    for device in ("t4", "v100-sxm2-16gb", "h100-sxm5-80gb", "mi300x"):
        cluster, _ = described(case(device, 4, 1, intra))
        assert len(cluster.topology.routes(np.array([0]), np.array([3])).links) >= 1


def test_all_faults_of_a_case_come_together():
    given = {
        "device": "h10O",
        "devices_per_node": 0,
        "nodes": 2.5,
        "intra_node": 3,
        "network": {"kind": "infinband", "gbps_per_node": -1},
    }
    with pytest.raises(ClusterError) as refused:
        described(given)
    text = str(refused.value)
    for words in (
        "cluster.device: Unknown device 'h10O'. Did you mean 'h100'",
        "cluster.devices_per_node: 0 must be at least 1",
        "cluster.nodes: expected integer",
        "cluster.intra_node: expected string",
        "cluster.network.gbps_per_node: -1",
    ):
        assert words in text


@pytest.mark.parametrize(
    "given", [None, 3, [], "dgx", {}, {"device": None}, {"device": "t4", "network": 3}]
)
def test_odd_cases_are_refused_not_crashed_on(given):
    with pytest.raises(ClusterError):
        described(given)


@pytest.mark.parametrize("gbps", [float("nan"), float("inf"), 1e308, 0, True, "fast"])
def test_impossible_rates_are_refused(gbps):
    with pytest.raises(ClusterError, match="gbps_per_node"):
        described(case(gbps=gbps))


def test_unknown_keys_are_passed_over_aloud():
    cluster, assumed = described({**case(), "colour": "green", "node": None})
    assert cluster.device_count == 16
    assert assumed == ["cluster.colour is unknown and ignored."]
