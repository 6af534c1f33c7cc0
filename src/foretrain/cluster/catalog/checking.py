"""Checks of a user's own catalog files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from foretrain.cluster.quantities import tried
from foretrain.cluster.schema import DeviceForm, LinkForm, NodeForm, normal_node
from foretrain.errors import ClusterError, hint, refuse
from foretrain.loading import validated


def check_catalogue_file(name: str, rows: Any, where: str) -> None:
    """Every fault of a catalog file at once."""
    if not isinstance(rows, Mapping):
        raise ClusterError(f"{where} must contain a mapping of names to entries.")
    faults: list[str] = []
    if name == "devices":
        _check_rows(DeviceForm, rows, "", faults)
    elif name == "links":
        _check_keys(rows, ("links", "meshes"), faults)
        _check_rows(LinkForm, rows.get("links") or {}, "links.", faults)
    else:
        _check_keys(rows, ("nodes", "offers"), faults)
        plain = rows.get("nodes") or {}
        if isinstance(plain, Mapping):  # a row is a machine, not so many of another one
            rows_of = (item for item in plain.items() if not isinstance(item[1], str))
            faults += [
                f"nodes.{key}: expected a row." for key in plain if isinstance(plain[key], str)
            ]
            plain = {key: normal_node(row) for key, row in rows_of}
        _check_rows(NodeForm, plain, "nodes.", faults)
        _check_offers(rows.get("offers") or [], faults)
    refuse(f"{where} is invalid:", faults, ClusterError)


def _check_keys(rows: Mapping[str, Any], known: tuple[str, ...], faults: list[str]) -> None:
    for key in rows:
        if key not in known:
            faults.append(f"{key}: unknown key.{hint(str(key), known)}")
        elif not isinstance(rows[key], Mapping | list):
            faults.append(f"{key}: expected rows, got {rows[key]!r}.")


def _check_rows(form: type, rows: Mapping[str, Any], path: str, faults: list[str]) -> None:
    if not isinstance(rows, Mapping):
        faults.append(f"{path.removesuffix('.')}: expected a mapping of names to rows.")
        return
    for key, row in rows.items():
        tried(partial(validated, form, row, str(key)), f"{path}{key}", faults)


_OFFER_KEYS = ("cloud", "status", "source", "columns", "rows")
_OFFER_COLUMNS = (
    "instance", "device", "count", "interconnect", "network", "cards", "gbps", "vcpus",
    "memory_gib", "disk_mbps",
)  # fmt: skip


def _check_offers(blocks: Any, faults: list[str]) -> None:
    for number, block in enumerate(blocks if isinstance(blocks, list) else [blocks]):
        path = f"offers[{number}]"
        if not isinstance(block, Mapping):
            faults.append(f"{path}: expected a block with {', '.join(_OFFER_KEYS)}.")
            continue
        faults.extend(f"{path}.{key}: missing." for key in _OFFER_KEYS if key not in block)
        need = _OFFER_COLUMNS + (("usd", "spot_usd") if block.get("price") else ())
        columns = block.get("columns") or []
        faults.extend(f"{path}.columns: {key} is missing." for key in need if key not in columns)
        for place, row in enumerate(block.get("rows") or []):
            if not isinstance(row, list) or len(row) != len(columns):
                faults.append(f"{path}.rows[{place}]: expected {len(columns)} values.")
