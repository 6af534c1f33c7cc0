"""The documents of what is known: devices, nodes, links, models and runtimes."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foretrain.cluster import Cluster, Device, Link, Node, catalog
from foretrain.errors import ForetrainError, InputError, did_you_mean
from foretrain.model import zoo
from foretrain.model.graph import Model
from foretrain.model.load import holds_model, load_model
from foretrain.report.document import Document, Facts, Lines, Section, Table
from foretrain.report.words import usd
from foretrain.runtime import Runtime, presets, runtime
from foretrain.runtime.checking import preset_file_faults
from foretrain.units import counted, show_bandwidth, show_bytes, show_count, show_seconds

if TYPE_CHECKING:
    from foretrain.measurement.records import Measurement


@dataclass(frozen=True)
class Kind:
    """A kind of entry: where its entries are, what a table shows of one, and what JSON holds."""

    names: Callable[[], Iterable[str]]
    get: Callable[[str], Any]
    columns: dict[str, Callable[[Any], str]]  # but for the name
    left: int = 1
    find: Callable[[str], Any] | None = None  # by an alias too
    row: Callable[[Any], dict[str, Any]] | None = None  # where it is not all that is known

    def table(self, title: str) -> Table:
        entries = ((name, self.get(name)) for name in self.names())
        rows = tuple((name, *(cell(x) for cell in self.columns.values())) for name, x in entries)
        return Table(title, ("name", *self.columns), rows, left=self.left)

    def rows(self) -> list[dict[str, Any]]:
        return [(self.row or _facts)(self.get(name)) for name in self.names()]


def list_document(kinds: Iterable[str]) -> Document:
    """Tables of the wanted kinds."""
    data = {kind: KINDS[kind].rows() if kind in KINDS else _measured_rows() for kind in kinds}
    counts = (counted(len(rows), kind[:-1], kind) for kind, rows in data.items())
    return Document(
        ", ".join(counts),
        lambda: data,
        lambda: (KINDS[kind].table(kind) if kind in KINDS else _measured() for kind in data),
        make_rows=lambda: [
            {"kind": kind, **_flat(row)} for kind, rows in data.items() for row in rows
        ],
    )


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`peak_flops.bf16` and the like; what is a list becomes one text."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            is_list = isinstance(value, list | tuple)
            flat[prefix + key] = "; ".join(map(str, value)) if is_list else value
    return flat


def _fastest(device: Device) -> str:
    known = dict(device.peak_flops)
    dtype = next((name for name in ("bf16", "fp16", "fp32") if name in known), None)
    return "" if dtype is None else f"{show_count(known[dtype]).removesuffix(' T')} TFLOP/s {dtype}"


def _price(node: Node) -> str:
    return "" if node.price is None else f"{usd(node.price.usd_per_hour)}/h ({node.price.date})"


def _node_row(node: Node) -> dict[str, Any]:
    price, nics = node.price, node.nics
    return {
        "name": node.name,
        "title": node.title,
        "device": node.devices[0].name,
        "devices": node.device_count,
        "interconnect": node.interconnect.kind,
        "network": None if nics is None else nics.kind,
        "cards": None if nics is None else nics.count,
        "usd_per_hour": None if price is None else price.usd_per_hour,
        "price_date": None if price is None else price.date,
        "source": node.source,
    }


def _model_row(model: Model) -> dict[str, Any]:
    return {key: value for key, value in _facts(model).items() if key != "blocks"}


KINDS = {
    "devices": Kind(
        catalog.devices,
        lambda name: catalog.devices()[name],
        {
            "title": lambda device: device.title,
            "memory": lambda device: show_bytes(device.memory_bytes),
            "bandwidth": lambda device: show_bandwidth(device.memory_bandwidth),
            "peak": _fastest,
        },
        left=2,
        find=catalog.find_device,
    ),
    "nodes": Kind(
        catalog.nodes,
        lambda name: catalog.nodes()[name],
        {
            "devices": lambda node: f"{node.device_count} x {node.devices[0].name}",
            "interconnect": lambda node: node.interconnect.kind,
            "network": lambda node: f"{node.nics.count} x {node.nics.kind}" if node.nics else "",
            "price": _price,
        },
        left=4,
        find=catalog.find_node,
        row=_node_row,
    ),
    "links": Kind(
        catalog.links,
        lambda name: catalog.links()[name],
        {
            "title": lambda link: link.title,
            "tier": lambda link: link.tier,
            "bandwidth": lambda link: show_bandwidth(link.bandwidth) if link.bandwidth else "",
            "latency": lambda link: show_seconds(link.latency),
        },
        left=3,
    ),
    "models": Kind(
        zoo.names,
        zoo.build,
        {
            "parameters": lambda model: show_count(model.parameters),
            "sequence": lambda model: f"{model.seq_len:,}" if model.seq_len else "",
        },
        row=_model_row,
    ),
    "runtimes": Kind(
        presets,
        lambda name: presets()[name],
        {
            "title": lambda preset: preset.title,
            "also known as": lambda preset: ", ".join(preset.aliases),
        },
        left=3,
        find=runtime,
    ),
}


def _stored() -> tuple[Measurement, ...]:
    """What the user's store holds; nothing where there is none."""
    from foretrain.measurement.store import Store, store_path

    if not store_path().exists():
        return ()
    with Store.open(must_exist=True) as store:
        return store.rows()


