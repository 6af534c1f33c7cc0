"""Ports on one hub that blocks nothing, or no links at all: NVSwitch, a star of nodes, a device alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import ClusterNetwork, Interconnect
from foretrain.errors import ClusterError
from foretrain.loading import Strict


def nvswitch(site: Site, interconnect: Interconnect) -> Fabric:
    """Devices on a non-blocking switch (NVSwitch, NVL72): each has one port out and one port in."""
    return hub(site, "device", "switch")


@dataclass(frozen=True, slots=True)
class NoParameters(Strict):
    """Nothing can be said of a star."""


def star(site: Site, network: ClusterNetwork, given: NoParameters) -> Fabric:
    """Nodes on a non-blocking network: traffic is limited by the sender's and the receiver's card only."""
    return hub(site, "nic", "fabric")


def single(site: Site, interconnect: Interconnect) -> Fabric:
    """One device alone: no links."""
    if site.ports > 1:
        raise ClusterError(
            f"Interconnect {interconnect.kind!r} connects no devices, but the node uses "
            f"{site.ports}. Specify how they are connected, for example pcie4 or "
            "nvlink3-nvswitch."
        )
    none = np.empty(0, dtype=np.int64)
    rate = np.empty(0, dtype=np.float64)
    ports = np.arange(site.ports, dtype=np.int64)
    return Fabric(rate, rate, none, none, ports, _no_links, lambda vertex: f"device{vertex}")


def _no_links(src: Ints, dst: Ints) -> Ints:
    return np.full((len(src), 0), -1, dtype=np.int64)


def hub(site: Site, port_word: str, hub_word: str) -> Fabric:
    """Links 0..n-1 lead from the ports to the hub, links n..2n-1 from the hub to the ports.

    Each link carries half of its port's latency, so that a crossing between equal ports costs it once.
    """
    ports = site.ports
    each = np.arange(ports, dtype=np.int64)
    centre = np.full(ports, ports, dtype=np.int64)

    def route(src: Ints, dst: Ints) -> Ints:
        apart = src != dst
        return np.stack([np.where(apart, src, -1), np.where(apart, dst + ports, -1)], axis=1)

    def vertex_name(vertex: int) -> str:
        return hub_word if vertex == ports else f"{port_word}{vertex}"

    return Fabric(
        capacity=np.concatenate([site.bandwidth, site.bandwidth]),
        latency=np.concatenate([site.latency, site.latency]) / 2,
        tail=np.concatenate([each, centre]),
        head=np.concatenate([centre, each]),
        port_vertex=each,
        route=route,
        vertex_name=vertex_name,
        link_port=np.concatenate([each, each]),
        diameter=2,
    )
