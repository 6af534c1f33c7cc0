"""From what a user writes on the command line to a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foretrain.cluster import catalog
from foretrain.cluster.cluster import Cluster, Described, NodeRun
from foretrain.cluster.link import ClusterNetwork
from foretrain.cluster.network_words import network_word
from foretrain.cluster.node import network_kind
from foretrain.cluster.quantities import COUNT, TERM, counted_nodes, split_count, tried
from foretrain.errors import ClusterError, InputError, did_you_mean
from foretrain.limits import shown
from foretrain.loading import is_file, load_yaml, read_text

MOST_BYTES = 4_000_000
_FILE = (".yaml", ".yml", ".json")
_NODES_OF = re.compile(
    rf"{COUNT}\s*(?:[x×*]\s*)?(?:nodes?|machines?|servers?|hosts?)\s+(?:of|with)\s+(\S.*)",
    re.ASCII | re.IGNORECASE,
)


def cluster_with_notes(
    spec: str | Path | Mapping[str, Any] | Cluster | Described,
) -> Described:
    """See `Cluster.read`."""
    if isinstance(spec, Described):
        return spec
    if isinstance(spec, Cluster):
        return Described(spec)
    if isinstance(spec, Path) or (isinstance(spec, str) and _is_file(spec)):
        return _from_file(Path(spec))
    if isinstance(spec, Mapping):
        return _from_mapping(spec, "cluster")
    if not isinstance(spec, str):
        raise ClusterError(
            f'{shown(spec)} is not a cluster; write for example "2 x dgx-a100-80gb".'
        )
    cluster = _from_words(spec)
    return Described(cluster, tuple(_usual_machines(spec, cluster)))


def _usual_machines(spec: str, cluster: Cluster) -> Iterator[str]:
    """Machines that were not named: those that the devices usually sit in."""
    for run in cluster.runs:
        node = run.node
        if node.name.lower() not in spec.lower():
            cards = f", {node.nics.count} x {node.nics.kind} per node" if node.nics else ""
            used = f"{run.used} x {node.devices[0].title}, {node.interconnect.kind}{cards}"
            yield f"{run.count} x {node.name} ({used}): common node for these devices (--on)"


def _from_mapping(data: Mapping[str, Any], where: str) -> Described:
    """Machines one by one (`nodes`), or described by their device and links (`device`)."""
    if "device" in data:
        from foretrain.cluster.described import described_cluster

        return described_cluster(data)
    return Described(Cluster.from_dict(data, where))


def _from_words(spec: str) -> Cluster:
    if not spec.strip():
        raise ClusterError('The cluster is empty; write for example "2 x dgx-a100-80gb".')
    machines, shape = _split_network(spec)
    runs = [run for term in machines.split("+") for run in _runs(term)]
    if shape is None:
        return Cluster(
            spec.strip(), tuple(runs), ClusterNetwork(network_kind(run.node for run in runs))
        )
    return _on_network(spec.strip(), runs, shape)


def _on_network(spec: str, runs: list[NodeRun], shape: dict[str, Any]) -> Cluster:
    # here, because a cluster without a word on its network has no use for forms
    from foretrain.cluster.documents import joined, network_of, with_network
    from foretrain.cluster.schema import NetworkForm

    faults: list[str] = []
    form = NetworkForm(**shape)
    carded = tried(lambda: with_network(runs, form, catalog.parts()), "network", faults)
    network = tried(lambda: network_of(carded or runs, form), "network", faults)
    if network is None or carded is None:
        raise ClusterError(f"{shown(spec, 80)} is invalid:", faults=faults)
    return joined(Cluster(spec, tuple(carded), network), shown(spec, 80))


_PORTS = re.compile(r"(?:([1-9]\d?)\s*x\s*)?(.+)", re.ASCII | re.IGNORECASE)
_ON = re.compile(r"(.*\S)\s+on\s+([A-Za-z0-9][\w./ -]*?)\s*(?:\((.*)\))?\s*", re.DOTALL)


def _split_network(spec: str) -> tuple[str, dict[str, Any] | None]:
    """`"8 x dgx-h100 on torus(dims=3)"`, `"8 x dgx-h100 on 100GbE"` or `… on 4x100GbE` with as many ports a node: the
    machines and what is said of their network."""
    match = _ON.fullmatch(spec)
    if match is None:
        return spec, None
    machines, topology, inner = match[1], match[2], match[3] or ""
    given = _arguments(inner, spec)
    routing = given.pop("routing", None)
    if routing is not None and not isinstance(routing, str):
        raise ClusterError(f"routing: {routing!r} is not a name.")
    ports = _PORTS.fullmatch(topology)
    word = None if inner or ports is None else network_word(ports[2])
    if word is not None and ports is not None:
        cards = None if ports[1] is None else int(ports[1])
        return machines, {"kind": word.kind, "bandwidth": word.bandwidth, "cards": cards}
    return machines, {"topology": topology, "routing": routing, "parameters": given}


def _arguments(inner: str, spec: str) -> dict[str, Any]:
    """`a=1, b=[2, 3]` as a mapping."""
    text = re.sub(r"([A-Za-z_]\w*)\s*=\s*", r"\1: ", inner.strip())
    refused = ClusterError(
        f"{inner!r} in {spec.strip()!r} is not understood; write for example "
        "fat-tree(oversubscription=2, leaf_nodes=16)."
    )
    try:
        arguments = load_yaml("{" + text + "}", "parameters")
    except InputError:
        raise refused from None
    if not isinstance(arguments, dict) or any(
        value is None or not isinstance(key, str) for key, value in arguments.items()
    ):
        raise refused
    return arguments


def _is_file(spec: str) -> bool:
    """By its ending, or because it is a path that leads to a file."""
    if spec.strip().lower().endswith(_FILE):
        return True
    return "/" in spec and is_file(spec)


def _from_file(path: Path) -> Described:
    _expect_readable(path)
    data = load_yaml(path, "a cluster in YAML")
    if not isinstance(data, Mapping):
        raise ClusterError(f"{path} is not a mapping; expected a cluster with `nodes`.")
    described = _from_mapping(data, str(path))
    if "name" in data or "device" in data:
        return described
    return described._replace(cluster=described.cluster.renamed(path.stem))


def _expect_readable(path: Path) -> None:
    """Refuse a file that would take minutes to parse, before it is parsed: by its bytes, then by its separators.

    Every value of a YAML document needs a comma or a line of its own, so counting those bounds what there is to
    read at some 40 microseconds each.
    """
    from foretrain.cluster.schema import MOST_CABLES

    remedy = (
        'Write identical nodes as one entry ("1000 x t4") and specify a topology (fat-tree, '
        "torus …) instead of listing every cable."
    )
    size = path.stat().st_size if path.is_file() else 0
    if size > MOST_BYTES:
        raise ClusterError(
            f"{path} has {size:,} bytes, too large for a cluster: at most {MOST_BYTES:,}. {remedy}"
        )
    text = read_text(path, MOST_BYTES, "a cluster in YAML")
    marks = text.count(",") + text.count("\n")
    if marks > 8 * MOST_CABLES:
        raise ClusterError(
            f"{path} has about {marks:,} values, too many for a cluster: at most {8 * MOST_CABLES:,}, "
            f"which is {MOST_CABLES:,} cables. {remedy}"
        )


def _runs(term: str) -> list[NodeRun]:
    """Runs of one term: machines by name, or devices in the machine they usually sit in."""
    nodes_of = _NODES_OF.fullmatch(term.strip())
    if nodes_of is not None:
        return [_nodes_of(counted_nodes(nodes_of[1], term.strip()), nodes_of[2])]
    count, name = split_count(term)
    if catalog.is_node(name):
        node = catalog.find_node(name)
        return [NodeRun(node, count, node.device_count)]
    if not catalog.is_device(name):
        if TERM.fullmatch(name)[1]:  # type: ignore[index]  # "2 x 8 H100": a name matches always
            return [_nodes_of(count, name)]
        raise _unknown(name)
    node = catalog.standard_node(catalog.find_device(name))
    whole, rest = divmod(count, node.device_count)
    runs = [NodeRun(node, whole, node.device_count)] if whole else []
    if rest or not whole:
        runs.append(NodeRun(node, 1, rest))
    return runs


def _nodes_of(count: int, devices: str) -> NodeRun:
    """`2 nodes of 8 H100`: the machine that these devices usually sit in, so many of them used."""
    used, name = split_count(devices)
    if catalog.is_node(name):
        node = catalog.find_node(name)
        return NodeRun(node, count * used, node.device_count)
    if not catalog.is_device(name):
        raise _unknown(name)
    node = catalog.standard_node(catalog.find_device(name))
    if used > node.device_count:
        raise ClusterError(
            f"{used} {name} in one node: the default node, {node.name}, has "
            f"{node.device_count}. Use another node ('foretrain catalog list nodes') or define "
            "it in a YAML file."
        )
    return NodeRun(node, count, used)


def _unknown(name: str) -> ClusterError:
    near = did_you_mean(name, catalog.words())
    return ClusterError(
        f"Unknown node or device {shown(name, 80)}.{near} 'foretrain catalog list nodes' and "
        "'foretrain catalog list devices' list all; or use a YAML file."
    )
