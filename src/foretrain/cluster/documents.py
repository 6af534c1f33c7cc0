"""The YAML form of a cluster: what a user may write, and both ways between it and the nouns.

name: my cluster
network: {kind: infiniband, bandwidth: 200Gb/s, cards: 4, topology: fat-tree, oversubscription: 2}
devices:
  my-gpu: {like: a100-sxm4-80gb, memory_bytes: 96GB}
nodes:
  - 4 x dgx-a100-80gb
  - {node: dgx-a100-80gb, count: 2, used: 4}
  - {name: box, count: 1, devices: [my-gpu, my-gpu, t4], interconnect: pcie4, nics: {kind: ethernet, bandwidth: 25Gb/s}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import groupby
from typing import Any

from foretrain.cluster import catalog
from foretrain.cluster.build import (
    ClusterParts,
    device_from,
    device_like,
    nics_from,
    node_from,
    with_network_word,
)
from foretrain.cluster.cluster import Cluster, NodeRun
from foretrain.cluster.device import Device
from foretrain.cluster.link import ClusterNetwork, NetworkEdge, Nics, self_loop
from foretrain.cluster.node import Node, network_kind
from foretrain.cluster.quantities import tried
from foretrain.cluster.schema import (
    MOST_CABLES,
    MOST_RUNS,
    MOST_VERTICES,
    ClusterForm,
    DeviceForm,
    NetworkForm,
    NodeForm,
    normal_node,
    too_many,
)
from foretrain.cluster.topologies import network_shape
from foretrain.errors import ClusterError, InputError, did_you_mean, refuse
from foretrain.loading import validated

# --- reading ----------------------------------------------------------------------------------------


def cluster_from_dict(data: Mapping[str, Any], where: str = "cluster") -> Cluster:
    """A cluster from plain data; every fault of the form at once."""
    form = _checked(_normal(data), where)
    if not form.nodes:
        raise ClusterError(f"{where} is invalid:", faults=["nodes: empty; specify at least one."])
    faults: list[str] = []
    own = _own_devices(form.devices, faults)
    parts = _parts_with(own)
    runs: list[NodeRun] = []
    for number, node_form in enumerate(form.nodes):
        run = tried(partial(_run, node_form, parts), f"nodes[{number}]", faults)
        if run is not None:
            runs.append(run)
    nodes = tried(lambda: with_network(runs, form.network, parts), "network", faults)
    if faults or nodes is None:
        raise ClusterError(f"{where} is invalid:", faults=faults)
    network = tried(lambda: network_of(nodes, form.network), "network", faults)
    if network is None:
        raise ClusterError(f"{where} is invalid:", faults=faults)
    default = " + ".join(f"{run.count} x {run.node.name}" for run in nodes)
    return joined(Cluster(form.name or default, tuple(nodes), network), where)


def _checked(data: Any, where: str) -> ClusterForm:
    """The form; if it is faulty, with what else is wrong with its cables."""
    try:
        return validated(ClusterForm, data, where, ClusterError)
    except ClusterError as error:
        if not error.faults:
            raise
        faults = [f"{f} {NO_RATE}" if _is_rate(f) else f for f in error.faults]
        network = data.get("network") if isinstance(data, Mapping) else None
        edges = network.get("edges") if isinstance(network, Mapping) else None
        loops = []
        for number, edge in enumerate(edges if isinstance(edges, list) else ()):
            ends = edge.get("ends") if isinstance(edge, Mapping) else None
            if isinstance(ends, list | tuple) and len(ends) == 2 and ends[0] == ends[1]:
                loops.append(f"network.edges[{number}]: {self_loop(ends[0])}")
        faults += loops[:MOST_LOOPS]
        count = f"{len(faults)} error{'s' if len(faults) > 1 else ''}"
        raise ClusterError(f"{where} is invalid ({count}):", faults=faults) from None


MOST_LOOPS = 20
NO_RATE = "Remove cables without bandwidth."


def _is_rate(fault: str) -> bool:
    return fault.startswith("network.edges[") and fault.endswith("must be positive.")


def joined(cluster: Cluster, where: str) -> Cluster:
    """The cluster if its network can be built; all but a star can fail, so they are tried at once."""
    if cluster.network.topology == "star":
        return cluster
    faults: list[str] = []
    tried(lambda: cluster.network_fabric, "network", faults)
    refuse(f"{where} is invalid:", faults, ClusterError)
    return cluster


def _normal(data: Any) -> Any:
    """Short spellings written out, so that the form has one shape and faults have plain paths."""
    if not isinstance(data, Mapping):
        return data
    full = dict(data)
    if isinstance(full.get("network"), str):
        full["network"] = {"kind": full["network"]}
    if isinstance(full.get("network"), Mapping):
        full["network"] = _normal_network(full["network"])
    if isinstance(full.get("nodes"), str | Mapping):
        full["nodes"] = [full["nodes"]]
    if isinstance(full.get("nodes"), list | tuple):
        if len(full["nodes"]) > MOST_RUNS:
            raise ClusterError(
                f"nodes: {len(full['nodes']):,} entries; at most {MOST_RUNS:,}. Write "
                'identical nodes as one entry, such as "1000 x t4".'
            )
        full["nodes"] = [normal_node(entry) for entry in full["nodes"]]
    return full


def _normal_network(given: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of the topology in a place of their own, cables written out."""
    own = {one.name for one in fields(NetworkForm)} - {"parameters"}
    full = {key: value for key, value in given.items() if key in own}
    full = dict(with_network_word(full, catalog.parts()))
    full["parameters"] = {key: value for key, value in given.items() if key not in own}
    edges = full.get("edges")
    if isinstance(edges, list | tuple):
        if len(edges) > MOST_CABLES:
            raise ClusterError(
                f"network.edges: {len(edges):,} cables; at most {MOST_CABLES:,}. Specify a "
                "topology (fat-tree, torus …) instead of listing every cable."
            )
        full["edges"] = [_normal_edge(edge) for edge in edges]
    return full


