"""Links, measured curves and hosts of small clusters: what groups meet there, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foretrain.cluster.cluster import Cluster
from foretrain.compile.execution import Communication, Communicator, Copy, Item
from foretrain.cost.collective_costs import _Group, contended, library_cost
from foretrain.cost.collectives import ALGORITHMS, chosen
from foretrain.cost.collectives.selector import link_efficiency
from foretrain.cost.curves import (
    CurveTable,
    InterconnectCurves,
    MeasuredCurve,
    MeasuredSeconds,
    OwnCurves,
)
from foretrain.cost.host import host_seconds
from foretrain.cost.interference import pair, together
from foretrain.cost.items import copy_rate
from foretrain.cost.joints import Joints
from foretrain.cost.network import Network, wiring_of
from foretrain.runtime import Runtime

A100, TWO = "a100-sxm4-80gb", "2 x dgx-a100-80gb"
RING = next(a for a in ALGORITHMS if a.name == "ring")
SEND = next(a for a in ALGORITHMS if a.name == "send")


# --- what joins a group -------------------------------------------------------------------------


def test_a_group_is_changed_by_the_links_that_it_uses() -> None:
    changed = Cluster.of(TWO).scaled(network=2.0, network_latency=3.0, interconnect=5.0, interconnect_latency=7.0)  # fmt: skip
    joints = Joints(changed)
    near, far = joints.of(np.arange(8)), joints.of(np.arange(16))
    assert (near.scale, near.latency_scale) == (5.0, 7.0)
    assert (far.scale, far.latency_scale) == (2.0, 3.0)
    assert near.bandwidth == far.bandwidth == 5 * 300e9
    assert near.latency == 7 * Joints(Cluster.of(TWO)).of(np.arange(8)).latency


def test_groups_of_the_same_devices_in_the_same_machines_have_one_joint() -> None:
    cluster = Cluster.of("2 x dgx-a100-80gb + 2 x dgx-h100")
    joints = Joints(cluster)
    assert joints.of(np.arange(8)) is joints.of(np.arange(8, 16))
    assert joints.of(np.arange(8)) is not joints.of(np.arange(16, 24))
    assert joints.of(np.arange(8)) is not joints.of(np.arange(16))  # which leaves its machine
    mixed, other = joints.of(np.array([0, 16])), joints.of(np.array([16, 0]))
    assert mixed.devices == other.devices == (A100, "h100-sxm5-80gb")
    assert mixed.bandwidth == 300e9  # the slowest counts
    assert (mixed.node.name, other.node.name) == ("dgx-a100-80gb", "dgx-h100")


# --- measured curves ----------------------------------------------------------------------------


def line(alpha: float, rate: float, **more: Any) -> MeasuredCurve:
    sizes = 2.0 ** np.arange(9, 34)
    return MeasuredCurve(sizes, alpha + sizes / rate, **more)


def near() -> Any:
    return Joints(Cluster.of("1 x dgx-a100-80gb")).of(np.arange(8))


def table(kind: str = "", bandwidth: float = 1.0, latency: float = 1.0, **more: Any) -> CurveTable:
    held = {A100: InterconnectCurves(kind, bandwidth, latency)} if kind else {}
    return CurveTable({(A100, 8, "all_reduce"): line(1e-5, 1e11, **more)}, {}, held)


def alone(of: CurveTable, joint: Any, ranks: int = 8, collective: str = "all_reduce") -> MeasuredSeconds:  # fmt: skip
    return of.alone(joint, ranks, collective, 2.0**30)


def test_on_faster_links_the_transfer_shrinks_and_the_floor_follows_latency() -> None:
    """Measured at half the bandwidth and a third of the latency: ten microseconds become thirty."""
    joint, moved = near(), 2.0**30 / 1e11
    measured = table("nvlink3-nvswitch", joint.bandwidth / 2, joint.latency / 3)
    assert alone(measured, joint).seconds == pytest.approx(3e-5 + moved / 2)
    same = table("nvlink3-nvswitch", joint.bandwidth, joint.latency / 3)
    assert alone(same, joint).seconds == pytest.approx(3e-5 + moved)
    # where nothing is known of the links measured, a what-if says how they changed
    changed = replace(joint, scale=4.0, latency_scale=5.0)
    assert alone(table(), changed).seconds == pytest.approx(5e-5 + moved / 4)
    assert alone(table(), joint).seconds == pytest.approx(1e-5 + moved)
    half = alone(table(), changed, collective="all_gather").seconds
    assert half == pytest.approx((5e-5 + moved / 4) / 2)


def test_why_curves_do_not_hold() -> None:
    joint = near()
    assert alone(table(), joint, ranks=4) == MeasuredSeconds()
    assert alone(table(), joint, collective="all_to_all") == MeasuredSeconds()
    assert "a100-sxm4-80gb and l4 were never measured together" in alone(table(), replace(joint, devices=(A100, "l4"))).left  # fmt: skip
    assert "measured on pcie4" in alone(table("pcie4"), joint).left
    assert "on one machine only (box)" in alone(table(only_on="box"), joint).left
    own = alone(table(only_on=joint.node.identity), joint)
    assert own.seconds == pytest.approx(1e-5 + 2.0**30 / 1e11)


def test_counts_of_ranks_between_and_beyond_those_measured() -> None:
    """On log-log lines between 4 and 16 ranks, by the share that crosses a port; beyond by steps and that share."""
    curves = {("d", n, c): line(a, 1e11) for c in ("all_gather", "all_reduce", "broadcast") for n, a in ((4, 2e-5), (16, 4e-5))}  # fmt: skip
    known = CurveTable(curves, {"twin": "d"}, {})
    few, many = 2e-5 + 1e9 / 1e11, 4e-5 + 1e9 / 1e11
    assert known.seconds("d", 4, "all_gather", 1e9) == pytest.approx(few, rel=1e-3)
    mixed = np.exp((log(few / 0.75) + log(many / (15 / 16))) / 2) * 7 / 8
    assert known.seconds("d", 8, "all_gather", 1e9) == pytest.approx(mixed, rel=1e-3)
    assert known.seconds("twin", 8, "all_gather", 1e9) == known.seconds("d", 8, "all_gather", 1e9)
    crossed = (31 / 32) / (15 / 16)
    step = 2e-5 / 12  # for each rank of a ring more …
    assert known.seconds("d", 32, "all_gather", 1e9) == pytest.approx(4e-5 + 16 * step + 1e-2 * crossed, rel=1e-3)  # fmt: skip
    assert known.seconds("d", 32, "all_reduce", 0.0) == pytest.approx(
        5e-5, rel=1e-3
    )  # … or doubling
    assert known.seconds("d", 32, "broadcast", 1e9) == pytest.approx(5e-5 + 1e-2, rel=1e-3)
    assert known.seconds("d", 2, "all_gather", 1e9) is None
    one = CurveTable({("d", 4, "all_gather"): curves["d", 4, "all_gather"]}, {}, {})
    assert one.seconds("d", 8, "all_gather", 1e9) == pytest.approx(2e-5 + 1e-2 * (7 / 8) / 0.75, rel=1e-3)  # fmt: skip


def test_a_curve_may_stay_but_not_fall() -> None:
    stays = MeasuredCurve([1.0, 2.0, 3.0], [1.0, 1.0, 5.0])
    assert stays.at([1.5, 3.0]) == pytest.approx([1.0, 5.0])
    for times in ([1.0, 3.0, 2.0], [3.0, 2.0, 4.0]):
        with pytest.raises(ValueError, match="must not fall"):
            MeasuredCurve([1.0, 2.0, 3.0], times)
    with pytest.raises(ValueError, match="rise from knot to knot"):
        MeasuredCurve([1.0, 1.0, 3.0], [1.0, 2.0, 3.0])


def test_what_a_user_measured_over_sockets_is_what_it_takes() -> None:
    """Its messages went through the sockets of hosts already; modelled times wait for those besides."""
    cluster = Cluster.of("2 x aws:p3.8xlarge")
    members = np.arange(8)
    device = cluster.devices[0].identity
    own = OwnCurves({("nccl", 2): CurveTable({(device, 8, "all_reduce"): line(1e-3, 1e9)}, {}, {})})
    rates = (("ring", 1e10),)
    found = []
    for curves in (own, None):
        network = Network(cluster, own=curves)
        wiring = wiring_of(network, members, rates)
        work = Communication("all_reduce", 2.0**26, Communicator(("dp",)), "data")
        found.append(library_cost(network, work, members, wiring, dict(rates), "nccl", lambda: members))  # fmt: skip
    assert [cost.is_measured for cost in found] == [True, False]
    assert found[0].choice.seconds(1e10) == pytest.approx(1e-3 + 2.0**26 / 1e9)
    assert own.of("nccl-pods", 2) is own.of("nccl", 2)
    assert own.of("nccl", 1) is None


# --- the network --------------------------------------------------------------------------------


def test_flows_spread_over_equal_ways() -> None:
    """A square of cables: half of what goes across takes either way around; what goes to a neighbour has one."""
    edges = [[one, other, "10Gb/s"] for one, other in ((0, 1), (1, 3), (0, 2), (2, 3))]
    drawn = {"topology": "graph", "edges": edges, "routing": "ecmp"}
    network = Network(Cluster.of({"nodes": "4 x p3.2xlarge", "network": drawn}))
    loads = network.pattern_loads(SEND, np.array([[0, 3], [2, 3]]))
    across, beside = (loads.weight[loads.group == group].tolist() for group in (0, 1))
    assert (across, beside) == ([0.5] * 4, [1.0])
    all_ = next(a for a in network.algorithms("all_to_all_v(0)"))  # a quarter to each of the others
    carried = network.pattern_loads(all_, np.arange(4)[None, :])
    assert np.bincount(carried.link, carried.weight) == pytest.approx([0.25 + 2 * 0.125] * 8)


def test_what_a_cluster_says_of_itself() -> None:
    cluster = Cluster.of(TWO).scaled(interconnect_latency=2.0, network_latency=3.0)
    network = Network(cluster)
    assert (network.link_family, network.architecture, network.has_switch) == ("nvlink", "ampere", True)  # fmt: skip
    assert (network.inside_latency, network.between_latency, network.transport) == (2.0, 3.0, "")
    links = network.links
    assert len(network.capacity) == 2 * links
    tier = np.asarray(cluster.topology.tier)
    assert network.is_network.tolist() == [*(tier == 1), *(tier == 1)]
    rated = np.asarray(cluster.topology.capacity)
    share = np.where(tier == 1, link_efficiency("network", "infiniband"), link_efficiency("interconnect", "nvlink3"))  # fmt: skip
    assert network.capacity == pytest.approx(np.tile(rated * share, 2))
    names = [network.link_name(link) for link in (0, links - 1, links, 2 * links - 1)]
    assert [name.endswith(" (sends)") for name in names] == [False, False, True, True]
    assert names[2] == f"{names[0]} (sends)"
    group = wiring_of(network, np.array([0, 1, 8]))
    assert (group.ranks, group.domains, group.rate, group.rates) == (3, 2, 0.0, ())
    assert wiring_of(network, np.arange(2), (("ring", 5.0), ("direct", 6.0))).rate == 5.0


def test_sends_on_fast_links_have_a_lane_of_their_own() -> None:
    pairs = np.array([[0, 1], [0, 8]])
    network = Network(Cluster.of(TWO))
    loads = network.pattern_loads(SEND, pairs)
    lanes = loads.link >= network.links
    assert lanes[loads.group == 0].all()
    assert not lanes[network.is_network[loads.link]].any()
    slow = Network(Cluster.of("1 x aws:g5.48xlarge"))
    assert (slow.pattern_loads(SEND, pairs[:1]).link < slow.links).all()
    assert (network.pattern_loads(RING, pairs).link < network.links).all()


def test_what_a_plugin_reports_is_told_to_a_tuner_only() -> None:
    """75 microseconds of EFA, and as much longer as its cards become."""
    efa = Cluster.of("2 x aws:p4d.24xlarge")
    assert Network(efa).reported == pytest.approx(75e-6)
    assert Network(efa.scaled(network_latency=2.0)).reported == pytest.approx(150e-6)
    assert Network(efa, "mpi").reported == Network(Cluster.of(TWO)).reported == 0.0
    lone = Network(Cluster.of("1 x p3.2xlarge"))
    assert lone.between_latency == 1.0
    assert Network(Cluster.of("2 x p3.2xlarge")).transport == "tcp"


def test_own_curves_stand_before_those_that_ship_and_a_choice_before_both() -> None:
    cluster = Cluster.of(TWO)
    own = OwnCurves({("nccl", 1): table(), ("mpi", 2): table()})
    assert len(Network(cluster).curves("nccl", 1)) == 1
    assert Network(cluster).curves("nccl", 2) == Network(cluster).curves("mpi", 1) == ()
    both = Network(cluster, own=own)
    assert both.curves("nccl", 1)[0] is own.tables["nccl", 1]
    assert len(both.curves("nccl", 1)) == 2
    assert both.curves("mpi", 2) == (own.tables["mpi", 2],)
    assert Network(cluster, "nccl", chosen({"all_reduce": "ring"}), own).curves("nccl", 1) == ()


def test_the_slowest_group_of_a_communicator_decides() -> None:
    """By the library's first pattern, also where it has others."""
    network = Network(Cluster.of(TWO), "mpi")
    assert len({a.pattern for a in network.algorithms("all_reduce")}) > 1
    groups = np.array([[0, 1], [2, 10], [4, 5]])
    found = contended(network, groups, "all_reduce", "mpi")
    assert found.members.tolist() == [2, 10]
    assert found.is_network
    only = contended(network, groups[1:2], "all_reduce", "mpi")  # nobody else is on its links
    assert (found.rate, found.own_rate) == (only.rate, only.own_rate)
    lone = contended(network, groups[:1], "all_reduce", "mpi")
    assert lone.rate["ring"] > found.rate["ring"]
    assert not contended(network, groups[[0, 2]], "all_reduce", "mpi").is_network


