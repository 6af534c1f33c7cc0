"""Tiers of switches with any sizes and rates: racks, rows, halls, sites.

`sizes` are how many nodes (then switches) each switch of a tier joins, `uplink_bandwidths` what leads up from
each switch; one top joins all that is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import STRICT, Bandwidth, Count, Seconds
from foretrain.cluster.tiered import Tier, tiered_fabric, whole_uplinks
from foretrain.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Parameters:
    __pydantic_config__: ClassVar[Any] = STRICT
    sizes: tuple[Count, ...] = (8,)
    uplink_bandwidths: tuple[Bandwidth, ...] | None = None
    """One direction of each switch's uplink, tier by tier; without it uplinks carry all that is below."""
    uplink_latencies: tuple[Seconds, ...] | None = None


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    _require_lengths(given)
    _, host = np.unique(site.host, return_inverse=True)
    delays = given.uplink_latencies or (0.0,) * len(given.sizes)
    tiers = []
    for number in range(len(given.sizes)):
        nodes = min(math.prod(given.sizes[: number + 1]), 2**40)  # more than there can be
        group = host // nodes
        if given.uplink_bandwidths is None:
            uplink = whole_uplinks(site, group, 1.0, nodes)
        else:
            uplink = np.full(int(group.max()) + 1, given.uplink_bandwidths[number])
        tiers.append(Tier(f"tier{number + 1}.", group, uplink, 1, delays[number]))
    top = Tier("top", np.zeros_like(host), np.empty(0))
    return tiered_fabric(site, [*tiers, top])


def _require_lengths(given: Parameters) -> None:
    tiers = len(given.sizes)
    faults = [] if given.sizes else ["sizes: empty; specify at least one tier."]
    for name in ("uplink_bandwidths", "uplink_latencies"):
        values = getattr(given, name)
        if values is not None and len(values) != tiers:
            faults.append(f"{name}: {len(values)} values for {tiers} tiers in sizes.")
    if faults:
        raise ClusterError("Invalid network:", faults=faults)
