"""Node: one host with its devices, interconnect, network cards and price."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from foretrain.cluster.device import Device
from foretrain.cluster.link import Interconnect, Nics
from foretrain.cluster.quantities import Bandwidth, Bytes, Number, NumberOrZero, expect_quantities
from foretrain.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Host:
    """The CPU side of a node; None means not known."""

    cpu_cores: Number | None = None
    """Physical cores (two vCPUs of an x86 cloud instance are one core)."""
    memory_bytes: Bytes | None = None
    memory_bandwidth: Bandwidth | None = None
    storage_bandwidth: Bandwidth | None = None
    """Bytes/s at which training data can be read from the node's disk."""

    def __post_init__(self) -> None:
        expect_quantities(self, "invalid host:")


@dataclass(frozen=True, slots=True)
class Price:
    """Rent of the whole node on demand, and when and where that was read."""

    usd_per_hour: NumberOrZero
    date: str
    region: str
    source: str
    spot_usd_per_hour: NumberOrZero | None = None

    def __post_init__(self) -> None:
        expect_quantities(self, "invalid price:")


@dataclass(frozen=True, slots=True)
class Node:
    """One host. `nics` is None where the network is not known or absent."""

    name: str
    title: str
    devices: tuple[Device, ...]
    interconnect: Interconnect
    nics: Nics | None
    host: Host
    source: str
    price: Price | None = None
    cloud: str | None = None
    """Offer id such as `aws:p4d.24xlarge`."""
    status: str = "current"
    measured_as: str | None = None
    """The machine that measurements know it by, where its own name is another."""

    def __post_init__(self) -> None:
        if not self.devices:
            raise ClusterError(f"Node {self.name!r} has no devices; specify at least one.")

    def __repr__(self) -> str:
        return f"<Node {self.name}: {self.device_count} x {self.devices[0].name}>"

    @property
    def identity(self) -> str:
        """What measurements of whole machines are looked up by: it outlives new names and other parts."""
        return self.measured_as or self.name

    @property
    def device_count(self) -> int:
        return len(self.devices)

    @property
    def nic_ports(self) -> int:
        """Network ports that devices are spread over: never more than devices.

        Cards beyond one per device are bonded (p5.48xlarge: 32 cards for 8 devices make 8 ports).
        """
        return 0 if self.nics is None else min(self.nics.count, self.device_count)

    @property
    def port_bandwidth(self) -> float:
        """One direction of one network port; the ports together carry what all cards carry."""
        return 0.0 if self.nics is None else self.nics.total_bandwidth / self.nic_ports

    def port_of(self, local_index: int) -> int:
        """The network port nearest to a device: neighbours share where cards are fewer."""
        return local_index * self.nic_ports // self.device_count


def network_kind(nodes: Iterable[Node]) -> str:
    """The transport all nodes share; unlike nodes meet on TCP."""
    kinds = sorted({node.nics.kind for node in nodes if node.nics is not None})
    if not kinds:
        return "none"
    return kinds[0] if len(kinds) == 1 else "ethernet"