def _measured() -> Table:
    from foretrain.report.measured import measurements_table

    return measurements_table(_stored())


def _measured_rows() -> list[dict[str, Any]]:
    from foretrain.measurement.exchange import plain

    return [plain(row) for row in _stored()]


# --- one thing ----------------------------------------------------------------------------------


def entry_document(name: str) -> Document:
    """Everything known about what `name` means, in every table that has it, or in a model's file; a cluster is drawn."""
    if holds_model(name):
        model = load_model(name)
        entries = [("model", model, _facts(model))]
    elif _CLUSTER.search(name):
        return cluster_document(Cluster.of(name))
    else:
        entries = list(_matches(name))
    if not entries:
        known = [name for kind in KINDS.values() for name in kind.names()]
        raise InputError(
            f"no catalog entry named {name!r}.{did_you_mean(name, known)} See 'foretrain "
            "catalog list'."
        )
    titles = (f"{kind}: {getattr(value, 'title', '') or value.name}" for kind, value, _ in entries)
    return Document(
        "; ".join(titles),
        lambda: {kind: facts for kind, _, facts in entries},
        lambda: tuple(
            Facts(f"{kind} {value.name}", tuple(_rows(facts))) for kind, value, facts in entries
        ),
    )


_CLUSTER = re.compile(r"^\s*\d[\d,_]*\s*[x×*]|\+|\son\s|\.(?:ya?ml|json)\s*$", re.IGNORECASE)


def cluster_document(cluster: Cluster) -> Document:
    """The machines and the network that joins them, as a drawing and as data."""
    from foretrain.cluster.describe import topology_facts

    facts = topology_facts(cluster)
    devices, nodes = counted(cluster.device_count, "device"), counted(cluster.node_count, "node")
    return Document(
        f"{cluster.name}: {devices} in {nodes}",
        lambda: {"cluster": facts},
        functools.partial(_cluster_sections, cluster, facts),
    )


def _cluster_sections(cluster: Cluster, facts: dict[str, Any]) -> Iterator[Section]:
    from foretrain.cluster.describe import drawn_network, drawn_nodes

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


def _matches(name: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    for kind, known in KINDS.items():
        try:
            value = (known.find or known.get)(name)
        except (ForetrainError, KeyError):
            continue
        yield kind[:-1], value, _facts(value)


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
    if isinstance(value, Device):
        facts["peak_flops"] = dict(facts["peak_flops"])
    if isinstance(value, Runtime):
        facts["plan"]["defaults"] = dict(value.plan.defaults)
        facts["supported_plans"]["rules"] = dict(value.supported_plans.rules)
    return facts


def _rows(facts: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in facts.items():
        if isinstance(value, dict):
            yield from _rows(value, f"{prefix}{key}.")
        elif value is not None and value not in ((), [], ""):
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
    """Build every row; a fault is a row that cannot be built, that has no source, or that stands where none belongs."""
    count, faults = 0, preset_file_faults()
    kinds = [kind for kind in KINDS if kind != "runtimes" or not faults]
    for path, get in _entries(kinds):
        count += 1
        try:
            if not get().source:
                faults.append(f"{path}: has no source.")
        except (ForetrainError, ValueError, KeyError, TypeError) as error:
            faults.append(f"{path}: {error}")
    verdict = counted(len(faults), "error") if faults else "no errors"
    return Document(
        f"{counted(count, 'row')}, {verdict}",
        lambda: {"rows": count, "faults": faults},
        lambda: (Lines("Faults", faults),),
        bool(faults),
    )


def _entries(kinds: Iterable[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
    for kind in kinds:
        for name in KINDS[kind].names():
            yield f"{kind}.{name}", functools.partial(KINDS[kind].get, name)
