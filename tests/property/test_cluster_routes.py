"""Clusters of any odd shape: routes are sound, counts agree, writing and reading back loses nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.cluster import Cluster
from foretrain.testing.topology import check_topology

DEVICES = ["a100-sxm4-80gb", "v100-sxm2-16gb", "t4", "h100-sxm5-80gb", "mi300x"]
SWITCHED = ["nvlink3-nvswitch", "nvlink2", "pcie4", "pcie3-pairs", "nvlink3", "nvlink5-nvl4"]


@st.composite
def node_rows(draw):
    count = draw(st.integers(1, 8))
    devices = [draw(st.sampled_from(DEVICES)) for _ in range(count)]
    row = {
        "name": f"box{draw(st.integers(0, 2))}",
        "count": draw(st.integers(1, 5)),
        "used": draw(st.integers(1, count)),
        "devices": devices,
        "interconnect": {
            "kind": draw(st.sampled_from(SWITCHED)),
            # t4 has no NVLink of its own, so a rate is always given
            "bandwidth": draw(st.sampled_from([None, "20GB/s", "300GB/s"])) or "50GB/s",
            "switch_devices": draw(st.integers(1, 3)),
            "socket_devices": draw(st.integers(1, 5)),
        },
        "nics": {"kind": "infiniband", "count": draw(st.integers(1, 12)), "bandwidth": "100Gb/s"},
    }
    return row


clusters = st.lists(node_rows(), min_size=1, max_size=4).map(
    lambda rows: Cluster.of({"nodes": rows})
)


@settings(max_examples=60, deadline=None)
@given(clusters)
def test_routes_are_sound_for_any_shape(cluster):
    check_topology(cluster.topology)


@settings(max_examples=60, deadline=None)
@given(clusters)
def test_counts_agree(cluster):
    assert len(cluster.node_of) == cluster.device_count
    used = [run.used for run in cluster.runs for _ in range(run.count)]
    assert np.bincount(cluster.node_of).tolist() == used
    assert all(cluster.local_index < 8)
    for rank in range(0, cluster.device_count, 7):
        node = cluster.node(int(cluster.node_of[rank]))
        assert node.devices[int(cluster.local_index[rank])] == cluster.device(rank)
    assert (np.diff(cluster.domain_of) >= 0).all()


@settings(max_examples=60, deadline=None)
@given(clusters, st.floats(0.1, 10), st.floats(0.1, 10))
def test_writing_and_reading_back_loses_nothing(cluster, network, compute):
    assert Cluster.from_dict(cluster.to_dict()) == cluster
    scaled = cluster.scaled(network=network, compute=compute)
    assert Cluster.from_dict(scaled.to_dict()) == scaled


@settings(max_examples=60, deadline=None)
@given(clusters)
def test_the_network_carries_what_the_cards_carry(cluster):
    topology = cluster.topology
    if topology.network is None:
        assert cluster.node_count == 1
        return
    total = sum(run.count * run.node.nics.total_bandwidth for run in cluster.runs)
    assert np.isclose(topology.capacity[topology.tier == 1].sum(), 2 * total)


@settings(max_examples=60, deadline=None)
@given(clusters, st.data())
def test_the_first_devices_are_a_prefix(cluster, data):
    count = data.draw(st.integers(1, cluster.device_count))
    part = cluster.first(count)
    assert part.device_count == count
    assert part.node_of.tolist() == cluster.node_of[:count].tolist()
    assert part.local_index.tolist() == cluster.local_index[:count].tolist()
    check_topology(part.topology)
