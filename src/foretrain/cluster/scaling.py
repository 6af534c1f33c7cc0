"""What-if: the same hardware with other rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from foretrain.cluster.link import ClusterNetwork, Nics, times
from foretrain.cluster.node import Host, Node
from foretrain.cluster.quantities import Number, NumberOrZero, expect_quantities


@dataclass(frozen=True, slots=True)
class Factors:
    """How much faster (or, for latencies, slower) each part becomes."""

    network: Number = 1.0
    interconnect: Number = 1.0
    compute: Number = 1.0
    memory_bandwidth: Number = 1.0
    memory: Number = 1.0
    host: Number = 1.0
    storage: Number = 1.0
    network_latency: NumberOrZero = 1.0
    interconnect_latency: NumberOrZero = 1.0

    def __post_init__(self) -> None:
        expect_quantities(self, "The cluster cannot be scaled:")


def scaled_node(node: Node, factors: Factors) -> Node:
    # devices repeat, so scale each distinct one once
    device = {
        one: one.scaled(factors.compute, factors.memory_bandwidth, factors.memory)
        for one in dict.fromkeys(node.devices)
    }
    wiring = node.interconnect
    return replace(
        node,
        devices=tuple(device[one] for one in node.devices),
        interconnect=replace(
            wiring,
            scale=wiring.scale * factors.interconnect,
            latency=wiring.latency * factors.interconnect_latency,
            latency_scale=wiring.latency_scale * factors.interconnect_latency,
        ),
        nics=None if node.nics is None else _nics(node.nics, factors),
        host=_host(node.host, factors),
    )


def scaled_network(network: ClusterNetwork, factors: Factors) -> ClusterNetwork:
    rate, delay = factors.network, factors.network_latency
    return replace(
        network,
        edges=tuple(edge.scaled(rate, delay) for edge in network.edges),
        parameters=tuple(
            (name, _parameter(name, value, rate, delay)) for name, value in network.parameters
        ),
    )


def _parameter(name: str, value: Any, rate: float, delay: float) -> Any:
    """Parameters of topologies say by their names what they are: `link_bandwidth`, `uplink_latencies`."""
    if "bandwidth" in name:
        factor = rate
    elif "latenc" in name:
        factor = delay
    else:
        return value
    if isinstance(value, tuple):
        return tuple(one * factor for one in value)
    return times(value, factor)


def _nics(nics: Nics, factors: Factors) -> Nics:
    return replace(
        nics,
        bandwidth=nics.bandwidth * factors.network,
        latency=nics.latency * factors.network_latency,
        scale=nics.scale * factors.network,
        latency_scale=nics.latency_scale * factors.network_latency,
    )


def _host(host: Host, factors: Factors) -> Host:
    return replace(
        host,
        cpu_cores=times(host.cpu_cores, factors.host),
        memory_bandwidth=times(host.memory_bandwidth, factors.host),
        storage_bandwidth=times(host.storage_bandwidth, factors.storage),
    )
