"""What a collective waits for beyond its library's own latencies: sockets, fusion buffers, coordinators."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.compile.exchanges import FromBuffer
from foretrain.compile.execution import Communicator
from foretrain.cost.charging import priced
from foretrain.cost.collectives.ring import Ring
from foretrain.cost.collectives.selector import GroupTopology, protocols, select
from foretrain.cost.network import network_of
from foretrain.testing.asking import ask

GROUP = Communicator(("dp",))
SOCKET = protocols("gloo")[0].between


def waits(on: str, domains: int, tensors: int = 1, delay: float = 0.0) -> float:
    cluster = ask("resnet50", on=on, batch=1024).cluster
    wiring = GroupTopology(8 * domains, domains, "nvlink", 1e9, "volta")
    work = FromBuffer("all_reduce", 1e6, GROUP, "data", tensors, delay)
    network = network_of(cluster, "nccl", (("all_reduce", "ring/Simple"),))
    choice = select("all_reduce", 1e6, wiring, "nccl", network.choose)
    rates = {choice.pattern: 1e9}
    price = priced(network, work, np.arange(1), wiring, rates, "nccl", lambda: np.arange(1))
    return price.choice.latency - choice.latency


def test_every_hop_between_hosts_takes_a_tcp_message():
    simple = next(p for p in protocols("nccl", "ring") if p.name == "Simple")
    hops = Ring().steps("all_reduce", 32, 4).between
    assert hops == 6
    assert waits("4 x p3.16xlarge", 4) == pytest.approx(hops * (SOCKET - simple.between))


def test_direct_cards_and_single_nodes_pay_nothing():
    assert waits("4 x dgx-1-v100-32gb", 4) == pytest.approx(0.0, abs=1e-12)  # InfiniBand
    assert waits("1 x p3.16xlarge", 1) == pytest.approx(0.0, abs=1e-12)


def test_several_tensors_are_copied_into_the_buffer_and_out():
    one, two, ten = (waits("1 x p3.16xlarge", 1, tensors) for tensors in (1, 2, 10))
    assert one == pytest.approx(0.0, abs=1e-12)
    moved = 2 * 2 * 1e6 / (900e9 * 0.90)  # in and out, each read and written
    start = (ten - two) / 16
    assert start == pytest.approx(3.5e-6)
    assert two == pytest.approx(moved + 4 * start)


def test_a_delay_is_added():
    late, usual = (waits("1 x p3.16xlarge", 1, 3, delay) for delay in (2e-3, 0.0))
    assert late - usual == pytest.approx(2e-3)