def _normal_edge(edge: Any) -> Any:
    if not isinstance(edge, list | tuple) or not 3 <= len(edge) <= 4:
        return edge
    late = {"latency": edge[3]} if len(edge) == 4 else {}
    return {"ends": list(edge[:2]), "bandwidth": edge[2], **late}


def _own_devices(forms: Mapping[str, DeviceForm], faults: list[str]) -> dict[str, Device]:
    own: dict[str, Device] = {}
    for key, form in forms.items():
        device = tried(partial(_device, key, form), f"devices.{key}", faults)
        if device is not None:
            own[key] = device
    return own


def _device(key: str, form: DeviceForm) -> Device:
    name, row = form.name or key, _given(form)
    if form.like is None:
        return device_from(name, row)
    return device_like(name, catalog.find_device(form.like), row)


def _parts_with(own: Mapping[str, Device]) -> ClusterParts:
    known = catalog.parts()

    def find(name: str) -> Device:
        return own[name] if name in own else known.find_device(name)

    return ClusterParts(known.links, known.meshes, find)


def _run(form: NodeForm, parts: ClusterParts) -> NodeRun:
    row = _given(form)
    if form.node is not None:
        base = catalog.find_node(form.node)
        node = base if set(row) <= {"node", "count", "used"} else _changed(base, row, parts)
    elif form.devices is None:
        raise ClusterError("specify `node` (a catalog name) or `devices`.")
    else:
        node = node_from(form.name or "node", row, parts)
    return NodeRun(node, form.count or 1, form.used or node.device_count)


def _changed(base: Node, row: Mapping[str, Any], parts: ClusterParts) -> Node:
    """A catalog machine with what the user says differently."""
    devices = row.get("devices") or list(base.devices)
    changed = node_from(
        row.get("name") or base.name,
        {**row, "devices": devices, "interconnect": row.get("interconnect", "none"), "nics": None},
        parts,
    )
    keep = {
        key: getattr(base, key) for key in ("title", "cloud", "status", "source") if key not in row
    }
    if "interconnect" not in row:
        keep["interconnect"] = base.interconnect
    if "nics" in row:
        keep["nics"] = _changed_nics(base.nics, with_network_word(row["nics"], parts), parts)
    else:
        keep["nics"] = base.nics
    host = {key: value for key, value in _plain(changed.host).items() if value is not None}
    keep["host"] = replace(base.host, **host)
    if changed.name != base.name:
        keep["measured_as"] = row.get("measured_as") or base.identity
    keep["price"] = changed.price or base.price
    return replace(changed, **keep)


