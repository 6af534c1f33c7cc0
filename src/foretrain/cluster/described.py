"""A cluster described by its device and links, with what had to be assumed.

    {device: h100, devices_per_node: 8, nodes: 2, intra_node: nvlink4-nvswitch,
     network: {kind: infiniband, gbps_per_node: 3200}}

Host, network cards and price come from the machine in the catalog that is most like it; what is null comes from
there too and is said so. `placement` lists devices in use per node, `devices` is how many take part in all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from foretrain.case_schema import cluster_schema
from foretrain.cluster import catalog
from foretrain.cluster.build import interconnect_from, nics_from
from foretrain.cluster.cluster import Cluster, Described, runs_of
from foretrain.cluster.device import Device
from foretrain.cluster.link import ClusterNetwork, Interconnect, Nics
from foretrain.cluster.network_words import NetworkWord, nearest_network, network_word
from foretrain.cluster.node import Node
from foretrain.cluster.quantities import tried
from foretrain.conformity import schema_faults
from foretrain.errors import ClusterError, did_you_mean
from foretrain.limits import shown

MOST_GBPS = 1_000_000


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The case's words, checked."""

    device: Device
    per_node: int | None
    nodes: int | None
    intra_node: str | None
    kind: str | None
    gbps: float | None
    card_bandwidth: float | None  # bytes/s of one port, where the network's name tells it
    domain: int | None


def described_cluster(data: Mapping[str, Any]) -> Described:
    """The cluster, what had to be assumed of it, and warnings for what was not understood."""
    assumptions: list[str] = []
    warnings: list[str] = []
    wanted = _checked(data, assumptions, warnings)
    used = _placement(wanted, data.get("placement"), data.get("devices"), assumptions)
    model = _most_alike(wanted, max(used))
    node = _node(wanted, model, max(used), len(used), assumptions)
    network = ClusterNetwork(node.nics.kind if node.nics is not None else "none")
    name = _name(node, used, wanted.device)
    cluster = Cluster(name, runs_of((node, count) for count in used), network)
    return Described(cluster, tuple(assumptions), tuple(warnings))


def used_devices(data: Mapping[str, Any]) -> tuple[int, int]:
    """How many devices take part in all, and on the first node."""
    wanted = _checked(data, [], [])
    used = _placement(wanted, data.get("placement"), data.get("devices"), [])
    return sum(used), used[0]


def _name(node: Node, used: Sequence[int], device: Device) -> str:
    """As one would write it, where the machine is one of the catalog."""
    is_whole = all(count == node.device_count for count in used)
    if is_whole and node.name in catalog.nodes():
        return f"{len(used)} x {node.name}"
    return f"{len(used)} x {max(used)} {device.name}"


# --- reading the words ------------------------------------------------------------------------------


@cache
def _schema() -> dict[str, Any]:
    """As cases have it, with bounds of a network's rate: one case of many may be wrong about that."""
    schema = deepcopy(cluster_schema())
    rate = schema["properties"]["network"]["properties"]["gbps_per_node"]
    rate |= {"exclusiveMinimum": 0, "maximum": MOST_GBPS}
    return schema


def _checked(given: Mapping[str, Any], assumptions: list[str], warnings: list[str]) -> _Wanted:
    schema = _schema()["properties"]
    case = {key: _whole(value) for key, value in given.items()}
    faults = [f"cluster.{fault}" for fault in schema_faults(_schema(), case)]
    device = _device(case["device"], faults, assumptions)
    if faults or device is None:
        raise ClusterError("Invalid cluster:", faults=faults)
    network = case.get("network") or {}
    _note_unknown(case, (*schema, "placement", "devices"), "cluster", assumptions)
    _note_unknown(network, (*schema["network"]["properties"],), "cluster.network", assumptions)
    gbps = network.get("gbps_per_node")
    word = _network(network.get("kind"), gbps, warnings)
    return _Wanted(
        device=device,
        per_node=case.get("devices_per_node"),
        nodes=case.get("nodes"),
        intra_node=case.get("intra_node") or None,
        kind=None if word is None else word.kind,
        gbps=None if gbps is None else float(gbps),
        card_bandwidth=None if word is None else word.bandwidth,
        domain=case.get("nvlink_domain"),
    )


