"""From what a user writes on the command line to a cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretrain.cluster import catalog
from foretrain.cluster.cluster import Cluster, NodeRun
from foretrain.cluster.link import Network
from foretrain.cluster.node import network_kind
from foretrain.errors import ClusterError, InputError, did_you_mean
from foretrain.loading import load_yaml, read_text

__all__ = ["cluster_of", "split_count"]

MOST_BYTES = 4_000_000
_FILE = (".yaml", ".yml", ".json")
_TERM = re.compile(r"(?:(\d[\d,_]*)\s*[x×*]\s*)?(\S.*)")


def cluster_of(spec: str | Path | Mapping[str, Any] | Cluster) -> Cluster:
    """See `Cluster.of`."""
    if isinstance(spec, Cluster):
        return spec
    if isinstance(spec, Mapping):
        return Cluster.from_dict(spec)
    if isinstance(spec, Path) or _is_file(spec):
        return _from_file(Path(spec))
    if not spec.strip():
        raise ClusterError('The cluster is empty; write for example "2 x dgx-a100-80gb".')
    machines, shape = _split_network(spec)
    runs = [run for term in machines.split("+") for run in _runs(term)]
    if shape is None:
        return Cluster(spec.strip(), tuple(runs), Network(network_kind(run.node for run in runs)))
    return _on_network(spec.strip(), runs, shape)


def _on_network(spec: str, runs: list[NodeRun], shape: dict[str, Any]) -> Cluster:
    # here, because a cluster without a word on its network has no use for forms
    from foretrain.cluster.documents import joined, network_of, tried
    from foretrain.cluster.forms import NetworkForm

    faults: list[str] = []
    network = tried(lambda: network_of(runs, NetworkForm(**shape)), "network", faults)
    if network is None:
        raise ClusterError(f"{spec!r} is not usable:", faults=faults)
    return joined(Cluster(spec, tuple(runs), network), repr(spec))


_ON = re.compile(r"(.*\S)\s+on\s+([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)


def _split_network(spec: str) -> tuple[str, dict[str, Any] | None]:
    """`"8 x dgx-h100 on torus(dims=3)"` as the machines and what is said of their network."""
    found = _ON.fullmatch(spec)
    if found is None:
        return spec, None
    machines, topology, inner = found[1], found[2], found[3] or ""
    given = _arguments(inner, spec)
    routing = given.pop("routing", None)
    if routing is not None and not isinstance(routing, str):
        raise ClusterError(f"routing: {routing!r} is no name.")
    return machines, {"topology": topology, "routing": routing, "parameters": given}


def _arguments(inner: str, spec: str) -> dict[str, Any]:
    """`a=1, b=[2, 3]` as a mapping."""
    text = re.sub(r"([A-Za-z_]\w*)\s*=\s*", r"\1: ", inner.strip())
    refused = ClusterError(
        f"{inner!r} in {spec.strip()!r} is not understood; write for example "
        "fat-tree(oversubscription=2, leaf_nodes=16)."
    )
    try:
        found = load_yaml("{" + text + "}", "parameters")
    except InputError:
        raise refused from None
    if not isinstance(found, dict) or any(
        value is None or not isinstance(key, str) for key, value in found.items()
    ):
        raise refused
    return found


def split_count(term: str) -> tuple[int, str]:
    """`"16 x dgx-a100"` as (16, "dgx-a100"); no count means one."""
    found = _TERM.fullmatch(term.strip())
    if found is None:
        raise ClusterError(f'{term!r} is not a cluster; write for example "2 x dgx-a100-80gb".')
    digits = (found[1] or "1").replace(",", "").replace("_", "")
    if len(digits) > 9:
        raise ClusterError(f"{term.strip()!r} asks for too many machines.")
    return int(digits), found[2].strip()


def _is_file(spec: str) -> bool:
    """By its ending, or because it is a path that leads to a file."""
    if spec.strip().lower().endswith(_FILE):
        return True
    try:
        return "/" in spec and Path(spec).is_file()
    except (OSError, ValueError):
        return False


def _from_file(path: Path) -> Cluster:
    _expect_readable(path)
    data = load_yaml(path, "a cluster in YAML")
    if not isinstance(data, Mapping):
        raise ClusterError(f"{path} holds no mapping; expected a cluster with `nodes`.")
    cluster = Cluster.from_dict(data, str(path))
    return cluster if "name" in data else cluster.renamed(path.stem)


def _expect_readable(path: Path) -> None:
    """Refuse a file that would take minutes to parse, before it is parsed: by its bytes, then by its separators.

    Every value of a YAML document needs a comma or a line of its own, so counting those bounds what there is to
    read at some 40 microseconds each.
    """
    from foretrain.cluster.forms import MOST_CABLES

    remedy = (
        'Write equal machines as one entry ("1000 x t4") and name a topology (fat-tree, torus …) '
        "instead of drawing every cable."
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
    count, name = split_count(term)
    if catalog.is_node(name):
        node = catalog.find_node(name)
        return [NodeRun(node, count, node.device_count)]
    if not catalog.is_device(name):
        raise _unknown(name)
    node = catalog.standard_node(catalog.find_device(name))
    whole, rest = divmod(count, node.device_count)
    runs = [NodeRun(node, whole, node.device_count)] if whole else []
    if rest or not whole:
        runs.append(NodeRun(node, 1, rest))
    return runs


def _unknown(name: str) -> ClusterError:
    machines, chips = list(catalog.nodes()), list(catalog.devices())
    hint = did_you_mean(name, [*machines, *chips])
    plain = ", ".join(machine for machine in machines if ":" not in machine)
    return ClusterError(
        f"Unknown machine or device {name!r}.{hint} Machines: {plain}, and cloud instances such as "
        f"aws:p4d.24xlarge; devices: {', '.join(chips)}; or give a YAML file."
    )
