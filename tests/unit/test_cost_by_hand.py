"""Costs of single items, each put together by hand from its parts."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.cluster.catalog import devices
from foretrain.cluster.cluster import Cluster
from foretrain.compile.exchanges import FromBuffer, Vectors
from foretrain.compile.execution import Communication, Communicator
from foretrain.cost import curves, interference
from foretrain.cost.calibration.efficiencies import table
from foretrain.cost.collective_costs import _Group, _lasting, contended, library_cost
from foretrain.cost.compute.base import latest, slowest
from foretrain.cost.compute.calibrated import Calibrated
from foretrain.cost.items import ItemCosts, Surroundings, copy_rate, kernel_costs
from foretrain.cost.network import Network, wiring_of
from foretrain.model.ops.base import LAUNCHES, Kernel
from foretrain.runtime import Runtime, runtime

NODE, TWO_NODES = "1 x dgx-a100-80gb", "2 x dgx-a100-80gb"


# --- kernels ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "on", [NODE, "8 x dgx-h100", "4 x aws:g4dn.12xlarge"]
)  # boards of the last vary
def test_a_kernel_takes_its_time_at_a_stacks_pace_on_the_slowest_board(on):
    cluster = Cluster.of(on)
    options = {"kernel_slowdown": 1.25, "jitter_seconds": 2e-5, "kernels_per_tensor": 3.0}
    stack = runtime("megatron").with_options({**options, "host_seconds_per_kernel": 7e-6})
    around = Surroundings(cluster, stack, Network(cluster), Calibrated())
    copy = Kernel("memory", "copy", 0.0, 4e8, "fp32")
    tensors = Kernel(LAUNCHES, "update", 0.0, 0.0, "fp32", (11,))
    plain, issued = kernel_costs([copy, tensors], 0, around).seconds
    device = cluster.devices[0]
    alone = Calibrated().seconds([copy], device).seconds[0]
    board = slowest(device.identity, cluster.device_count)
    assert plain == pytest.approx(alone * 1.25 * board)
    waits = 2e-5 * latest(cluster.device_count)
    assert issued == pytest.approx((11 * 3.0 * 7e-6 + waits) * board)


@pytest.mark.parametrize("count", [2, 3, 8, 64, 1024])
def test_the_latest_of_many_is_as_late_as_drawn(count):
    """Blom's rule is within a twentieth of the expected largest of so many normal values."""
    drawn = np.random.default_rng(count).standard_normal((20_000_000 // count // 10, count))
    assert latest(count) == pytest.approx(float(drawn.max(axis=1).mean()), rel=0.05)
    assert latest(1) == 0.0


def test_boards_that_do_not_vary_are_all_the_slowest():
    assert slowest("no such board", 1024) == 1.0
    varying = next(name for name in devices() if slowest(name, 64) > 1.0)
    assert slowest(varying, 1) == 1.0
    spread = slowest(varying, 64) - 1.0
    assert (slowest(varying, 1024) - 1.0) / spread == pytest.approx(latest(1024) / latest(64))


def test_efficiencies_are_of_the_device_else_its_architecture_else_its_kind():
    known = table()

    def of(identity, architecture, kind):
        return known.of(SimpleNamespace(identity=identity, architecture=architecture, kind=kind))

    own = next(name for name in known.devices if name in devices())
    family = devices()[own].architecture
    assert of(own, family, "gpu") == (known.devices[own], True)
    assert of("unheard of", own, "gpu") == (known.devices[own], True)
    assert of("unheard of", "", "gpu") == (known.devices["gpu"], False)
    assert of("unheard of", "", "cpu") == (known.devices["cpu"], True)


# --- copies -----------------------------------------------------------------------------------------------


def test_copies_go_at_the_rate_of_a_slot_or_of_a_share_of_host_memory():
    node = Cluster.of(NODE).node(0)
    device = node.devices[0]
    assert copy_rate(device, node, "to_host") == device.pcie_bandwidth
    assert copy_rate(device, node, "host_memory") == node.host.memory_bandwidth / 8
    nothing_known = replace(node, host=replace(node.host, memory_bandwidth=None))
    assert copy_rate(device, nothing_known, "host_memory") == device.pcie_bandwidth / 8


# --- beside a kernel --------------------------------------------------------------------------------------


def beside(kernel, moving, *, purpose="tensor", is_network=False, **options):
    cluster = Cluster.of(NODE)
    stack = Runtime(name="plain").with_options(options)
    stub = SimpleNamespace(runtime=stack, cluster=cluster, devices=np.zeros(1, int))
    charged = SimpleNamespace(is_network=is_network)
    return ItemCosts._beside(stub, kernel, moving, 0, charged, purpose)


@pytest.mark.parametrize(("kernel", "moving"), [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (2.0, 0.0)])
def test_what_a_collective_adds_to_the_kernel_it_started_with(kernel, moving):
    assert beside(kernel, moving, overlap_slows=False) == max(0.0, moving - kernel)
    # a quarter of the device moves data: kernels take 4/3 as long meanwhile
    slowed = kernel * 4 / 3
    expected = moving / 4 if slowed > moving else moving - kernel
    assert beside(kernel, moving, exchange_share=0.25) == pytest.approx(expected)
    device = Cluster.of(NODE).devices[0]
    for share, is_network, purpose in ((0.25, True, "tensor"), (0.25, False, "data"), (0.0, False, "tensor"), (1.0, False, "tensor")):  # fmt: skip
        factors = interference.factors(device, is_network)
        both = interference.pair(
            kernel,
            moving,
            float(factors[interference.COMPUTE, interference.COLLECTIVE]),
            float(factors[interference.COLLECTIVE, interference.COMPUTE]),
        )
        found = beside(kernel, moving, exchange_share=share, is_network=is_network, purpose=purpose)
        assert found == pytest.approx(both - kernel)


@settings(max_examples=60, deadline=None)
@given(*[st.floats(0.0, 5.0)] * 2, *[st.floats(1.0, 3.0)] * 2)
def test_two_that_slow_each_other_are_done_when_both_are(first, second, slow, slowed):
    """In small steps of time, each as far on as its rate lets it."""
    found = interference.pair(first, second, slow, slowed)
    if min(first, second) == 0.0:
        assert found == pytest.approx(max(first, second))
        return
    left, clock = [first, second], 0.0
    meanwhile = min(first * slow, second * slowed)
    left = [first - meanwhile / slow, second - meanwhile / slowed]
    clock = meanwhile + max(left)
    assert found == pytest.approx(clock)
    assert found >= max(first, second) * (1.0 - 1e-12)


# --- collectives ------------------------------------------------------------------------------------------


def test_fused_tensors_are_copied_in_and_out_and_a_lone_one_is_not():
    network = Network(Cluster.of(NODE))
    device = network.cluster.devices[0]
    reached, _ = table().of(device)
    group = _Group(network, 8, 1, lambda: np.arange(8))

    def seconds(tensors, delay=0.0):
        work = FromBuffer("all_reduce", 1e7, Communicator(("dp",)), "data", tensors, delay)
        return work.more_seconds(group)

    assert seconds(1, 3e-4) == 3e-4
    moved = 2 * 1e7 / (device.memory_bandwidth * reached.memory)
    for tensors in (2, 9):
        both = 2 * (tensors * reached.start_seconds + moved)
        assert seconds(tensors, 3e-4) == pytest.approx(3e-4 + both)


def test_sums_inside_a_node_need_several_ranks_on_several_nodes():
    network = Network(Cluster.of(TWO_NODES))
    work = Vectors("all_to_all", 1.0, Communicator(("dp",)), "embedding", 1e6, (10**9,))
    slowest_inside = float(network.capacity[~network.is_network].min())
    for domains, ranks, factor in ((1, 8, 0.0), (2, 2, 0.0), (2, 4, 1 / 2), (2, 16, 7 / 8)):
        group, each = _Group(network, ranks, domains, lambda: np.arange(1)), ranks // domains
        # a bag without end has a part at every rank of every node
        expected = 1e6 * domains * each * factor / slowest_inside
        assert work.more_seconds(group) == pytest.approx(expected)


@pytest.mark.parametrize(("latency", "kept"), [(1e-5, 1e-5), (5e-3, 0.9e-3)])
def test_a_measured_time_is_kept_at_the_groups_own_rate(latency, kept):
    from foretrain.cost.collectives.selector import AlgorithmChoice

    names = AlgorithmChoice.__dataclass_fields__
    blank = dict.fromkeys(names)
    found = _lasting(AlgorithmChoice(**blank | {"latency": latency, "volume": 1.0}), 1e-3, 1e9)
    assert found.latency == pytest.approx(kept)
    assert found.latency + found.volume / 1e9 == pytest.approx(1e-3)
    assert found.max_rate is None


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather"])
def test_a_group_that_was_measured_takes_what_was_measured(collective):
    network, members = Network(Cluster.of(NODE)), np.arange(8)
    rates = {a.pattern: 2e11 for a in network.algorithms(collective)}
    wiring = wiring_of(network, members, tuple(rates.items()))
    work = Communication(collective, 2.0**26, Communicator(("dp",)), "data")
    price = library_cost(network, work, members, wiring, rates, "nccl", lambda: members)
    assert price.is_measured
    seconds = curves.shipped().seconds("a100-sxm4-80gb", 8, collective, 2**26)
    assert price.choice.seconds(2e11) == pytest.approx(seconds)


@pytest.mark.parametrize("on", [NODE, TWO_NODES, "2 x aws:p3.8xlarge"])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all"])
def test_groups_that_move_at_once_share_links_by_what_they_put_there(on, collective, ranks):
    """Link by link in a dictionary: a group is as fast as the link that is worst for it."""
    network = Network(Cluster.of(on))
    count = network.cluster.device_count
    groups = np.arange(count).reshape(ranks, -1).T.copy()  # far apart
    found = contended(network, groups, collective, "nccl")
    slowest_group = None
    for algorithm in {a.pattern: a for a in network.algorithms(collective)}.values():
        loads = network.pattern_loads(algorithm, groups)
        on_link, mine = {}, [{} for _ in groups]
        for group, link, weight in zip(loads.group, loads.link, loads.weight, strict=True):
            on_link[link] = on_link.get(link, 0.0) + weight
            mine[group][link] = mine[group].get(link, 0.0) + weight
        rates = [min(network.capacity[k] / on_link[k] for k in links) for links in mine]
        if slowest_group is None:
            slowest_group = rates.index(min(rates))
        own = min(network.capacity[k] / w for k, w in mine[slowest_group].items())
        assert found.rate[algorithm.pattern] == pytest.approx(rates[slowest_group])
        assert found.own_rate[algorithm.pattern] == pytest.approx(own)
        assert own >= rates[slowest_group] * (1.0 - 1e-12)
    assert found.members.tolist() == groups[slowest_group].tolist()
    crosses = len({int(network.cluster.node_of[rank]) for rank in found.members}) > 1
    assert found.is_network == crosses
    total, flow = found.seconds(1e7)
    assert 0 < flow < total
    assert found.seconds(2e7)[1] > flow