def _whole(value: Any) -> Any:
    """8.0 is a count, too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _note_unknown(
    given: Mapping[str, Any], known: Sequence[str], path: str, assumptions: list[str]
) -> None:
    for key, value in given.items():
        if key not in known and value is not None:
            assumptions.append(
                f"{path}.{key} is unknown and ignored.{did_you_mean(str(key), known)}"
            )


def _device(name: Any, faults: list[str], assumptions: list[str]) -> Device | None:
    if not isinstance(name, str):
        return None
    near = None if catalog.is_device(name) else _kin(name)
    if near is not None:
        assumptions.append(f"device {name!r} is unknown; falling back to {near}.")
    return tried(lambda: catalog.find_device(near or name), "cluster.device", faults)


def _kin(name: str) -> str | None:
    """The device of the same chip that shares most words: `h100-96gb-hbm2e` is an `h100-sxm5-96gb`."""
    words = re.split(r"[\s_-]+", name.strip().lower().removeprefix("nvidia "))
    sharing = {
        known: len({*words} & {*known.split("-")})
        for known in catalog.devices()
        if known.split("-")[0] == words[0]
    }
    return max(sharing, key=lambda known: sharing[known], default=None)


def _network(text: str | None, gbps: float | None, warnings: list[str]) -> NetworkWord | None:
    if not text:
        return None
    word = network_word(text)
    if word is None:
        word = nearest_network(text, gbps)
        warnings.append(
            f"cluster.network.kind {shown(text)} is unknown; falling back to {word.kind}."
        )
    return word


def _placement(
    wanted: _Wanted, placement: Sequence[int] | None, devices: int | None, assumptions: list[str]
) -> list[int]:
    """Devices in use on each node."""
    if placement is not None:
        used = list(placement)
        if not used or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in used):
            raise ClusterError(f"placement: {used!r} must list at least one device for each node.")
        if devices is not None and sum(used) != devices:
            raise ClusterError(
                f"placement {used!r} uses {sum(used)} devices, not the {devices} specified."
            )
        return used
    per_node = wanted.per_node
    if per_node is None:
        per_node = catalog.standard_node(wanted.device).device_count
        if devices is not None and wanted.nodes is None:
            per_node = min(per_node, devices)
        assumptions.append(
            f"devices_per_node is not specified: {per_node}, as in the default node."
        )
    nodes = wanted.nodes
    if nodes is None:
        nodes = -(-devices // per_node) if devices is not None else 1
        assumptions.append(f"nodes is not specified: {nodes}.")
    return _filled(per_node, nodes, devices, assumptions)


def _filled(per_node: int, nodes: int, devices: int | None, assumptions: list[str]) -> list[int]:
    if devices is None or devices == per_node * nodes:
        return [per_node] * nodes
    if not 1 <= devices <= per_node * nodes:
        raise ClusterError(
            f"{devices} devices are used, but {nodes} nodes of {per_node} have only "
            f"{per_node * nodes}."
        )
    assumptions.append(
        f"{devices} of {per_node * nodes} devices are used; nodes are filled in order."
    )
    whole, rest = divmod(devices, per_node)
    return [per_node] * whole + ([rest] if rest else [])


# --- the machine --------------------------------------------------------------------------------------


def _most_alike(wanted: _Wanted, per_node: int) -> Node:
    """The catalog machine with this device that matches best; ties go to the standard one."""
    standard = catalog.standard_node(wanted.device)
    best, best_score = standard, _likeness(wanted, standard, per_node)
    for name in catalog.nodes_with(wanted.device.name):
        node = catalog.nodes()[name]
        score = _likeness(wanted, node, per_node)
        if score > best_score:
            best, best_score = node, score
    return best


def _likeness(wanted: _Wanted, node: Node, per_node: int) -> tuple[bool, int]:
    """First that the devices are enough, then points for each thing that agrees."""
    points = 0
    if wanted.gbps is not None:
        points += 4 * _same_gbps(node.nics, wanted.gbps)
    if wanted.kind is not None:
        points += 2 * (node.nics is not None and node.nics.kind == wanted.kind)
    if wanted.intra_node is not None:
        points += 4 * (node.interconnect.kind == wanted.intra_node.lower())
    points += node.device_count == per_node
    return node.device_count >= per_node, points


def _same_gbps(nics: Nics | None, gbps: float) -> bool:
    return nics is not None and abs(nics.total_bandwidth * 8e-9 / gbps - 1) < 0.01


def _node(wanted: _Wanted, model: Node, per_node: int, nodes: int, assumptions: list[str]) -> Node:
    """The machine as the case describes it, the rest as in the model machine."""
    count = max(per_node, model.device_count)
    interconnect = _interconnect(wanted, model, [wanted.device] * count, per_node, assumptions)
    nics = _nics(wanted, model, count, nodes, assumptions)
    same = _is_same(model, count, nics, interconnect)
    return replace(
        model,
        name=model.name if same else f"{count} x {wanted.device.name}",
        title=model.title if same else f"Node with {count} x {wanted.device.title}",
        devices=(wanted.device,) * count,
        interconnect=interconnect,
        nics=nics,
        price=model.price if same else None,
        cloud=model.cloud if same else None,
        source=model.source if same else f"defined by device and links; host as in {model.name}",
    )


def _is_same(model: Node, count: int, nics: Nics | None, interconnect: Interconnect) -> bool:
    if count != model.device_count or interconnect.kind != model.interconnect.kind:
        return False
    if nics is None or model.nics is None:
        return nics is model.nics
    # an instance with EFA may be used over plain TCP; any other transport is another machine
    kinds = {nics.kind, model.nics.kind}
    alike = len(kinds) == 1 or kinds == {"efa", "ethernet"}
    return alike and _same_gbps(model.nics, nics.total_bandwidth * 8e-9)


def _interconnect(
    wanted: _Wanted,
    model: Node,
    devices: list[Device],
    per_node: int,
    assumptions: list[str],
) -> Interconnect:
    if wanted.intra_node is None:
        if per_node > 1:
            kind = model.interconnect.kind
            assumptions.append(f"intra_node is not specified: {kind}, as in {model.name}.")
        interconnect = model.interconnect
        if interconnect.topology == "single" and per_node > 1:
            interconnect = interconnect_from("pcie4", devices, catalog.parts())
    else:
        interconnect = interconnect_from(wanted.intra_node, devices, catalog.parts())
    if interconnect.topology in ("nvswitch", "nvlink_mesh"):
        interconnect = _with_rate(interconnect, devices[0], per_node, assumptions)
    if wanted.domain is not None and wanted.domain > len(devices):
        domain = _job_domain(wanted, per_node, assumptions)
        return replace(interconnect, topology="nvswitch", lanes=None, domain_devices=domain)
    return interconnect


def _job_domain(wanted: _Wanted, per_node: int, assumptions: list[str]) -> int:
    """Devices of one rack that a job takes.

    Jobs on 72-device racks come in multiples of 64: schedulers hand out segments of 16 of the 18 trays, so
    that groups of a power of two never straddle racks.
    """
    domain, total = wanted.domain or 1, per_node * (wanted.nodes or 1)
    whole = 1 << (domain.bit_length() - 1)
    if total > domain and total % whole == 0 and total % domain:
        assumptions.append(f"{whole} of the {domain} devices of each rack are used.")
        return whole
    return domain


def _with_rate(
    interconnect: Interconnect, device: Device, per_node: int, assumptions: list[str]
) -> Interconnect:
    """A device that has no such links by its data sheet takes the rate of one link of the kind."""
    if interconnect.bandwidth is not None or device.link_bandwidth > 0:
        return interconnect
    link = catalog.links()[interconnect.kind.split("-")[0]]
    if per_node > 1:
        assumptions.append(f"{device.title} has no {interconnect.kind} links; one link is assumed.")
    return replace(interconnect, bandwidth=link.bandwidth)


def _nics(
    wanted: _Wanted, model: Node, count: int, nodes: int, assumptions: list[str]
) -> Nics | None:
    """The network cards; nothing is assumed for a single node, which does not use them."""
    if wanted.kind is None and wanted.gbps is None and nodes == 1:
        return None
    example = next(node for node in _examples(wanted, model) if node.nics is not None)
    known = example.nics
    kind = wanted.kind or (known.kind if known is not None else "ethernet")
    if wanted.kind is None:
        assumptions.append(f"network.kind is not specified: {kind}, as in {example.name}.")
    if wanted.gbps is not None:
        return _cards(wanted.gbps, kind, known, count)
    if wanted.card_bandwidth is not None:
        cards = 1 if known is None else known.count
        row = {"kind": kind, "count": cards, "bandwidth": wanted.card_bandwidth}
        assumptions.append(f"NICs are not specified: {cards} per node, as in {example.name}.")
        return nics_from(row, catalog.parts())
    if known is None or known.kind != kind:
        # other transports come in other speeds, but the size of the pipe is the best guess there is
        known = _cards(
            known.total_bandwidth * 8e-9 if known is not None else 1.0, kind, known, count
        )
    gbps = known.total_bandwidth * 8e-9
    assumptions.append(
        f"network.gbps_per_node is not specified: {gbps:g} Gb/s, as in {example.name}."
    )
    return known


def _examples(wanted: _Wanted, model: Node) -> tuple[Node, ...]:
    """Machines to take an unknown network from, nearest first; the last one has a network."""
    return model, catalog.standard_node(wanted.device), catalog.find_node("generic-server")


def _cards(gbps: float, kind: str, known: Nics | None, count: int) -> Nics:
    """Cards that together carry `gbps`: as many as needed at the usual speed, never more than devices."""
    total = gbps * 1e9 / 8
    if known is not None and known.kind == kind and abs(known.total_bandwidth / total - 1) < 0.01:
        return known
    each = catalog.links()[kind].bandwidth or (known.bandwidth if known is not None else total)
    cards = max(1, min(count, round(total / each)))
    row = {"kind": kind, "count": cards, "bandwidth": total / cards}
    return nics_from(row, catalog.parts())
