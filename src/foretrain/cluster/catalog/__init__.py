"""The catalog: devices, nodes and links as data, each row with its source.

`devices.yaml`, `nodes.yaml` and `links.yaml` are read on first use; a row becomes a value when it is asked
for. A folder named by the environment variable FORETRAIN_CATALOG may hold files of the same names: their
rows are merged over ours, key by key.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from foretrain.cluster.build import (
    ClusterParts,
    Lanes,
    device_from,
    device_like,
    link_from,
    node_from,
)
from foretrain.cluster.device import Device
from foretrain.cluster.link import Link
from foretrain.cluster.node import Node
from foretrain.errors import ClusterError, FileError, hint
from foretrain.limits import shown
from foretrain.loading import load_own_yaml, load_yaml

T = TypeVar("T")
Rows = Mapping[str, Any]
_HERE = Path(__file__).parent


class _Shelf(Mapping[str, T], Generic[T]):
    """Rows by name; each becomes a value when first taken."""

    def __init__(self, rows: Rows, make: Callable[[str, Rows], T]) -> None:
        self._rows = rows
        self._make = make
        self._built: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._built:
            self._built[name] = self._make(name, self._rows[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, name: object) -> bool:
        return name in self._rows


# --- the three shelves ------------------------------------------------------------------------------


def devices() -> Mapping[str, Device]:
    """All devices by name."""
    return _catalogue().devices


def nodes() -> Mapping[str, Node]:
    """All machines by name; cloud instances as `aws:p4d.24xlarge`."""
    return _catalogue().nodes


def links() -> Mapping[str, Link]:
    """All kinds of link by name."""
    return _catalogue().links


def meshes() -> Mapping[str, Lanes]:
    """Which pairs of devices a mesh joins, and with how many links."""
    return _catalogue().meshes


def parts() -> ClusterParts:
    """What rows may refer to by name."""
    return ClusterParts(links(), meshes(), find_device)


def find_device(name: str) -> Device:
    """By name or alias, whatever the case: `H100`, `a100-80gb`, `NVIDIA A100 SXM4 80GB`."""
    key = _catalogue().device_named(name)
    if key is None:
        raise _unknown("device", name, _catalogue().device_names)
    return devices()[key]


def find_node(name: str) -> Node:
    """By name or alias; a cloud instance with or without its cloud."""
    key = _catalogue().node_names.get(_folded(name))
    if key is None:
        raise _unknown("node", name, _catalogue().node_names)
    return nodes()[key]


def standard_node(device: Device) -> Node:
    """The machine a device usually sits in, or a plain PCIe server full of it."""
    rows = _catalogue().device_rows
    words = (rows.get(name, {}).get("node") for name in (device.name, device.identity))
    word = next((word for word in words if word is not None), None)
    if word is None:
        return _generic_server(device)
    node = find_node(word)
    if device in node.devices:
        return node
    return replace(node, devices=(device,) * node.device_count)


def is_device(name: str) -> bool:
    return _catalogue().device_named(name) is not None


def is_node(name: str) -> bool:
    return _folded(name) in _catalogue().node_names


def words() -> list[str]:
    """Every name and alias of a machine or device."""
    return [*_catalogue().node_names, *_catalogue().device_names]


def nodes_with(device: str) -> list[str]:
    """Names of the machines made of that device (by catalog name)."""
    rows = _catalogue().node_rows
    return [name for name, row in rows.items() if _device_word(row) == device]


# --- loading ----------------------------------------------------------------------------------------


class _Catalogue:
    """Everything of one reading of the files."""

    def __init__(self, device_rows: Rows, link_file: Rows, node_file: Rows) -> None:
        self.device_rows = device_rows
        self.node_rows = {**node_file.get("nodes", {}), **_offers(node_file.get("offers", ()))}
        self.devices: Mapping[str, Device] = _Shelf(device_rows, self._device)
        self.links: Mapping[str, Link] = _Shelf(link_file["links"], link_from)
        self.meshes: Mapping[str, Lanes] = {
            name: tuple(tuple(row) for row in mesh["lanes"])
            for name, mesh in link_file["meshes"].items()
        }
        self.nodes: Mapping[str, Node] = _Shelf(
            self.node_rows, lambda name, row: node_from(name, row, parts())
        )
        self.device_names = _names(device_rows)
        self.node_names = _names(self.node_rows)
        for name in self.node_rows:
            self.node_names.setdefault(_folded(name.rpartition(":")[2]), name)

    def device_named(self, name: str) -> str | None:
        """By name, alias, or their last word where it ends those of one device alone: `4090`."""
        word = _folded(name)
        if word in self.device_names:
            return self.device_names[word]
        if not re.search(r"\d", word) or word.endswith("gb"):  # `sxm` and `141gb` name no device
            return None
        ended = {name: one for name, one in self.device_names.items() if name.endswith(word)}
        is_word = any(name.endswith(f"-{word}") for name in ended)
        return next(iter(ended.values())) if is_word and len({*ended.values()}) == 1 else None

    def _device(self, name: str, row: Rows) -> Device:
        """A device from its row, or from that of another one and what differs."""
        chain = [name]
        while (like := self.device_rows[chain[-1]].get("like")) is not None:
            base = self.device_names.get(_folded(str(like)))
            if base is None:
                raise _unknown("device", str(like), self.device_names)
            chain.append(base)
            if base in chain[:-1]:
                raise ClusterError(
                    f"Device {name!r}: `like` is circular, {' → '.join(chain)}. Specify "
                    "the rates of one of them directly."
                )
        return device_from(name, row) if len(chain) == 1 else device_like(name, self.devices[chain[1]], row)  # fmt: skip


def _catalogue() -> _Catalogue:
    return _read(os.environ.get("FORETRAIN_CATALOG", ""))


@functools.lru_cache(maxsize=4)
def _read(folder: str) -> _Catalogue:
    files = {name: load_own_yaml(_HERE / f"{name}.yaml") for name in ("devices", "links", "nodes")}
    if folder:
        for name, own in _user_files(Path(folder)).items():
            files[name] = _merged(files[name], own)
    return _Catalogue(files["devices"], files["links"], files["nodes"])


def _user_files(folder: Path) -> dict[str, Rows]:
    if not folder.is_dir():
        raise FileError(f"FORETRAIN_CATALOG is set to {folder}, which is not a directory.")
    from foretrain.cluster.catalog.checking import check_catalogue_file

    tables = {}
    for name in ("devices", "links", "nodes"):
        path = folder / f"{name}.yaml"
        if path.exists():
            rows = load_yaml(path, f"catalog {name}") or {}
            check_catalogue_file(name, rows, str(path))
            tables[name] = rows
    return tables


def _merged(ours: Any, theirs: Any) -> Any:
    """Mappings key by key, tables one after the other, anything else replaced."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        joined = dict(ours)
        for key, value in theirs.items():
            joined[key] = _merged(ours[key], value) if key in ours else value
        return joined
    if (
        isinstance(ours, list)
        and isinstance(theirs, list)
        and ours
        and isinstance(ours[0], Mapping)
    ):
        return [*ours, *theirs]
    return theirs