def test_the_group_of_the_slowest_member_decides_where_members_send_by_themselves() -> None:
    network = Network(Cluster.of(TWO))
    groups = np.array([[0, 1], [2, 10], [4, 5]])
    found = contended(network, groups, "neighbour_all_reduce(ring_left)", "nccl")
    assert found.members.tolist() == [2, 10]
    assert found.is_network
    port = float(network.capacity[network.is_network].min())
    assert list(found.rate.values()) == list(found.own_rate.values()) == [pytest.approx(port)]


def test_sums_and_copies_inside_a_node_are_as_slow_as_its_slowest_part() -> None:
    """A buffer is read and written twice, in a kernel for each tensor."""
    mixed = Network(Cluster.of("1 x dgx-a100-80gb + 1 x dgx-1-v100-32gb"))

    def copied(*ranks: int) -> float:
        return _Group(mixed, len(ranks), 1, lambda: np.array(ranks)).copy_seconds(3, 1e9)

    assert copied(0, 1) < copied(8, 9) == copied(0, 8)
    inside = mixed.capacity[~mixed.is_network]
    group = _Group(mixed, 16, 2, lambda: np.arange(16))
    assert group.inside_seconds(1e9) == pytest.approx(1e9 / inside.min())
    lone = Network(Cluster.of("2 x p3.2xlarge"))
    assert lone.is_network.all()
    assert _Group(lone, 2, 2, lambda: np.arange(2)).inside_seconds(1e9) == 0.0


