"""Any drawn graph: routes connect, spread traffic is kept whole, hops are the fewest."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.cluster import Cluster
from foretrain.testing.topology import check_fabric, check_topology


@st.composite
def drawn_networks(draw):
    nodes = draw(st.integers(2, 7))
    switches = [f"s{number}" for number in range(draw(st.integers(0, 4)))]
    ends = [*range(nodes), *switches]
    # a chain through all, so that everything is joined, and any cables besides
    cables = [[a, b] for a, b in itertools.pairwise(ends)]
    cables += draw(
        st.lists(st.lists(st.sampled_from(ends), min_size=2, max_size=2, unique=True), max_size=12)
    )
    edges = [
        {
            "ends": cable,
            "bandwidth": draw(st.sampled_from(["10Gb/s", "25Gb/s"])),
            "back_bandwidth": draw(st.sampled_from([None, "40Gb/s"])),
        }
        for cable in cables
    ]
    routing = draw(st.sampled_from(["shortest", "ecmp"]))
    network = {"topology": "graph", "edges": edges, "routing": routing}
    return Cluster.of({"nodes": f"{nodes} x p4d.24xlarge", "network": network})


@settings(max_examples=60, deadline=None)
@given(drawn_networks())
def test_any_drawn_network_is_sound(cluster):
    check_fabric(cluster.network_fabric)
    check_topology(cluster.topology)
    assert Cluster.from_dict(cluster.to_dict()) == cluster


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([1.0, 2.0, 3.0]),
)
def test_shares_of_every_tier_sum_to_one(nodes, leaf, pods, spines, ratio):
    text = (
        f"fat-tree(leaf_nodes={leaf}, pod_leaves={pods}, spines={spines}, oversubscription={ratio})"
    )
    fabric = Cluster.of(f"{nodes + 1} x dgx-h100 on {text}").network_fabric
    ports = len(fabric.port_vertex)
    src, dst = np.random.default_rng(nodes).integers(0, ports, (2, 64))
    routes = fabric.routes(src, dst)
    hops = (fabric.route(src, dst) >= 0).sum(axis=1)
    total = np.bincount(routes.owner, weights=routes.share, minlength=64)
    assert np.allclose(total, hops)
    check_fabric(fabric)
