"""Joints: what joins the devices of a group, as far as it decides which measured curve holds for them.

Curves are found by what devices and links are, not by what they are called: the device that a measurement knows a
rank by, the family of links, their topology and their rates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from foretrain.arrays import Ints
from foretrain.cluster import catalog
from foretrain.cluster.build import interconnect_from
from foretrain.cluster.cluster import Cluster
from foretrain.cluster.link import Interconnect
from foretrain.cluster.node import Node
from foretrain.cluster.topology import device_rate


@dataclass(frozen=True, slots=True)
class LinkForm:
    """Links of one family in one shape; how fast they are is another matter."""

    family: str  # nvlink | pcie | xgmi …
    topology: str
    lanes: tuple[tuple[int, ...], ...] | None
    is_bridged: bool


@dataclass(frozen=True, slots=True, eq=False)
class Joint:
    """One group of ranks as measurements see it. Equal to itself alone: a network keeps one for all groups alike."""

    devices: tuple[str, ...]  # their identities, each once
    node: Node  # of the first rank
    form: LinkForm
    bandwidth: float  # bytes/s, one direction of the slowest rank inside its domain
    latency: float
    scale: float  # what-if factors on the links the group uses …
    latency_scale: float  # … and on their latency


def form_of(wiring: Interconnect) -> LinkForm:
    family = re.match(r"[a-z]*", wiring.kind)
    bridged = wiring.bridge_bandwidth is not None
    return LinkForm(family[0] if family else "", wiring.topology, wiring.lanes, bridged)


@lru_cache(maxsize=256)
def is_usual(joint: Joint, kind: str) -> bool:
    """Whether devices are joined by what a word such as `nvlink3-nvswitch` stands for between them."""
    return joint.form == form_of(interconnect_from(kind, joint.node.devices, catalog.parts()))


class Joints:
    """Of the groups of one cluster; groups of the same devices in the same machines have one joint."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        run_of = np.repeat(np.arange(len(cluster.runs)), [run.count for run in cluster.runs])
        place = run_of[np.asarray(cluster.node_of)] * len(cluster.devices)
        self._place = place + np.asarray(cluster.device_kind)  # of each rank: run and device
        self._domain = np.asarray(cluster.domain_of)
        self._known: dict[tuple[object, ...], Joint] = {}
        self._of: dict[bytes, Joint] = {}

    def of(self, members: Ints) -> Joint:
        asked = members.tobytes()
        found = self._of.get(asked)
        if found is None:
            found = self._of[asked] = self._found(members)
        return found

    def _found(self, members: Ints) -> Joint:
        ranks = self._place[members].tolist()
        places = sorted(set(ranks))
        is_far = bool((self._domain[members] != self._domain[members[0]]).any())
        key = (ranks[0], is_far, *places)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _joint(self.cluster, key[0], places, is_far)
        return found


def _joint(cluster: Cluster, first: int, places: list[int], is_far: bool) -> Joint:
    """Of unlike ranks the slowest link counts."""
    kinds = len(cluster.devices)
    parts = [(cluster.runs[p // kinds].node, cluster.devices[p % kinds]) for p in places]
    node = cluster.runs[first // kinds].node
    wiring, nics = node.interconnect, node.nics
    changed = nics if is_far and nics is not None else wiring
    return Joint(
        devices=tuple(dict.fromkeys(device.identity for _, device in parts)),
        node=node,
        form=form_of(wiring),
        bandwidth=min(device_rate(one.interconnect, device) for one, device in parts),
        latency=wiring.latency,
        scale=changed.scale,
        latency_scale=changed.latency_scale,
    )