# --- hosts --------------------------------------------------------------------------------------

TENSOR, PIPELINE, DATA = (Communicator((axis,)) for axis in ("tp", "pp", "dp"))


@pytest.mark.parametrize(("homes", "late"), [([0, 0, 0, 1, 1, 1], 3e-5), ([0, 1, 2, 0, 2, 1], 3e-5), ([0, 1, 2, 0, 1, 2], 0.0)])  # fmt: skip
def test_hosts_are_late_only_where_pipelines_cross_the_network(homes: list[int], late: float) -> None:  # fmt: skip
    """Three ranks of a tensor-parallel group, ten microseconds each; that other groups cross it does not count."""
    groups = {TENSOR: [[0, 1, 2], [3, 4, 5]], PIPELINE: [[0, 3], [1, 4]], DATA: [[0, 5], [1, 3]]}
    fold: Any = SimpleNamespace(groups={key: SimpleNamespace(groups=np.array(rows)) for key, rows in groups.items()})  # fmt: skip
    cluster: Any = SimpleNamespace(node_of=homes)
    purposes = ((TENSOR, "tensor"), (PIPELINE, "pipeline"), (DATA, "data"))
    works = [Communication("all_reduce", 1.0, group, purpose) for group, purpose in purposes]
    items = [*map(Item, works), Item(Copy(1.0, "to_host"))]
    plain = Runtime(name="plain")
    polling = plain.with_options({"host_delay_on_network": 1e-5})
    before, after = (host_seconds(items, fold, cluster, stack) for stack in (plain, polling))
    assert (after - before).tolist() == pytest.approx([late, 0.0, 0.0, 0.0], abs=1e-12)


