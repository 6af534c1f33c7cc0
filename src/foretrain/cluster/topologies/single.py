"""One device alone: no links."""

from __future__ import annotations

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import Interconnect
from foretrain.errors import ClusterError


def build(site: Site, interconnect: Interconnect) -> Fabric:
    if site.ports > 1:
        raise ClusterError(
            f"Interconnect {interconnect.kind!r} connects no devices, but the node uses "
            f"{site.ports}. Specify how they are connected, for example pcie4 or "
            "nvlink3-nvswitch."
        )
    none = np.empty(0, dtype=np.int64)
    rate = np.empty(0, dtype=np.float64)
    ports = np.arange(site.ports, dtype=np.int64)
    return Fabric(rate, rate, none, none, ports, _route, lambda vertex: f"device{vertex}")


def _route(src: Ints, dst: Ints) -> Ints:
    return np.full((len(src), 0), -1, dtype=np.int64)
