"""Cluster: runs of equal nodes on one network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Self

from foretrain.arrays import Ints
from foretrain.cluster.device import Device
from foretrain.cluster.fabric import Fabric
from foretrain.cluster.layout import RankLayout, lay_out
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.node import Node
from foretrain.cluster.scaling import Factors, scaled_network, scaled_node
from foretrain.cluster.topology import Topology, compose, network_fabric
from foretrain.errors import ClusterError, refuse
from foretrain.limits import DEVICES, shown
from foretrain.named import named
from foretrain.units import counted


class Described(NamedTuple):
    """A cluster, what had to be assumed of it, and what was not understood."""

    cluster: Cluster
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeRun:
    """`count` equal nodes, of each of which the first `used` devices take part."""

    node: Node
    count: int
    used: int

    def __post_init__(self) -> None:
        faults = []
        if self.count < 1:
            faults.append(f"count: {self.count} must be 1 or more.")
        if not 1 <= self.used <= self.node.device_count:
            faults.append(f"used: {self.used} must be from 1 to {self.node.device_count}.")
        refuse(f"Nodes {self.node.name!r} are invalid:", faults, ClusterError)


def runs_of(nodes: Iterable[tuple[Node, int]]) -> tuple[NodeRun, ...]:
    """Runs of nodes that are given one by one with the devices in use of each; neighbouring equals are joined."""
    groups = groupby(nodes)
    return tuple(NodeRun(node, len(list(same)), used) for (node, used), same in groups)


# Not slotted: cached_property keeps the arrays in the instance's __dict__.
@dataclass(frozen=True)
class Cluster:
    """The cluster a training job runs on. Ranks are numbered node by node, by local index within a node.

    >>> from foretrain import Cluster
    >>> Cluster.of("2 x dgx-h100")
    <Cluster 2 x dgx-h100: 16 devices in 2 nodes>
    """

    name: str
    runs: tuple[NodeRun, ...]
    network: ClusterNetwork

    def __post_init__(self) -> None:
        if not self.runs:
            raise ClusterError(f"Cluster {self.name!r} has no nodes; specify at least one.")
        if not DEVICES.allows(self.device_count):
            raise ClusterError(
                f"Cluster {shown(self.name, 80)} has {self.device_count:,} devices; at most {DEVICES.most:,}."
            )

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles leave behind what is worked out from the fields: routes are functions, not data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __repr__(self) -> str:
        devices, nodes = counted(self.device_count, "device"), counted(self.node_count, "node")
        return f"<Cluster {self.name}: {devices} in {nodes}>"

    # --- making one -----------------------------------------------------------------------------

    @classmethod
    def of(cls, spec: str | Path | Mapping[str, Any] | Cluster) -> Cluster:
        """From `"16 x dgx-a100-80gb"`, `"8xH100"`, `"64 x dgx-h100 on torus(dims=3)"`, a YAML path, a mapping or itself."""
        return cls.read(spec).cluster

    @classmethod
    def read(cls, spec: str | Path | Mapping[str, Any] | Cluster) -> Described:
        """Like `of`, and also return the assumptions made about nodes defined by device and links."""
        described: Described = named("foretrain.cluster.reading:cluster_with_notes")(spec)
        return described

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "cluster") -> Cluster:
        """Inverse of `to_dict`; also accepts the short YAML form."""
        cluster: Cluster = named("foretrain.cluster.documents:cluster_from_dict")(data, where)
        return cluster

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the YAML form; self-contained, so no catalog is needed to read it back."""
        data: dict[str, Any] = named("foretrain.cluster.documents:cluster_to_dict")(self)
        return data

    # --- counting -------------------------------------------------------------------------------

    @property
    def node_count(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def device_count(self) -> int:
        """Number of devices used."""
        return sum(run.count * run.used for run in self.runs)

    @cached_property
    def layout(self) -> RankLayout:
        return lay_out([(run.node, run.count, run.used) for run in self.runs])

    @property
    def devices(self) -> tuple[Device, ...]:
        """The distinct devices; `device_kind` numbers them over ranks."""
        return self.layout.devices

    @property
    def device_kind(self) -> Ints:
        return self.layout.device_kind

    @property
    def node_of(self) -> Ints:
        return self.layout.node_of

    @property
    def local_index(self) -> Ints:
        return self.layout.local_index

    @property
    def domain_of(self) -> Ints:
        """Which interconnect domain each rank sits in: its node, or its NVLink rack."""
        return self.layout.domain_of

    @cached_property
    def network_fabric(self) -> Fabric | None:
        """What joins the network ports; None for one node or without a network."""
        return network_fabric(self.network, self.layout)

    @cached_property
    def topology(self) -> Topology:
        return compose(self)

    def device(self, rank: int) -> Device:
        return self.devices[int(self.device_kind[rank])]

    def node(self, number: int) -> Node:
        """The node with that number."""
        left = number
        for run in self.runs:
            if 0 <= left < run.count:
                return run.node
            left -= run.count
        raise ClusterError(
            f"There is no node {number}; nodes are numbered 0 to {self.node_count - 1}."
        )

    @property
    def is_uniform(self) -> bool:
        """Whether all nodes are identical, with the same number of the same device in use."""
        return len({(run.node, run.used) for run in self.runs}) == 1 and len(self.devices) == 1

    # --- money ----------------------------------------------------------------------------------

    @property
    def usd_per_hour(self) -> float | None:
        """Price of all (whole) nodes per hour; None if any price is unknown."""
        total = 0.0
        for run in self.runs:
            if run.node.price is None:
                return None
            total += run.count * run.node.price.usd_per_hour
        return total

    @property
    def price_date(self) -> str | None:
        """The oldest date among the prices."""
        dates = [run.node.price.date for run in self.runs if run.node.price is not None]
        return min(dates) if len(dates) == len(self.runs) else None

    # --- other clusters from this one -----------------------------------------------------------

    def first(self, devices: int) -> Cluster:
        """The same nodes with only the first `devices` in use, filling nodes in order."""
        if not 1 <= devices <= self.device_count:
            raise ClusterError(
                f"{counted(devices, 'device')} requested from {self.name}, which has "
                f"{self.device_count}. Request 1 to {self.device_count}, or use a larger "
                "cluster."
            )
        left, runs = devices, []
        for run in self.runs:
            whole = min(left // run.used, run.count)
            if whole:
                runs.append(NodeRun(run.node, whole, run.used))
            left -= whole * run.used
            if whole < run.count:
                if left:
                    runs.append(NodeRun(run.node, 1, left))
                break
        nodes = sum(run.count for run in runs)
        return replace(self, runs=tuple(runs), network=self.network.without_nodes(nodes))

    def placed(self, devices_per_node: Sequence[int]) -> Cluster:
        """The first nodes with that many devices in use each: `[1, 3, 4]`. Neighbouring equals are joined."""
        if not 1 <= len(devices_per_node) <= self.node_count:
            raise ClusterError(
                f"The placement lists {len(devices_per_node)} nodes, but {self.name} has "
                f"{self.node_count}."
            )
        runs = runs_of((self.node(number), used) for number, used in enumerate(devices_per_node))
        network = self.network.without_nodes(len(devices_per_node))
        return replace(self, runs=runs, network=network)

    def scaled(self, **factors: float) -> Cluster:
        """The same cluster with other rates: `scaled(network=2.0)` doubles every network link.

        Known are the fields of `Factors`: `host` scales CPU cores and host memory bandwidth, `storage` the disk. Prices do
        not change.
        """
        changed = Factors(**factors)
        runs = tuple(replace(run, node=scaled_node(run.node, changed)) for run in self.runs)
        return replace(self, runs=runs, network=scaled_network(self.network, changed))

    def renamed(self, name: str) -> Self:
        return replace(self, name=name)

    # --- showing --------------------------------------------------------------------------------

    def describe(self) -> str:
        """A short human-readable description."""
        from foretrain.cluster.describe import described

        return described(self)

    def __str__(self) -> str:
        return self.name
