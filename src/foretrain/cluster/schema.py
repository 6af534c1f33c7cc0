"""The shapes that a user's YAML may have: one strict form per noun, every quantity with or without a unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from foretrain.cluster.quantities import (
    STRICT,
    Bandwidth,
    Bytes,
    Count,
    LinkBandwidth,
    Money,
    Number,
    Rate,
    Seconds,
    split_count,
)
from foretrain.cluster.topologies import NETWORKS
from foretrain.errors import InputError

T = TypeVar("T")

MOST_CABLES = 20_000
"""Of a drawn network: a few seconds of reading, and 4,096 nodes with ten cables each."""
MOST_RUNS = 4_096
"""Entries of `nodes`, each of any number of machines."""
MOST_VERTICES = 4_096
"""Nodes and switches of a drawn network: ways are searched from every one to all others."""


def too_many(vertices: int) -> str:
    """What is wrong with a drawn network of so many nodes and switches."""
    return (
        f"{vertices:,} nodes and switches; at most {MOST_VERTICES:,} in an explicit network. "
        "Specify a topology (fat-tree, torus …)."
    )


@dataclass(frozen=True, slots=True)
class DeviceForm:
    __pydantic_config__: ClassVar[Any] = STRICT
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
    measured_as: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceCount:
    __pydantic_config__: ClassVar[Any] = STRICT
    device: str
    count: Count = 1


@dataclass(frozen=True, slots=True)
class InterconnectForm:
    __pydantic_config__: ClassVar[Any] = STRICT
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
    latency_scale: Number | None = None


@dataclass(frozen=True, slots=True)
class NicsForm:
    __pydantic_config__: ClassVar[Any] = STRICT
    kind: str | None = None
    count: Count | None = None
    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None
    scale: Number | None = None
    latency_scale: Number | None = None


@dataclass(frozen=True, slots=True)
class HostForm:
    __pydantic_config__: ClassVar[Any] = STRICT
    cpu_cores: Number | None = None
    memory_bytes: Bytes | None = None
    memory_bandwidth: Bandwidth | None = None
    storage_bandwidth: Bandwidth | None = None


@dataclass(frozen=True, slots=True)
class PriceForm:
    __pydantic_config__: ClassVar[Any] = STRICT
    usd_per_hour: Money
    date: str | None = None
    region: str | None = None
    source: str | None = None
    spot_usd_per_hour: Money | None = None


@dataclass(frozen=True, slots=True)
class NodeForm:
    """A machine, whole or as changes to one in the catalog (`node`)."""

    __pydantic_config__: ClassVar[Any] = STRICT
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
    measured_as: str | None = None


@dataclass(frozen=True, slots=True)
class EdgeForm:
    """A cable, `[end, end, bandwidth, latency]` for short. `back_*` are of the other direction if unlike."""

    __pydantic_config__: ClassVar[Any] = STRICT
    ends: tuple[int | str, int | str]
    bandwidth: Bandwidth
    latency: Seconds = 0.0
    back_bandwidth: Bandwidth | None = None
    back_latency: Seconds | None = None
    one_way: bool = False


def _with_parameters(schema: dict[str, Any]) -> None:
    """The schema of a network as files have it: parameters of all topologies beside the other keys."""
    from pydantic import TypeAdapter

    properties = schema["properties"]
    for name, shape in NETWORKS.items():
        own = TypeAdapter(shape.parameters).json_schema().get("properties", {})
        for key, value in own.items():
            known = properties.setdefault(key, {**value, "description": "topology:"})
            known["description"] += f" {name}"
    properties["topology"]["enum"] = list(NETWORKS)


@dataclass(frozen=True, slots=True)
class NetworkForm:
    """`bandwidth` and `latency` are of one card. What the topology takes stands beside them in a file."""

    __pydantic_config__: ClassVar[Any] = {**STRICT, "json_schema_extra": _with_parameters}
    kind: str | None = None
    topology: str = "star"
    routing: str | None = None
    bandwidth: Bandwidth | None = None
    cards: Count | None = None
    latency: Seconds | None = None
    source: str = ""
    edges: tuple[EdgeForm, ...] = ()
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterForm:
    __pydantic_config__: ClassVar[Any] = STRICT
    nodes: tuple[NodeForm, ...]
    name: str | None = None
    network: NetworkForm = field(default_factory=NetworkForm)
    devices: dict[str, DeviceForm] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LinkForm:
    __pydantic_config__: ClassVar[Any] = STRICT
    title: str | None = None
    tier: Literal["interconnect", "network"] | None = None
    latency: Seconds | None = None
    bandwidth: Bandwidth | None = None
    cpu_link_bandwidth: Bandwidth | None = None
    source: str | None = None


def normal_node(entry: Any) -> Any:
    if isinstance(entry, str):
        count, name = split_count(entry)
        return {"node": name, "count": count}
    if not isinstance(entry, Mapping):
        return entry
    full = dict(entry)
    if isinstance(full.get("interconnect"), str):
        full["interconnect"] = {"kind": full["interconnect"]}
    devices = full.get("devices")
    if isinstance(devices, str | Mapping):
        devices = [devices]
    if isinstance(devices, list | tuple):
        full["devices"] = [{"device": one} if isinstance(one, str) else one for one in devices]
    return full


def tried(make: Callable[[], T], path: str, faults: list[str]) -> T | None:
    """The value, or None with its faults noted under their path."""
    try:
        return make()
    except InputError as error:
        head = str(error).splitlines()[0]
        faults.extend(f"{path}.{fault}" for fault in error.faults)
        if not error.faults:
            faults.append(f"{path}: {head}")
        return None