def _offers(blocks: Any) -> dict[str, Rows]:
    """Node rows from tables of cloud instances."""
    return {
        f"{block['cloud']}:{row[0]}": _offer(block, dict(zip(block["columns"], row, strict=True)))
        for block in blocks
        for row in block["rows"]
    }


def _offer(block: Rows, row: Rows) -> Rows:
    threads = 1 if row["device"].startswith("gb") else 2
    name = f"{block['cloud']}:{row['instance']}"
    nics = {"kind": row["network"], "count": row["cards"], "bandwidth": f"{row['gbps']}Gb/s"}
    price = block.get("price")
    return {
        "title": f"{block['cloud'].upper() if block['cloud'] in ('aws', 'gcp') else block['cloud'].title()} "
        f"{row['instance']}",
        "devices": {"device": row["device"], "count": row["count"]},
        "interconnect": row["interconnect"],
        "nics": None if row["gbps"] is None else nics,
        "host": {
            "cpu_cores": None if row["vcpus"] is None else row["vcpus"] / threads,
            "memory_bytes": None if row["memory_gib"] is None else row["memory_gib"] * 2.0**30,
            "storage_bandwidth": None if row["disk_mbps"] is None else row["disk_mbps"] * 1e6 / 8,
        },
        "price": None if price is None else _priced(price, row),
        "cloud": name,
        "status": block["status"],
        "source": block["source"],
    }


def _priced(price: Rows, row: Rows) -> Rows:
    return {**price, "usd_per_hour": row["usd"], "spot_usd_per_hour": row["spot_usd"]}


def _generic_server(device: Device) -> Node:
    row = dict(_catalogue().node_rows["generic-server"])
    gen = next((n for n, one in links().items() if one.bandwidth == device.pcie_bandwidth), "pcie4")
    row["devices"] = [device] * row["devices"]["count"]
    row["interconnect"] = gen if gen.startswith("pcie") else "pcie4"
    row["title"] = f"Server with eight {device.title}"
    return node_from(f"server-{device.name}", row, parts())


def _device_word(row: Rows) -> str | None:
    given = row.get("devices")
    if isinstance(given, Mapping):
        return str(given.get("device"))
    return given if isinstance(given, str) else None


def _names(rows: Rows) -> dict[str, str]:
    """Folded name or alias to name; names win over aliases."""
    names = {_folded(name): name for name in rows}
    for name, row in rows.items():
        for alias in row.get("aliases") or ():
            names.setdefault(_folded(str(alias)), name)
    return names


def _folded(name: str) -> str:
    plain = (
        re.sub(r"[\s_]+", "-", name.strip().lower()).removeprefix("nvidia-").removeprefix("amd-")
    )
    plain = re.sub(r"(\d)-gb\b", r"\1gb", plain).removeprefix("instinct-")
    return re.sub(r"^rtx(\d)", r"rtx-\1", plain.removeprefix("geforce-"))


def _unknown(what: str, name: str, words: Mapping[str, str]) -> ClusterError:
    remedy = hint(_folded(name), words, f"foretrain catalog list {what}s")
    return ClusterError(f"Unknown {what} {shown(name, 80)}.{remedy}")