def with_network(runs: list[NodeRun], form: NetworkForm, parts: ClusterParts) -> list[NodeRun]:
    """Runs with the network cards that the cluster's network demands."""
    changes = {"kind": form.kind, "bandwidth": form.bandwidth, "count": form.cards}
    changes = {key: value for key, value in changes.items() if value is not None}
    if form.latency is not None:
        changes["latency"] = form.latency
    if not changes or form.kind == "none":
        return runs
    return [
        replace(run, node=replace(run.node, nics=_changed_nics(run.node.nics, changes, parts)))
        for run in runs
    ]


def _changed_nics(nics: Nics | None, changes: Mapping[str, Any], parts: ClusterParts) -> Nics:
    known = {} if nics is None else _plain(nics)
    if changes.get("kind", known.get("kind")) != known.get("kind"):
        known.pop("latency", None)
    return nics_from({**known, **changes}, parts)


def network_of(runs: list[NodeRun], form: NetworkForm) -> ClusterNetwork:
    """The network of a form: what its topology takes is checked here, what it makes of it is not."""
    name, shape = network_shape(form.topology)
    faults: list[str] = []
    unknown = [key for key in form.parameters if key not in shape.names]
    for key in unknown:
        known = [*shape.names, *(one.name for one in fields(NetworkForm)[:-1])]
        takes = ", ".join(shape.names) or "no parameters"
        hint = did_you_mean(str(key), known)
        faults.append(f"{key}: unknown key.{hint} Topology {name} takes: {takes}.")
    given = {key: value for key, value in form.parameters.items() if key in shape.names}
    parameters: tuple[tuple[str, Any], ...] = ()
    try:
        parameters = shape.read(given)
    except InputError as error:
        faults.extend(error.faults or (str(error),))
    try:
        shape.expect_routing(form.routing or shape.routings[0], name)
    except InputError as error:
        faults.extend(error.faults)
    if form.edges and name != "graph":
        faults.append(f"edges: only for topology graph, not {name}.")
    if name == "graph" and (nodes := sum(run.count for run in runs)) > MOST_VERTICES:
        faults.append(f"edges: {too_many(nodes)}")
    refuse("invalid network:", faults, ClusterError)
    kind = form.kind or network_kind([run.node for run in runs])
    edges = tuple(NetworkEdge(**_said(edge)) for edge in form.edges)
    return ClusterNetwork(kind, name, form.source, edges, parameters, form.routing)


def _plain(value: Any) -> dict[str, Any]:
    """A noun as a row."""
    row = {one.name: getattr(value, one.name) for one in fields(value)}
    if "peak_flops" in row:
        row["peak_flops"] = dict(row["peak_flops"])
    return row


def _said(form: Any) -> dict[str, Any]:
    """The keys of a form that were given."""
    return {key: value for key, value in _plain(form).items() if value is not None}


def _given(form: Any) -> dict[str, Any]:
    """The same as plain data, all the way down."""
    return {key: _bare(value) for key, value in asdict(form).items() if value is not None}


def _bare(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _bare(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, tuple | list):
        return [_bare(inner) for inner in value]
    return value


# --- writing ----------------------------------------------------------------------------------------


def cluster_to_dict(cluster: Cluster) -> dict[str, Any]:
    """Complete in itself: devices are written out, nothing refers to the catalog."""
    keys: dict[Device, str] = {}
    for run in cluster.runs:
        for device in run.node.devices:
            if device not in keys:
                same = sum(other.name == device.name for other in keys)
                keys[device] = device.name if not same else f"{device.name}#{same + 1}"
    network = _network_row(cluster.network)
    if cluster.network.kind == network_kind(run.node for run in cluster.runs):
        # written down it would be an order to all nodes, and unlike nodes would lose their own cards
        del network["kind"]
    return {
        "name": cluster.name,
        "network": network,
        "devices": {key: _bare(_plain(device)) for device, key in keys.items()},
        "nodes": [_node_row(run, keys) for run in cluster.runs],
    }


def _network_row(network: ClusterNetwork) -> dict[str, Any]:
    row = _bare({**asdict(replace(network, parameters=())), "parameters": None})
    row = {key: value for key, value in row.items() if value is not None}
    return {**row, **_bare(dict(network.parameters))}


def _node_row(run: NodeRun, keys: Mapping[Device, str]) -> dict[str, Any]:
    row = _bare(asdict(replace(run.node, devices=run.node.devices[:1])))
    row["devices"] = [
        {"device": keys[device], "count": len(list(same))}
        for device, same in groupby(run.node.devices)
    ]
    return {"count": run.count, "used": run.used, **row}
