"""The shapes that a user's YAML may have: strict forms, made of the nouns they are of. Every quantity with or without a unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, get_type_hints

from foretrain.cluster.device import Device
from foretrain.cluster.link import Interconnect, Link, NetworkEdge, Nics
from foretrain.cluster.node import Host, Node, Price
from foretrain.cluster.quantities import Bandwidth, Count, Rate, Seconds, split_count
from foretrain.cluster.topologies import NETWORKS
from foretrain.loading import Strict

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


def _form(noun: type, *required: str, about: str = "", **other: Any) -> Any:
    """A form with the fields of a noun: but for the `required` ones each may be left out. `other`: fields that files have
    besides, write in another way, or (None) do not have."""
    every = {**get_type_hints(noun, include_extras=True), **other}
    hints = {name: hint for name, hint in every.items() if hint is not None}
    return make_dataclass(
        f"{noun.__name__.removeprefix('Network')}Form",
        [
            *((name, hints[name]) for name in required),
            *((name, hint | None, None) for name, hint in hints.items() if name not in required),
        ],
        frozen=True,
        slots=True,
        bases=(Strict,),
        namespace={"__doc__": about} if about else {},
    )


@dataclass(frozen=True, slots=True)
class DeviceCount(Strict):
    device: str
    count: Count = 1


if TYPE_CHECKING:
    DeviceForm: TypeAlias = Any
    EdgeForm: TypeAlias = Any
    LinkForm: TypeAlias = Any
    NodeForm: TypeAlias = Any
else:
    Names = tuple[str, ...]
    DeviceForm = _form(Device, aliases=Names, like=str, node=str, peak_flops=dict[str, Rate])
    LinkForm = _form(Link, name=None)
    EdgeForm = _form(
        NetworkEdge,
        "ends",
        "bandwidth",
        about="A cable, `[end, end, bandwidth, latency]` for short. `back_*` are of the other direction if unlike.",
    )
    NodeForm = _form(
        Node,
        about="A machine, whole or as changes to one in the catalog (`node`).",
        node=str,
        count=Count,
        used=Count,
        aliases=Names,
        devices=tuple[DeviceCount, ...],
        interconnect=_form(Interconnect, "kind"),
        nics=_form(Nics),
        host=_form(Host),
        price=_form(Price, "usd_per_hour"),
    )


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

    __pydantic_config__: ClassVar[dict[str, Any]] = {
        **Strict.__pydantic_config__,
        "json_schema_extra": _with_parameters,
    }
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
class ClusterForm(Strict):
    nodes: tuple[NodeForm, ...]
    name: str | None = None
    network: NetworkForm = field(default_factory=NetworkForm)
    devices: dict[str, DeviceForm] = field(default_factory=dict)


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
