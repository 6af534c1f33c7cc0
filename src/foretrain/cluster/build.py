"""From rows of plain data (catalog, user files) to the nouns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from foretrain.cluster.device import Device
from foretrain.cluster.link import Interconnect, Link, Nics
from foretrain.cluster.network_words import network_word, unknown_network
from foretrain.cluster.node import Host, Node, Price
from foretrain.cluster.quantities import quantities
from foretrain.errors import ClusterError, hint
from foretrain.limits import NODE_DEVICES
from foretrain.units import parse_flops

T = TypeVar("T")
Row = Mapping[str, Any]
Lanes = tuple[tuple[int, ...], ...]

_DEVICE_REQUIRED = ("memory_bytes", "memory_bandwidth", "peak_flops", "pcie_bandwidth")
_DTYPES = ("fp64", "fp32", "fp32_vector", "tf32", "fp16", "bf16", "fp8", "int8", "fp6", "fp4")
_BY_THE_USER = "specified by the user"
_DEVICE_DEFAULTS = {"vendor": "unknown", "kind": "gpu", "architecture": "unknown"}


@dataclass(frozen=True, slots=True)
class ClusterParts:
    """What rows may refer to by name."""

    links: Mapping[str, Link]
    meshes: Mapping[str, Lanes]
    find_device: Callable[[str], Device]


def device_from(name: str, row: Row) -> Device:
    """A device from a complete row; lists what is missing."""
    missing = [key for key in _DEVICE_REQUIRED if row.get(key) is None]
    if missing:
        faults = [f"{key}: missing." for key in missing]
        raise ClusterError(
            f"Device {name!r} is incomplete (or add `like: <known device>`):", faults=faults
        )
    # in one order whatever the file's, so that equal devices compare equal
    place = {dtype: number for number, dtype in enumerate(_DTYPES)}
    rates = sorted(
        row["peak_flops"].items(), key=lambda pair: (place.get(pair[0], len(place)), pair[0])
    )
    peaks = tuple((dtype, parse_flops(rate)) for dtype, rate in rates)
    plain = {**row, "name": name, "peak_flops": peaks}
    return _made(Device, plain, title=name, source=_BY_THE_USER, **_DEVICE_DEFAULTS)


def _read(noun: type, row: Row) -> dict[str, Any]:
    """What a row says of a noun's fields; None says nothing, and a number without a unit stays as it is written."""
    given = {one.name: row[one.name] for one in fields(noun) if row.get(one.name) is not None}
    parsers = {name: quantity.parse for name, quantity in quantities(noun).items()}
    parsers = {name: parse for name, parse in parsers.items() if parse is not float}
    return given | {name: parsers[name](value) for name, value in given.items() if name in parsers}


def _made(noun: Callable[..., T], row: Row, **usual: Any) -> T:
    """A noun from a row, with `usual` values of what it leaves open."""
    return noun(**usual | _read(noun, row))  # type: ignore[arg-type]  # a noun is its class


def device_like(name: str, base: Device, row: Row) -> Device:
    """Another device with what a row says differently; what was measured of it holds, at the rates of the row."""
    known = {one.name: getattr(base, one.name) for one in fields(base)}
    known |= {
        "peak_flops": base.peaks,
        "measured_as": base.identity,
        "source": _BY_THE_USER,
    }
    return device_from(name, {**known, **row})


def link_from(name: str, row: Row) -> Link:
    return _made(Link, {**row, "name": name})


def node_from(name: str, row: Row, parts: ClusterParts) -> Node:
    """A node from a row with `devices` (a name, `{device, count}` or a list of those)."""
    devices = _devices(row["devices"], parts)
    return Node(
        name=name,
        title=row.get("title") or name,
        devices=devices,
        interconnect=interconnect_from(_interconnect_word(row, devices), devices, parts),
        nics=None if row.get("nics") is None else nics_from(row["nics"], parts),
        host=_made(Host, row.get("host") or {}),
        source=row.get("source") or _BY_THE_USER,
        price=_price(row.get("price")),
        cloud=row.get("cloud"),
        status=row.get("status") or "current",
        measured_as=row.get("measured_as"),
    )


def _interconnect_word(row: Row, devices: Sequence[Device]) -> str | Row:
    given = row.get("interconnect")
    if given is not None:
        return given  # type: ignore[no-any-return]
    if len(devices) == 1:
        return "none"
    raise ClusterError(
        f"interconnect: missing for a node with {len(devices)} devices; "
        "write for example nvlink3-nvswitch or pcie4."
    )


def _devices(given: Any, parts: ClusterParts) -> tuple[Device, ...]:
    entries = given if isinstance(given, list | tuple) else [given]
    devices: list[Device] = []
    for entry in entries:
        if isinstance(entry, Device):
            devices.append(entry)
        elif isinstance(entry, str):
            devices.append(parts.find_device(entry))
        else:
            count = int(entry.get("count") or 1)
            if not NODE_DEVICES.allows(count):
                raise ClusterError(f"devices: count: {NODE_DEVICES.fault(count)}")
            devices += [parts.find_device(entry["device"])] * count
    if not NODE_DEVICES.allows(len(devices)):
        raise ClusterError(f"devices: {len(devices):,}; must be 1 to {NODE_DEVICES.most:,}.")
    return tuple(devices)


