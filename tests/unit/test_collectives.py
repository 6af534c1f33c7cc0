"""Collective algorithms against their conformance kit, and what the selector makes of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from foretrain.cluster.cluster import Cluster
from foretrain.cost.collectives import (
    ALGORITHMS,
    CollectiveProgram,
    Flows,
    Round,
    Steps,
    algorithms_for,
    chosen,
    tuner,
)
from foretrain.cost.collectives.ring import Ring
from foretrain.cost.collectives.selector import (
    GroupTopology,
    incast_factor,
    protocols,
    ramped,
    select,
)
from foretrain.cost.network import Network
from foretrain.errors import Bug, InputError
from foretrain.testing import collectives as kit

GB = 1e9


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.name}-{a.collectives[0]}")
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


class Hasty(Ring):
    """Claims fewer hops than its rounds need."""

    def steps(self, collective, ranks, domains):
        return Steps(1, domains > 1)


class Deaf(Ring):
    """Keeps its messages between neighbours one way and back: the far ranks hear nothing of each other."""

    def program(self, collective, size, layout, chunks=1):
        whole = super().program(collective, size, layout, chunks)
        near = whole.rounds[0]
        keep = near.src < near.dst
        if len(layout) < 4:
            return whole
        return CollectiveProgram(
            whole.ranks,
            (Round(near.src[keep], near.dst[keep], near.bytes[keep]),) * len(whole.rounds),
        )


class Lopsided(Ring):
    """Every byte is there, but not where the program sends it."""

    def flows(self, groups, domain_of):
        f = super().flows(groups, domain_of)
        return Flows(f.group, f.dst, f.src, f.weight)


@pytest.mark.parametrize(
    ("broken", "why"),
    [(Hasty(), "latency of"), (Deaf(), "do not reach"), (Lopsided(), "other ranks")],
)
def test_the_kit_holds_flows_and_steps_against_the_program(broken, why):
    with pytest.raises(AssertionError, match=why):
        kit.check_collective(broken)


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


@pytest.mark.parametrize(
    ("placement", "channels"),
    [((2, 3, 3), 2), ((4, 8), 4), ((6, 2), 2), ((3, 5, 7), 3), ((1, 7), 1), ((2, 3, 2, 3), 2)],
)
def test_uneven_groups_use_as_many_ports_as_the_smallest_node_has(placement, channels):
    cluster = Cluster.of(f"{len(placement)} x dgx-a100-80gb").placed(placement)
    network = Network(cluster)
    n = sum(placement)
    seconds = kit.switch_seconds(Ring(), "all_reduce", GB, np.arange(n), cluster)
    port = network.capacity[network.is_network].min()
    assert seconds == pytest.approx(2 * (n - 1) / n * GB / (channels * port), rel=1e-9)


def test_groups_of_unlike_shape_do_not_slow_each_other_down():
    """An even group keeps its rails when an uneven one is asked for at the same time."""
    domain_of = np.array([0, 0, 1, 1, 0, 1, 1, 1])
    both = Ring().flows(np.array([[0, 1, 2, 3], [4, 5, 6, 7]]), domain_of)
    alone = Ring().flows(np.array([[0, 1, 2, 3]]), domain_of)
    mine = both.group == 0
    assert sorted(zip(both.src[mine], both.dst[mine], both.weight[mine], strict=True)) == sorted(
        zip(alone.src, alone.dst, alone.weight, strict=True)
    )
    assert (alone.weight == 0.5).all()


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

WIRING = GroupTopology(ranks=8, domains=1, link_family="nvlink", rate=240e9)


def test_long_messages_run_at_the_links_rate():
    choice = select("all_reduce", 1e10, WIRING, "nccl")
    assert choice.algorithm == "ring"
    assert choice.seconds(WIRING.rate) == pytest.approx(2 * 7 / 8 * 1e10 / 240e9, rel=1e-2)


def test_short_messages_take_the_protocol_of_least_latency():
    choice = select("all_reduce", 8.0, WIRING, "nccl")
    assert choice.protocol == "LL"
    assert choice.seconds(WIRING.rate) < 20e-6


def test_several_nodes_take_a_tree_for_short_messages_and_a_ring_for_long_ones():
    wide = GroupTopology(ranks=32, domains=4, link_family="nvlink", rate=100e9)
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


def nccl(size, collective="all_reduce", **wiring):
    known = {"ranks": 8, "domains": 1, "link_family": "nvlink", "rate": 369e9, **wiring}
    return select(collective, size, GroupTopology(**known), "nccl")


def test_switches_reduce_from_hopper_on():
    for architecture, has_switch, expected in [
        ("hopper", True, "nvls"),
        ("blackwell-ultra", True, "nvls"),
        ("ampere", True, "ring"),
        ("hopper", False, "ring"),
    ]:
        choice = nccl(1e9, architecture=architecture, has_switch=has_switch)
        assert choice.algorithm == expected, architecture


def test_in_switch_reduction_is_as_fast_as_measured():
    """nccl-tests, 8 × H100: 2.11 ms for 512 MiB (aic_nccl_intranode, NCCL 2.29)."""
    choice = nccl(2.0**29, architecture="hopper", has_switch=True)
    assert choice.seconds(369e9) == pytest.approx(2.11e-3, rel=0.1)


def test_switches_of_several_nodes_are_joined_by_trees():
    wide = {"ranks": 32, "domains": 4, "architecture": "hopper", "has_switch": True, "rate": 300e9}
    sizes = np.logspace(2, 10, 40)
    assert "nvls_tree" in {nccl(size, **wide).algorithm for size in sizes}
    assert "nvls" not in {nccl(size, **wide).algorithm for size in sizes}


@pytest.mark.parametrize(
    ("architecture", "most"), [("volta", 39e9), ("ampere", 87.7e9), ("hopper", 141e9)]
)
def test_the_low_latency_protocol_has_a_ceiling(architecture, most):
    """llMaxBws of NCCL's tuner: bus bandwidth of LL on one node however fast the links."""
    wiring = GroupTopology(8, 1, "nvlink", 1e13, architecture=architecture)
    choice = select("all_reduce", 1e9, wiring, "nccl", chosen({"all_reduce": "ring/LL"}))
    assert choice.seconds(1e13) - choice.latency == pytest.approx(2 * 7 / 8 * 1e9 / most, rel=1e-9)


