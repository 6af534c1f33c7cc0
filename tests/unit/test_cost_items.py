"""Seconds of single items, by hand: copies to host memory, exchanges of experts, sums inside a node."""

from __future__ import annotations

import numpy as np
import pytest
from support.plans import tiny_model

from foretrain.cluster.cluster import Cluster
from foretrain.compile.exchanges import Vectors
from foretrain.compile.execution import Communication, Communicator, Copy
from foretrain.cost.charging import priced
from foretrain.cost.network import Network, wiring_of
from foretrain.simulate import simulate_scenario
from foretrain.testing.asking import ask

NODE = "1 x dgx-a100-80gb"


def costed(model: str, plan: str, **options):
    """Every item that is no kernel, with its seconds alone."""
    scenario = ask(tiny_model(model), on=NODE, plan=plan, batch=16, runtime_options=options)
    simulated = simulate_scenario(scenario)
    seconds = simulated.costs.item_seconds.max(axis=0).tolist()
    return list(zip((item.work for item in simulated.graph.items), seconds, strict=True))


def test_updates_on_the_host_share_its_memory_between_the_devices_of_a_node():
    node = Cluster.of(NODE).node(0)
    copies = {w.direction: (w, s) for w, s in costed("gpt", "dp8 offload=optimizer") if isinstance(w, Copy)}  # fmt: skip
    updated, seconds = copies["host_memory"]
    assert seconds == pytest.approx(updated.bytes / (node.host.memory_bandwidth / 8))
    for way in ("to_host", "to_device"):  # every device has a slot of its own
        moved, seconds = copies[way]
        assert seconds == pytest.approx(moved.bytes / node.devices[0].pcie_bandwidth)


@pytest.mark.parametrize("hidden", [0.25, 1.0])
def test_exchanges_of_experts_hide_by_the_share_that_a_stack_overlaps(hidden):
    def exchanges(share: float) -> list[float]:
        found = costed("moe", "dp8 ep8", expert_overlap=share)
        return [s for w, s in found if isinstance(w, Communication) and w.purpose == "expert"]

    seen = exchanges(0.0)
    assert len(seen) > 0
    assert exchanges(hidden) == pytest.approx([(1.0 - hidden) * s for s in seen])


def test_nothing_but_exchanges_of_experts_hides_with_them():
    whole, hidden = (costed("moe", "tp2 dp4 ep4", expert_overlap=share) for share in (0.0, 0.5))
    others = [
        (a, b)
        for (work, a), (_, b) in zip(whole, hidden, strict=True)
        if not (isinstance(work, Communication) and work.purpose == "expert")
    ]
    assert len(others) > 10
    assert all(a == b for a, b in others)


def test_partial_sums_meet_inside_a_node_before_they_leave_it():
    """Of 16 ranks on two nodes, eight add up what they looked up as in a reduce-scatter: 7/8 of it moves."""
    network = Network(Cluster.of("2 x dgx-a100-80gb"))
    members = np.arange(16)
    rate = {a.pattern: 1e9 for a in network.algorithms("all_to_all")}
    wiring = wiring_of(network, members, tuple(rate.items()))

    def latency(work: Communication) -> float:
        found = priced(network, work, members, wiring, rate, "nccl", lambda: members)
        return found.choice.latency

    sums = Vectors("all_to_all", 0.0, Communicator(("dp",)), "reshard", 1e6, (64, 1))
    # of the bag of 64 both nodes nearly always have a part, of the single look-up one of them
    assert sums.sent(2) == pytest.approx(1e6 * (2 + 1), rel=0.02)
    plain = Communication("all_to_all", sums.sent(2), sums.group, sums.purpose)
    slowest = float(network.capacity[~network.is_network].min())
    expected = sums.inside(2, 8) * 7 / 8 / slowest
    assert latency(sums) - latency(plain) == pytest.approx(expected)
    assert expected > 0
