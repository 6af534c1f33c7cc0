"""The shapes that a user's YAML may have: one strict form per noun, every quantity with or without a unit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from foretrain.loading import Quantity
from foretrain.units import parse_bandwidth, parse_bytes, parse_count, parse_flops, parse_seconds

__all__ = [
    "ClusterForm",
    "DeviceForm",
    "EdgeForm",
    "HostForm",
    "InterconnectForm",
    "LinkForm",
    "NetworkForm",
    "NicsForm",
    "NodeForm",
    "PriceForm",
]

Bytes = Annotated[float, Quantity(parse_bytes)]
Bandwidth = Annotated[float, Quantity(parse_bandwidth)]
Rate = Annotated[float, Quantity(parse_flops)]
LinkBandwidth = Annotated[float, Quantity(parse_bandwidth, zero_allowed=True)]
Seconds = Annotated[float, Quantity(parse_seconds, zero_allowed=True)]
Count = Annotated[int, Quantity(parse_count)]
Number = Annotated[float, Quantity(float)]
Money = Annotated[float, Quantity(float, zero_allowed=True)]
_STRICT: Any = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class DeviceForm:
    __pydantic_config__: ClassVar[Any] = _STRICT
    name: str | None = None
    like: str | None = None
    title: str | None = None
    aliases: tuple[str, ...] | None = None
    vendor: str | None = None
    kind: Literal["gpu", "cpu"] | None = None
    architecture: str | None = None
    memory_bytes: Bytes | None = None
    memory_bandwidth: Bandwidth | None = None
    peak_flops: dict[str, Rate] | None = None
    pcie_bandwidth: Bandwidth | None = None
    link: str | None = None
    link_bandwidth: LinkBandwidth | None = None
    l2_bytes: Bytes | None = None
    compute_units: Count | None = None
    max_clock_hz: Number | None = None
    tdp_watts: Number | None = None
    node: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceCount:
    __pydantic_config__: ClassVar[Any] = _STRICT
    device: str
    count: Count = 1


@dataclass(frozen=True, slots=True)
class InterconnectForm:
    __pydantic_config__: ClassVar[Any] = _STRICT
    kind: str
    topology: str | None = None
    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None
    domain_devices: Count | None = None
    lanes: tuple[tuple[int, ...], ...] | None = None
    switch_devices: Count | None = None
    socket_devices: Count | None = None
    cpu_link_bandwidth: Bandwidth | None = None
    bridge_bandwidth: Bandwidth | None = None
    scale: Number | None = None


@dataclass(frozen=True, slots=True)
class NicsForm:
    __pydantic_config__: ClassVar[Any] = _STRICT
    kind: str | None = None
    count: Count | None = None
    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None


@dataclass(frozen=True, slots=True)
class HostForm:
    __pydantic_config__: ClassVar[Any] = _STRICT
    cpu_cores: Number | None = None
    memory_bytes: Bytes | None = None
    memory_bandwidth: Bandwidth | None = None
    storage_bandwidth: Bandwidth | None = None


@dataclass(frozen=True, slots=True)
class PriceForm:
    __pydantic_config__: ClassVar[Any] = _STRICT
    usd_per_hour: Money
    date: str | None = None
    region: str | None = None
    source: str | None = None
    spot_usd_per_hour: Money | None = None


@dataclass(frozen=True, slots=True)
class NodeForm:
    """A machine, whole or as changes to one in the catalogue (`node`)."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    node: str | None = None
    count: Count = 1
    used: Count | None = None
    name: str | None = None
    title: str | None = None
    aliases: tuple[str, ...] | None = None
    devices: tuple[DeviceCount, ...] | None = None
    interconnect: InterconnectForm | None = None
    nics: NicsForm | None = None
    host: HostForm | None = None
    price: PriceForm | None = None
    cloud: str | None = None
    status: str | None = None
    source: str | None = None


@dataclass(frozen=True, slots=True)
class EdgeForm:
    __pydantic_config__: ClassVar[Any] = _STRICT
    ends: tuple[int | str, int | str]
    bandwidth: Bandwidth
    latency: Seconds = 0.0


@dataclass(frozen=True, slots=True)
class NetworkForm:
    """`bandwidth` and `latency` are of one card."""

    __pydantic_config__: ClassVar[Any] = _STRICT
    kind: str | None = None
    topology: str = "star"
    bandwidth: Bandwidth | None = None
    cards: Count | None = None
    latency: Seconds | None = None
    source: str = ""
    edges: tuple[EdgeForm, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterForm:
    __pydantic_config__: ClassVar[Any] = _STRICT
    nodes: tuple[NodeForm, ...]
    name: str | None = None
    network: NetworkForm = field(default_factory=NetworkForm)
    devices: dict[str, DeviceForm] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LinkForm:
    __pydantic_config__: ClassVar[Any] = _STRICT
    title: str | None = None
    tier: Literal["interconnect", "network"] | None = None
    latency: Seconds | None = None
    bandwidth: Bandwidth | None = None
    cpu_link_bandwidth: Bandwidth | None = None
    source: str | None = None