def test_channels_bound_ll128_and_trees():
    slow = GroupTopology(8, 1, "nvlink", 1e12, architecture="ampere", channels=2)
    choice = select("all_reduce", 1e9, slow, "nccl", chosen({"all_reduce": "ring/LL128"}))
    assert choice.seconds(1e12) - choice.latency == pytest.approx(1.75e9 / 40e9, rel=1e-9)
    choice = select("all_reduce", 2.0**32, slow, "nccl", chosen({"all_reduce": "tree/Simple"}))
    assert choice.seconds(1e12) - choice.latency == pytest.approx(2.0**33 / 48e9, rel=1e-9)


def test_ll128_needs_nvlink():
    found = {nccl(s, link_family="pcie", rate=12e9).protocol for s in np.logspace(1, 9, 50)}
    assert found == {"LL", "Simple"}
    assert "LL128" in {nccl(s).protocol for s in np.logspace(1, 9, 50)}


def test_trees_are_corrected_by_message_size():
    assert tuner.correction("LL", 64 * 2**12) == 0.4
    assert tuner.correction("Simple", 64 * 2**11) == 0.5
    assert tuner.correction("Simple", 1e12) == 1.0
    assert tuner.correction("LL", 8) == 1.0


# MPICH's thresholds (Thakur et al. 2005) where every pattern is routed.
ROUTED = tuple((a.pattern, 10e9) for a in ALGORITHMS)
HOSTS = GroupTopology(ranks=16, domains=16, link_family="default", rate=10e9, rates=ROUTED)


@pytest.mark.parametrize(
    ("collective", "size", "algorithm"),
    [
        ("all_reduce", 1024, "recursive_doubling"),
        ("all_reduce", 1e6, "halving_doubling"),
        ("reduce_scatter", 1e5, "recursive_halves"),
        ("reduce_scatter", 1e7, "pairwise"),
        ("all_gather", 1e5, "recursive_halves"),
        ("all_gather", 1e7, "ring"),
        ("broadcast", 1e3, "binomial"),
        ("broadcast", 1e6, "scatter_gather"),
        ("all_to_all", 16 * 200, "bruck"),
        ("all_to_all", 16 * 2000, "direct"),
        ("all_to_all", 16 * 1e6, "pairwise"),
    ],
)
def test_mpi_follows_its_thresholds(collective, size, algorithm):
    assert select(collective, size, HOSTS, "mpi").algorithm == algorithm


def test_small_broadcasts_stay_binomial_for_few_ranks():
    few = GroupTopology(4, 4, "default", 10e9, rates=ROUTED)
    assert select("broadcast", 1e6, few, "mpi").algorithm == "binomial"


def test_long_mpi_messages_shake_hands_first():
    assert select("send", 1e3, HOSTS, "mpi").protocol == "eager"
    assert select("send", 1e6, HOSTS, "mpi").protocol == "rendezvous"


def test_without_known_links_only_default_patterns_are_chosen():
    for library, collective in itertools.product(("nccl", "gloo", "mpi"), kit.LEAST):
        default = {a.pattern for a in algorithms_for(collective)}
        for size in (10.0, 1e5, 1e9):
            assert select(collective, size, WIRING, library).pattern in default