def with_network_word(row: Row, parts: ClusterParts) -> Row:
    """A row whose `kind` is as links have it: `ndr` is InfiniBand of 400 Gb/s unless `bandwidth` says otherwise."""
    kind = row.get("kind")
    if not isinstance(kind, str) or kind == "none" or kind in parts.links:
        return row
    word = network_word(kind)
    if word is None:
        return row
    rate = {} if word.bandwidth is None else {"bandwidth": word.bandwidth}
    given = {key: value for key, value in row.items() if value is not None}
    return {**rate, **given, "kind": word.kind}


def nics_from(row: Row, parts: ClusterParts) -> Nics:
    row = with_network_word(row, parts)
    link = _network_link(row.get("kind") or "ethernet", parts)
    if (row.get("bandwidth") or link.bandwidth) is None:
        raise ClusterError(f"nics.bandwidth: missing; {link.title} has no default speed.")
    usual = {"kind": link.name, "bandwidth": link.bandwidth, "latency": link.latency}
    return _made(Nics, row, count=1, **usual)


def _network_link(kind: str, parts: ClusterParts) -> Link:
    known = [name for name, link in parts.links.items() if link.tier == "network"]
    if kind not in known:
        raise ClusterError(unknown_network(kind))
    return parts.links[kind]


def _price(row: Row | None) -> Price | None:
    if row is None:
        return None
    usual = {"date": "date unknown", "region": "source unknown", "source": _BY_THE_USER}
    return _made(Price, row, **usual)


# --- interconnects --------------------------------------------------------------------------------


def interconnect_from(
    spec: str | Row, devices: Sequence[Device], parts: ClusterParts
) -> Interconnect:
    """From a word such as `nvlink3-nvswitch`, or a row with `kind` and what differs from it."""
    if isinstance(spec, str):
        return _by_word(spec, devices, parts)
    base = _by_word(spec["kind"], devices, parts)
    changes = _read(Interconnect, {**spec, "kind": None})
    if "lanes" in changes:
        changes["lanes"] = tuple(tuple(row) for row in changes["lanes"])
    return replace(base, **changes)


def _by_word(word: str, devices: Sequence[Device], parts: ClusterParts) -> Interconnect:
    kind = word.strip().lower()
    if kind in ("none", "single"):
        return Interconnect("none", "single", 0.0)
    family, *forms = kind.split("-")
    link = parts.links.get(_generation(family, devices[0], parts))
    if link is None or link.tier != "interconnect":
        known = [name for name, one in parts.links.items() if one.tier == "interconnect"]
        raise ClusterError(
            f"Unknown interconnect {word!r}.{hint(kind, ['none', *known])} "
            "Add -nvswitch, -mesh, -nvl72, -pairs or a rate such as -400gbs."
        )
    wiring = _plain(kind, link, len(devices), parts)
    for form in forms:
        wiring = _formed(wiring, form, devices, word)
    return wiring


def _generation(family: str, device: Device, parts: ClusterParts) -> str:
    """`nvlink`, `xgmi` and `pcie` without a number mean the device's own generation."""
    if family in ("nvlink", "xgmi") and device.link is not None and device.link.startswith(family):
        return device.link
    if family == "pcie":
        for name, link in parts.links.items():
            if name.startswith("pcie") and link.bandwidth == device.pcie_bandwidth:
                return name
    return family


def _plain(kind: str, link: Link, count: int, parts: ClusterParts) -> Interconnect:
    """What a bare link name stands for: PCIe is a tree, anything else joins pairs directly."""
    if link.name.startswith("pcie"):
        across = link.cpu_link_bandwidth
        return Interconnect(kind, "pcie_tree", link.latency, cpu_link_bandwidth=across)
    lanes = parts.meshes.get(f"cube-{link.name}")
    if lanes is not None and count > len(lanes):
        return Interconnect(kind, "nvswitch", link.latency)
    return Interconnect(kind, "nvlink_mesh", link.latency, lanes=lanes)


def _formed(wiring: Interconnect, form: str, devices: Sequence[Device], word: str) -> Interconnect:
    if form in ("nvswitch", "switch"):
        return replace(wiring, topology="nvswitch", lanes=None)
    if form == "mesh":
        return replace(wiring, topology="nvlink_mesh")
    if form == "pairs" and wiring.topology == "pcie_tree":
        bridge = min(device.link_bandwidth for device in devices)
        return replace(wiring, bridge_bandwidth=bridge or None)
    if rack := re.fullmatch(r"nvl(\d+)", form):
        return replace(wiring, topology="nvswitch", lanes=None, domain_devices=int(rack[1]))
    if rate := re.fullmatch(r"(\d+)gbs?", form):
        # vendors add both directions: 400 GB/s is 200 each way
        return replace(wiring, topology="nvswitch", lanes=None, bandwidth=float(rate[1]) * 1e9 / 2)
    raise ClusterError(
        f"Interconnect {word!r}: {form!r} is not understood. "
        "Use -nvswitch, -mesh, -nvl72, -pairs (PCIe cards with bridges) or a rate such as -400gbs."
    )
