"""Devices on a non-blocking switch (NVSwitch, NVL72): each has one port out and one port in."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import Interconnect


def build(site: Site, interconnect: Interconnect) -> Fabric:
    return hub(site, "device", "switch")


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
