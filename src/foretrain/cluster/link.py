"""Link, Interconnect, Nics, Network: what joins devices inside a node and nodes with each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from foretrain.cluster.quantities import (
    Bandwidth,
    Count,
    Number,
    NumberOrZero,
    Seconds,
    expect_quantities,
)

Tier = Literal["interconnect", "network"]


@dataclass(frozen=True, slots=True)
class Link:
    """A kind of link. `bandwidth` is one direction of one link (an x16 slot, one NVLink, one NIC)."""

    name: str
    title: str
    tier: Tier
    latency: Seconds
    source: str
    bandwidth: Bandwidth | None = None
    cpu_link_bandwidth: Bandwidth | None = None
    """One direction between two CPU sockets of the generation that has this link."""

    def __post_init__(self) -> None:
        expect_quantities(self, f"Link {self.name!r} is invalid:")


@dataclass(frozen=True, slots=True)
class Interconnect:
    """How the devices of a node (or of a rack-wide NVLink domain) are joined.

    `kind` is the user's word (`nvlink3-nvswitch`), `topology` the builder in `topologies/`.
    `bandwidth` is one direction per device; None takes each device's own (NVLink or PCIe) rate.
    `domain_devices` joins consecutive nodes into one switched domain (72 for NVL72).
    """

    kind: str
    topology: str
    latency: Seconds
    bandwidth: Bandwidth | None = None
    domain_devices: Count | None = None
    lanes: tuple[tuple[int, ...], ...] | None = None
    """nvlink_mesh: links between each pair of the whole mesh; None joins every pair alike."""
    switch_devices: Count = 1
    """pcie_tree: devices behind one PCIe switch; 1 means devices sit on the host bridge directly."""
    socket_devices: Count = 4
    """pcie_tree: devices on one CPU socket."""
    through_root: bool = False
    """pcie_tree: devices of a socket share one slot to the CPU, and what they send each other goes up through it: virtual
    machines whose IOMMU redirects peer traffic to the root complex."""
    cpu_link_bandwidth: Bandwidth | None = None
    """pcie_tree: one direction between two CPU sockets."""
    bridge_bandwidth: Bandwidth | None = None
    """pcie_tree: one direction of the bridge that joins each pair of devices; None without bridges."""
    scale: Number = 1.0
    """Multiplies every capacity of the interconnect, for what-if questions."""
    latency_scale: NumberOrZero = 1.0
    """The what-if factor that `latency` holds."""

    def __post_init__(self) -> None:
        faults = []
        if self.lanes is not None and not _is_mesh(self.lanes):
            faults.append("lanes: must be a square symmetric table of small whole numbers.")
        expect_quantities(self, f"Interconnect {self.kind!r} is invalid:", faults)


def _is_mesh(lanes: tuple[tuple[int, ...], ...]) -> bool:
    size = len(lanes)
    if not 1 <= size <= 1024 or any(len(row) != size for row in lanes):
        return False
    cells = [(a, b) for a in range(size) for b in range(a + 1)]
    return all(lanes[a][b] == lanes[b][a] and 0 <= lanes[a][b] <= 1024 for a, b in cells)


@dataclass(frozen=True, slots=True)
class Nics:
    """The network cards of one node that carry training traffic."""

    kind: str
    count: Count
    bandwidth: Bandwidth
    """One direction of one card, bytes/s."""
    latency: Seconds
    scale: Number = 1.0
    """The what-if factors that `bandwidth` …"""
    latency_scale: NumberOrZero = 1.0
    """… and `latency` hold: what was measured over these cards is changed by them."""

    def __post_init__(self) -> None:
        expect_quantities(self, "invalid nics:")

    @property
    def total_bandwidth(self) -> float:
        """One direction, all cards together."""
        return self.count * self.bandwidth


def self_loop(end: object) -> str:
    """What is wrong with a cable that ends where it starts."""
    return f"a cable from {end} to itself. Remove it, or specify its other end."


@dataclass(frozen=True, slots=True)
class NetworkEdge:
    """A cable of a user-drawn network between nodes (by number) or named switches, both directions alike.

    `back_bandwidth` and `back_latency` are of the way from the second end to the first where that differs;
    a `one_way` cable carries nothing back.
    """

    ends: tuple[int | str, int | str]
    bandwidth: Bandwidth
    latency: Seconds = 0.0
    back_bandwidth: Bandwidth | None = None
    back_latency: Seconds | None = None
    one_way: bool = False

    def __post_init__(self) -> None:
        faults = []
        if self.one_way and (self.back_bandwidth or self.back_latency) is not None:
            faults.append("one_way: a one-way cable has no reverse direction; remove back_*.")
        expect_quantities(self, f"invalid network edge {self.ends}:", faults)

    def directions(self, one: int, other: int) -> Iterator[tuple[int, int, float, float]]:
        """(tail, head, bandwidth, latency) of each direction, with the ends as numbers."""
        yield one, other, self.bandwidth, self.latency
        if not self.one_way:
            rate, delay = self.back_bandwidth, self.back_latency
            back = (rate or self.bandwidth, self.latency if delay is None else delay)
            yield other, one, *back

    def scaled(self, bandwidth: float, latency: float) -> NetworkEdge:
        return replace(
            self,
            bandwidth=self.bandwidth * bandwidth,
            latency=self.latency * latency,
            back_bandwidth=times(self.back_bandwidth, bandwidth),
            back_latency=times(self.back_latency, latency),
        )


def times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    """What joins the nodes: the kind of transport and the shape of the fabric."""

    kind: str
    topology: str = "star"
    source: str = ""
    edges: tuple[NetworkEdge, ...] = ()
    """Only for `topology: graph`."""
    parameters: tuple[tuple[str, Any], ...] = ()
    """What the user said of the topology (`oversubscription` …); see `topologies/`."""
    routing: str | None = None
    """A name of `routing.ROUTINGS`; None takes the topology's own."""

    def without_nodes(self, kept: int) -> ClusterNetwork:
        """The same cables when only the first `kept` nodes take part; the others only pass data on."""
        if all(not isinstance(end, int) or end < kept for edge in self.edges for end in edge.ends):
            return self
        edges = tuple(replace(edge, ends=_passing(edge.ends, kept)) for edge in self.edges)
        return replace(self, edges=edges)


def _passing(ends: tuple[int | str, int | str], kept: int) -> tuple[int | str, int | str]:
    one, other = (f"node{e}" if isinstance(e, int) and e >= kept else e for e in ends)
    return one, other
