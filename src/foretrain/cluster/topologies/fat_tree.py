"""Fat tree: nodes under leaf switches, leaves under spines, pods of leaves under a core, as many tiers as wanted.

`oversubscription` r of a tier: its switches have r times more bandwidth to below than to above. Al-Fares et
al., "A scalable, commodity data center network architecture", SIGCOMM 2008. Spines that are not counted
(`spines: 1`) stand for as many as perfect spreading needs; counted ones are cables of their own, over which
`ecmp` spreads and `shortest` chooses one by the receiver's number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from foretrain.cluster.fabric import Fabric, Site
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.quantities import STRICT, Count, Number, Seconds
from foretrain.cluster.tiered import Tier, tiered_fabric, whole_uplinks
from foretrain.errors import ClusterError

WORDS = ("leaf", "spine", "core")


@dataclass(frozen=True, slots=True)
class Parameters:
    __pydantic_config__: ClassVar[Any] = STRICT
    leaf_nodes: Count = 16
    """Nodes under one leaf switch."""
    pod_leaves: Count | tuple[Count, ...] | None = None
    """Leaves under one pod of spines; with it the tree has a core above. A list goes on upwards."""
    oversubscription: Number | tuple[Number, ...] = 1.0
    """Of all tiers alike, or tier by tier from the leaves up."""
    spines: Count | tuple[Count, ...] = 1
    """Switches of each group above the leaves."""
    hop_latency: Seconds = 0.0
    """Added by each switch above the leaf."""


def build(site: Site, network: ClusterNetwork, given: Parameters) -> Fabric:
    pods = given.pod_leaves or ()
    sizes = [given.leaf_nodes, *(pods if isinstance(pods, tuple) else (pods,))]
    ratios = per_tier("oversubscription", given.oversubscription, len(sizes))
    widths = [1, *(int(count) for count in per_tier("spines", given.spines, len(sizes)))]
    _, host = np.unique(site.host, return_inverse=True)
    tiers, nodes = [], 1
    for number, size in enumerate(sizes):
        nodes = min(nodes * size, 2**40)  # more than there can be
        group = host // nodes
        # a tier's ratio is to the tier below, so the ratios multiply on the way up
        over = float(np.prod(ratios[: number + 1]))
        uplink = whole_uplinks(site, group, over, nodes)
        tiers.append(Tier(_word(number), group, uplink, widths[number], given.hop_latency))
    top = Tier(_word(len(sizes)), np.zeros_like(host), np.empty(0), widths[-1])
    return tiered_fabric(site, [*tiers, top])


def _word(tier: int) -> str:
    return WORDS[tier] if tier < len(WORDS) else f"tier{tier}."


def per_tier(name: str, given: Any, tiers: int) -> tuple[float, ...]:
    """One value for each tier with uplinks."""
    if not isinstance(given, tuple):
        return (given,) * tiers
    if len(given) != tiers:
        raise ClusterError(
            "Invalid network:",
            faults=[f"{name}: {len(given)} values for {tiers} tiers with uplinks."],
        )
    return given