def test_copies_of_devices_joined_by_pcie_go_over_the_same_slots() -> None:
    for on, factor in (("1 x aws:g5.48xlarge", 3.0), ("1 x dgx-a100-80gb", 1.0)):
        node = Cluster.of(on).scaled(interconnect=3.0).node(0)
        device = node.devices[0]
        slot = device.pcie_bandwidth * factor
        assert copy_rate(device, node, "to_host") == copy_rate(device, node, "to_device") == slot
        bare = replace(node, host=replace(node.host, memory_bandwidth=None))
        assert copy_rate(device, bare, "host_memory") == slot / node.device_count


# --- what slows what ----------------------------------------------------------------------------


def test_activities_that_slow_each_other_end_one_after_the_other() -> None:
    """Two of 4 and 1 s: the short one, three times as slow, is done after 3, in which the other did 3 / 2."""
    assert pair(4.0, 1.0, 2.0, 3.0) == pair(1.0, 4.0, 3.0, 2.0) == pytest.approx(3 + 4 - 1.5)
    both = np.array([[9.0, 2.0], [3.0, 9.0]])  # nothing slows itself
    assert together(np.array([[4.0, 1.0], [4.0, 0.0], [0.0, 0.0]]), both).tolist() == [5.5, 4.0, 0.0]  # fmt: skip
    three = np.array([[1.0, 2.0, 2.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    # slowed by both for 1 s (a quarter), by one for another (a half), then alone
    assert together(np.array([[3.0, 1.0, 2.0]]), three).tolist() == pytest.approx([2 + 3 - 0.75])