def test_the_user_may_choose():
    choose = chosen({"all_reduce": "hierarchical", "all_to_all": "bruck/Simple"})
    assert select("all_reduce", 1e6, WIRING, "nccl", choose).algorithm == "hierarchical"
    choice = select("all_to_all", 1e6, WIRING, "nccl", choose)
    assert (choice.algorithm, choice.protocol) == ("bruck", "Simple")
    assert algorithms_for("all_reduce", "nccl", choose)[0].name == "hierarchical"


def test_faults_of_a_choice_are_all_named():
    with pytest.raises(InputError) as caught:
        chosen({"all_reduce": "rings", "all_reduces": "ring"})
    assert "Did you mean 'ring'" in str(caught.value)
    assert "Did you mean 'all_reduce'" in str(caught.value)
    with pytest.raises(InputError, match="no protocol 'LL256'"):
        select("all_reduce", 1e6, WIRING, "nccl", chosen({"all_reduce": "ring/LL256"}))


# --- terms that are not linear --------------------------------------------------------------------------


def test_half_the_bandwidth_is_reached_at_the_half_size():
    assert ramped(2e6, 1e6, 1e6) == 4e6
    assert ramped(2e12, 1e12, 1e6) == pytest.approx(2e12, rel=1e-5)


def max_rate_seconds(
    senders: int, size: float, latency: float, port_rate: float, sender_rate: float
) -> float:
    """`senders` share one port, none of them faster than `sender_rate`: alpha + k·m/min(R_N, k·R_C)."""
    return latency + senders * size / min(port_rate, senders * sender_rate)


def test_senders_share_a_port_up_to_their_own_rate():
    """Gropp, Olson & Samfass 2016: k·m/min(R_N, k·R_C)."""
    assert max_rate_seconds(1, 1e9, 0.0, 10e9, 4e9) == pytest.approx(1e9 / 4e9)
    assert max_rate_seconds(2, 1e9, 0.0, 10e9, 4e9) == pytest.approx(1e9 / 4e9)
    assert max_rate_seconds(5, 1e9, 0.0, 10e9, 4e9) == pytest.approx(5e9 / 10e9)


def test_the_ceiling_of_a_sender_gives_the_max_rate_model():
    """k groups of one rank per node over one port: max-min sharing under the ceiling is min(R_N, k·R_C)/k."""
    choice = select("all_reduce", 1e9, GroupTopology(2, 2, "default", 100e9), "gloo")
    assert choice.max_rate == 4e9
    for groups in (1, 2, 5):
        share = min(choice.max_rate, 10e9 / groups)
        alone = max_rate_seconds(groups, choice.volume, choice.latency, 10e9, 4e9)
        assert choice.seconds(share) == pytest.approx(alone)


def test_incast_hurts_tcp_only():
    assert incast_factor(9, 0.0, 0.0) == 1.0
    assert incast_factor(9, 0.05, 1.0) == pytest.approx(1.4)
    assert incast_factor(100, 0.05, 1.0) == 2.0
    star = {"ranks": 8, "domains": 8, "link_family": "default", "rate": 1e9}
    tcp = select("parameter_server", 1e8, GroupTopology(**star, transport="tcp"), "gloo")
    rdma = select("parameter_server", 1e8, GroupTopology(**star, transport="rdma"), "gloo")
    assert tcp.volume == pytest.approx(1.3 * rdma.volume)  # seven senders at once
    ring = [
        select("all_reduce", 1e8, GroupTopology(**star, transport=t), "gloo")
        for t in ("tcp", "rdma")
    ]
    assert ring[0] == ring[1]


@pytest.mark.parametrize(
    ("collective", "senders"),
    [
        ("all_to_all", 1.0),
        ("all_to_all_v(1)", 2.0),
        ("parameter_server(1)", 7.0),
        ("parameter_server(2)", 4.0),
        ("neighbour_all_reduce(star)", 7.0),
        ("neighbour_all_reduce(torus2d)", 1.0),
    ],
)
def test_senders_that_meet_in_one_port(collective, senders):
    """Balanced exchanges offer a port no more than its rate, however many take part."""
    assert algorithms_for(collective)[0].fan_in(8) == pytest.approx(senders, rel=0.15)


def test_routed_patterns_are_taken_even_if_the_library_prefers_others():
    known = GroupTopology(8, 8, "default", 1e9, rates=(("chain broadcast", 1e9),))
    assert select("broadcast", 1e6, known, "gloo").algorithm == "chain"


def test_an_unknown_collective_is_our_bug():
    with pytest.raises(Bug, match="no algorithm"):
        select("gossip", 1.0, WIRING, "nccl")


def test_protocols_have_sane_constants():
    for library in ("nccl", "gloo", "mpi"):
        for protocol in protocols(library):
            assert 0 < protocol.efficiency <= 1
            assert 0 < protocol.base < 1e-3
            assert protocol.between >= 0
