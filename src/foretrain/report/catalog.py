"""The documents of what is known: devices, nodes, links, models and runtimes."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from foretrain.cluster import Cluster, Device, Link, Node, catalog
from foretrain.errors import ForetrainError, InputError, did_you_mean
from foretrain.model import zoo
from foretrain.report.document import Document, Facts, Lines, Section, Table
from foretrain.report.words import usd
from foretrain.runtime import Runtime, presets
from foretrain.units import counted, show_bandwidth, show_bytes, show_count, show_seconds

if TYPE_CHECKING:
    from foretrain.measurement.records import Measurement


def list_document(kinds: Iterable[str]) -> Document:
    """Tables of the wanted kinds."""
    data = {kind: list(_ROWS[kind]()) for kind in kinds}
    counts = (counted(len(found), kind[:-1], kind) for kind, found in data.items())
    return Document(
        ", ".join(counts),
        lambda: data,
        lambda: tuple(_TABLES[kind]() for kind in data),
        make_rows=lambda: [
            {"kind": kind, **_flat(row)} for kind, found in data.items() for row in found
        ],
    )


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`peak_flops.bf16` and the like; what is a list becomes one text."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            is_list = isinstance(value, list | tuple)
            found[prefix + key] = "; ".join(map(str, value)) if is_list else value
    return found


def _devices() -> Table:
    rows = tuple(
        (name, d.title, show_bytes(d.memory_bytes), show_bandwidth(d.memory_bandwidth), _fastest(d))
        for name, d in catalog.devices().items()
    )
    return Table("devices", ("name", "title", "memory", "bandwidth", "peak"), rows, left=2)


def _fastest(device: Device) -> str:
    known = dict(device.peak_flops)
    dtype = next((name for name in ("bf16", "fp16", "fp32") if name in known), None)
    return "" if dtype is None else f"{show_count(known[dtype]).removesuffix(' T')} TFLOP/s {dtype}"


def _nodes() -> Table:
    rows = tuple(
        (
            name,
            f"{node.device_count} x {node.devices[0].name}",
            node.interconnect.kind,
            "" if node.nics is None else f"{node.nics.count} x {node.nics.kind}",
            "" if node.price is None else f"{usd(node.price.usd_per_hour)}/h ({node.price.date})",
        )
        for name, node in catalog.nodes().items()
    )
    return Table("nodes", ("name", "devices", "interconnect", "network", "price"), rows, left=4)


def _links() -> Table:
    rows = tuple(
        (
            name,
            link.title,
            link.tier,
            "" if link.bandwidth is None else show_bandwidth(link.bandwidth),
            show_seconds(link.latency),
        )
        for name, link in catalog.links().items()
    )
    return Table("links", ("name", "title", "tier", "bandwidth", "latency"), rows, left=3)


def _models() -> Table:
    rows = []
    for name in zoo.names():
        model = zoo.build(name)
        seq = "" if model.seq_len is None else f"{model.seq_len:,}"
        rows.append((name, show_count(model.parameters), seq))
    return Table("models", ("name", "parameters", "sequence"), tuple(rows))


def _runtimes() -> Table:
    rows = tuple(
        (name, preset.title, ", ".join(preset.aliases)) for name, preset in presets().items()
    )
    return Table("runtimes", ("name", "title", "also known as"), rows, left=3)


def _measurements() -> Table:
    from foretrain.report.measured import measurements_table

    return measurements_table(_stored())


def _stored() -> tuple[Measurement, ...]:
    """What the user's store holds; nothing where there is none."""
    from foretrain.measurement.store import Store, store_path

    if not store_path().exists():
        return ()
    with Store.open(must_exist=True) as store:
        return store.rows()


_TABLES: dict[str, Callable[[], Table]] = {
    "devices": _devices,
    "nodes": _nodes,
    "links": _links,
    "models": _models,
    "runtimes": _runtimes,
    "measurements": _measurements,
}


def _device_rows() -> Iterator[dict[str, Any]]:
    return (_facts(device) for device in catalog.devices().values())


def _node_rows() -> Iterator[dict[str, Any]]:
    for name, node in catalog.nodes().items():
        price = node.price
        yield {
            "name": name,
            "title": node.title,
            "device": node.devices[0].name,
            "devices": node.device_count,
            "interconnect": node.interconnect.kind,
            "network": None if node.nics is None else node.nics.kind,
            "cards": None if node.nics is None else node.nics.count,
            "usd_per_hour": None if price is None else price.usd_per_hour,
            "price_date": None if price is None else price.date,
            "source": node.source,
        }


def _link_rows() -> Iterator[dict[str, Any]]:
    return (_facts(link) for link in catalog.links().values())


def _model_rows() -> Iterator[dict[str, Any]]:
    for name in zoo.names():
        model = zoo.build(name)
        facts = {"parameters": model.parameters, "seq_len": model.seq_len, "source": model.source}
        yield {"name": name, **facts}


def _runtime_rows() -> Iterator[dict[str, Any]]:
    return (_facts(preset) for preset in presets().values())


def _measurement_rows() -> Iterator[dict[str, Any]]:
    from foretrain.measurement.exchange import plain

    return map(plain, _stored())


_ROWS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "devices": _device_rows,
    "nodes": _node_rows,
    "links": _link_rows,
    "models": _model_rows,
    "runtimes": _runtime_rows,
    "measurements": _measurement_rows,
}


# --- one thing ----------------------------------------------------------------------------------


