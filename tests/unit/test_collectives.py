"""Collective algorithms against their conformance kit, and what the selector makes of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from foretrain.cluster.cluster import Cluster
from foretrain.cost.collectives import ALGORITHMS, Flows, algorithms_for
from foretrain.cost.collectives.ring import Ring
from foretrain.cost.collectives.selector import Wiring, protocols, select
from foretrain.cost.network import Network
from foretrain.errors import Bug
from foretrain.testing import collectives as kit

GB = 1e9


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a.name)
def test_every_algorithm_conforms(algorithm):
    kit.check_collective(algorithm)


class Broken(Ring):
    """A ring that forgets its last hop."""

    def flows(self, groups, domain_of):
        f = super().flows(groups, domain_of)
        return Flows(f.group[:-1], f.src[:-1], f.dst[:-1], f.weight[:-1])


def test_the_kit_sees_lost_bytes():
    with pytest.raises(AssertionError):
        kit.check_collective(Broken())


class Small(Ring):
    def volume(self, collective, size, ranks):
        return super().volume(collective, size, ranks) / 2


def test_the_kit_sees_bytes_below_the_lower_bound():
    with pytest.raises(AssertionError, match="of the buffer"):
        kit.check_collective(Small())


@pytest.mark.parametrize("n", [2, 4, 8])
def test_ring_closed_forms(n):
    ring = Ring()
    assert ring.volume("all_reduce", GB, n) == pytest.approx(2 * (n - 1) / n * GB)
    assert ring.volume("all_gather", GB, n) == ring.volume("reduce_scatter", GB, n)
    assert ring.volume("all_gather", GB, n) == pytest.approx((n - 1) / n * GB)
    assert ring.steps("all_reduce", n, 1).inside == 2 * (n - 1)


def test_a_ring_over_two_nodes_uses_every_port():
    """Eight ranks in each of two nodes run eight channels: the time is that of all eight ports together."""
    cluster = Cluster.of("2 x dgx-a100-80gb")
    network = Network(cluster)
    seconds = kit.switch_seconds(Ring(), "all_reduce", GB, np.arange(16), cluster)
    port = network.capacity[network.is_network].min()
    assert seconds == pytest.approx(2 * 15 / 16 * GB / (8 * port), rel=1e-9)


def test_a_ring_inside_a_node_uses_every_link_of_the_switch():
    cluster = Cluster.of("1 x dgx-a100-80gb")
    network = Network(cluster)
    seconds = kit.switch_seconds(Ring(), "all_reduce", GB, np.arange(8), cluster)
    assert seconds == pytest.approx(
        2 * 7 / 8 * GB / network.capacity[~network.is_network].max(), rel=1e-9
    )


def test_an_all_to_all_over_nodes_is_bound_by_what_leaves_the_node():
    cluster = Cluster.of("2 x dgx-a100-80gb")
    network = Network(cluster)
    [direct] = algorithms_for("all_to_all")
    seconds = kit.switch_seconds(direct, "all_to_all", GB, np.arange(16), cluster)
    port = network.capacity[network.is_network].min()
    assert seconds == pytest.approx(
        8 / 16 * GB / port, rel=1e-9
    )  # half of each rank's buffer leaves


def test_neighbours_exchange_in_both_directions_at_once():
    cluster = Cluster.of("4 x dgx-a100-80gb").placed([1, 1, 1, 1])
    network = Network(cluster)
    [neighbours] = algorithms_for("exchange")
    port = network.capacity[network.is_network].min()
    two = kit.switch_seconds(neighbours, "exchange", GB, np.arange(2), cluster)
    four = kit.switch_seconds(neighbours, "exchange", GB, np.arange(4), cluster)
    assert two == pytest.approx(GB / port, rel=1e-9)
    assert four == pytest.approx(2 * GB / port, rel=1e-9)  # inner ranks serve two neighbours


# --- the selector ---------------------------------------------------------------------------------------

WIRING = Wiring(ranks=8, domains=1, link_family="nvlink", rate=240e9)


def test_long_messages_run_at_the_links_rate():
    choice = select("all_reduce", 1e10, WIRING, "nccl")
    assert choice.algorithm == "ring"
    assert choice.seconds(WIRING.rate) == pytest.approx(2 * 7 / 8 * 1e10 / 240e9, rel=1e-2)


def test_short_messages_take_the_protocol_of_least_latency():
    choice = select("all_reduce", 8.0, WIRING, "nccl")
    assert choice.protocol == "LL"
    assert choice.seconds(WIRING.rate) < 20e-6


def test_several_nodes_take_a_tree_for_short_messages_and_a_ring_for_long_ones():
    wide = Wiring(ranks=32, domains=4, link_family="nvlink", rate=100e9)
    assert select("all_reduce", 1e4, wide, "nccl").algorithm == "tree"
    assert select("all_reduce", 1e11, wide, "nccl").algorithm == "ring"


@pytest.mark.parametrize("library", ["nccl", "gloo", "mpi"])
@pytest.mark.parametrize(
    "collective", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]
)
def test_more_bytes_never_take_less_time(library, collective):
    seconds = [
        select(collective, size, WIRING, library).seconds(WIRING.rate)
        for size in np.logspace(0, 11, 60)
    ]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(seconds))


def test_an_unknown_collective_is_our_bug():
    with pytest.raises(Bug, match="no algorithm"):
        select("gossip", 1.0, WIRING, "nccl")


def test_protocols_have_sane_constants():
    for library in ("nccl", "gloo", "mpi"):
        for protocol in protocols(library):
            assert 0 < protocol.efficiency <= 1
            assert 0 < protocol.base < 1e-3
            assert protocol.between >= 0