def entry_document(name: str) -> Document:
    """Everything known about what `name` means, in every table that has it; a cluster is drawn."""
    if _CLUSTER.search(name):
        return cluster_document(Cluster.of(name))
    found = list(_found(name))
    if not found:
        known = [*catalog.devices(), *catalog.nodes(), *catalog.links(), *zoo.names(), *presets()]
        raise InputError(
            f"no catalog entry named {name!r}.{did_you_mean(name, known)} See 'foretrain "
            "catalog list'."
        )
    titles = (f"{kind}: {getattr(value, 'title', '') or value.name}" for kind, value, _ in found)
    return Document(
        "; ".join(titles),
        lambda: {kind: facts for kind, _, facts in found},
        lambda: tuple(
            Facts(f"{kind} {value.name}", tuple(_rows(facts))) for kind, value, facts in found
        ),
    )


_CLUSTER = re.compile(r"^\s*\d[\d,_]*\s*[x×*]|\+|\son\s|\.(?:ya?ml|json)\s*$", re.IGNORECASE)


def cluster_document(cluster: Cluster) -> Document:
    """The machines and the network that joins them, as a drawing and as data."""
    from foretrain.cluster.drawing import topology_facts

    facts = topology_facts(cluster)
    devices, nodes = counted(cluster.device_count, "device"), counted(cluster.node_count, "node")
    return Document(
        f"{cluster.name}: {devices} in {nodes}",
        lambda: {"cluster": facts},
        functools.partial(_cluster_sections, cluster, facts),
    )


def _cluster_sections(cluster: Cluster, facts: dict[str, Any]) -> Iterator[Section]:
    from foretrain.cluster.drawing import drawn_network, drawn_nodes

    yield Lines("Nodes", tuple(drawn_nodes(facts)))
    network = facts["network"]
    if network is not None:
        title = f"Network: {network['topology']}, {network['kind']}"
        yield Lines(title, tuple(drawn_network(cluster, facts)))
        yield Facts("Reach", tuple(_reach(network)))


def _reach(network: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "routing", network["routing"]
    for key, value in network["parameters"].items():
        yield key, _shown(key, value)
    cut, full = network["bisection_bandwidth"], network["half_bandwidth"]
    if cut is None:
        yield "bisection bandwidth", "not computed: too many links"
    else:
        share = f"{cut / full:.0%} of the bandwidth of half of the NICs"
        yield "bisection bandwidth", f"{show_bandwidth(cut)} each way, {share}"
    far = network["diameter"]
    yield "diameter", "not computed" if far is None else counted(far, "link")


def _found(name: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for kind, find in _FINDERS.items():
        try:
            value = find(name)
        except (ForetrainError, KeyError):
            continue
        yield kind, value, _facts(value)


def _runtime(name: str) -> Runtime:
    from foretrain.runtime import runtime

    return runtime(name)


_FINDERS: dict[str, Callable[[str], Any]] = {
    "device": catalog.find_device,
    "node": catalog.find_node,
    "link": lambda name: catalog.links()[name],
    "model": zoo.build,
    "runtime": _runtime,
}


def _facts(value: Any) -> dict[str, Any]:
    if isinstance(value, Device | Link | Runtime):
        return _plain(value)
    if isinstance(value, Node):
        facts = _plain(dataclasses.replace(value, devices=value.devices[:1]))
        return {**facts, "devices": f"{value.device_count} x {value.devices[0].name}"}
    blocks = [f"{block.name} x {block.repeat} ({len(block.ops)} ops)" for block in value.blocks]
    return {
        "name": value.name,
        "parameters": value.parameters,
        "seq_len": value.seq_len,
        "blocks": blocks if len(blocks) <= 24 else [*blocks[:24], f"… {len(blocks) - 24} more"],
        "source": value.source,
    }


def _plain(value: Any) -> dict[str, Any]:
    facts: dict[str, Any] = dataclasses.asdict(value)
    for key in ("peak_flops", "defaults"):
        if key in facts:
            facts[key] = dict(facts[key])
    return facts


def _rows(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if isinstance(value, dict):
            yield from _rows(value, f"{prefix}{key}.")
        elif value is not None and value not in ((), []):
            yield f"{prefix}{key}", _shown("flops" if prefix == "peak_flops." else key, value)


def _shown(key: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(item) for item in value)
    if isinstance(value, bool) or not isinstance(value, float | int):
        return str(value)
    if key == "flops":
        return f"{value / 1e12:,.1f} TFLOP/s"
    if key.endswith("_bytes") and value >= 1024:
        return show_bytes(value)
    if key.endswith("bandwidth"):
        return show_bandwidth(value)
    if key == "latency" or "seconds" in key:
        return show_seconds(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


# --- all things ---------------------------------------------------------------------------------


def check_document() -> Document:
    """Build every row; a fault is a row that cannot be built or that has no source."""
    count, faults = 0, []
    for path, make in _rows_of_all():
        count += 1
        try:
            if not make().source:
                faults.append(f"{path}: has no source.")
        except (ForetrainError, ValueError, KeyError, TypeError) as error:
            faults.append(f"{path}: {error}")
    found = counted(len(faults), "error") if faults else "no errors"
    return Document(
        f"{counted(count, 'row')}, {found}",
        lambda: {"rows": count, "faults": faults},
        lambda: (Lines("Faults", faults),),
        bool(faults),
    )


def _rows_of_all() -> Iterator[tuple[str, Callable[[], Any]]]:
    makers: dict[str, tuple[Iterable[str], Callable[[str], Any]]] = {
        "devices": (catalog.devices(), catalog.devices().__getitem__),
        "nodes": (catalog.nodes(), catalog.nodes().__getitem__),
        "links": (catalog.links(), catalog.links().__getitem__),
        "models": (zoo.names(), zoo.build),
        "runtimes": (presets(), presets().__getitem__),
    }
    for kind, (names, make) in makers.items():
        for name in names:
            yield f"{kind}.{name}", functools.partial(make, name)
