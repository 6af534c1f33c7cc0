"""Plans as plain data (YAML) and back; all faults of a document at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from foretrain.errors import PlanError, did_you_mean, hint
from foretrain.limits import AXES, DEVICES, LAYERS, MICRO_BATCH, QUANTITY, Limit, shown
from foretrain.plan.mesh import Mesh
from foretrain.plan.schedules import DEFAULT, SCHEDULES, meant
from foretrain.plan.strategy import (
    EXCHANGES,
    OFFLOADS,
    STATE_ROLES,
    Cut,
    Schedule,
    StrategyNode,
    ranged,
)

_NODE_KEYS = ("split", "state", "recompute", "offload", "exchange", "children")
_ROOT_KEYS = (*_NODE_KEYS, "bucket_bytes", "schedule")  # what holds for the step as a whole
_SCHEDULE_KEYS = ("kind", "micro_batch", "stages", "chunks", "layers")
_TOP_KEYS = ("text", "mesh", "names", "tree")


def plan_to_dict(mesh: Mesh, root: StrategyNode) -> dict[str, Any]:
    document: dict[str, Any] = {"mesh": dict(mesh.axes)}
    if mesh.names:
        document["names"] = {name: list(axes) for name, axes in mesh.names}
    document["tree"] = _node_to_dict(root)
    return document


def _node_to_dict(node: StrategyNode) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if node.split:
        out["split"] = [{"dims": list(cut.dims), "axes": list(cut.axes)} for cut in node.split]
    if node.state:
        out["state"] = {role: list(axes) for role, axes in node.state}
    for key in ("recompute", "exchange", "bucket_bytes"):
        if getattr(node, key) is not None:
            out[key] = getattr(node, key)
    if node.offload is not None:
        out["offload"] = list(node.offload)
    if node.schedule is not None:
        schedule = {key: getattr(node.schedule, key) for key in _SCHEDULE_KEYS}
        schedule["layers"] = list(schedule["layers"]) if schedule["layers"] is not None else None
        out["schedule"] = {key: value for key, value in schedule.items() if value is not None}
    if node.children:
        out["children"] = [{"select": c.select, **_node_to_dict(c)} for c in node.children]
    return out


class _Reader:
    """Reads a document while collecting faults with their paths."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def fault(self, where: str, text: str) -> None:
        self.faults.append(f"{where}: {text}")

    def keys(self, where: str, data: Mapping[str, Any], known: tuple[str, ...]) -> None:
        for key in data:
            if key not in known:
                hint = did_you_mean(str(key), known)
                self.fault(f"{where}.{key}" if where else str(key), f"unknown field.{hint}")

    def mapping(self, where: str, value: object) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return value
        self.fault(where, f"expected a mapping, got {type(value).__name__} {value!r:.60}.")
        return {}

    def words(self, where: str, value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            return self.once(where, [part.strip() for part in value.split(",") if part.strip()])
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return self.once(where, value)
        self.fault(where, f"expected a name or a list of names, got {value!r:.60}.")
        return ()

    def once(self, where: str, names: list[str]) -> tuple[str, ...]:
        for name, times in Counter(names).items():
            if times > 1:
                self.fault(where, f"{shown(name)} is named {times:,} times; name it once.")
        return tuple(dict.fromkeys(names))

    def whole(self, where: str, value: object, limit: Limit) -> int:
        if isinstance(value, int) and limit.allows(value):
            return value
        self.fault(where, limit.fault(value))
        return 1

    def mesh(self, data: Mapping[str, Any]) -> Mesh:
        axes = self.mapping("mesh", data.get("mesh", {}))
        sizes = tuple(
            (str(name), self.whole(f"mesh.{name}", size, DEVICES)) for name, size in axes.items()
        )
        if not sizes:
            self.fault("mesh", "a plan needs at least one axis, for example {dp: 8}.")
        if len(sizes) > AXES.most:
            self.fault("mesh", AXES.fault(len(sizes)))
        names = self.mapping("names", data.get("names", {}))
        spoken = tuple((str(n), self.words(f"names.{n}", axes)) for n, axes in names.items())
        for name, members in spoken:
            for member in members:
                if member not in dict(sizes):
                    self.fault(f"names.{name}", f"mesh has no axis {member!r}.")
        return Mesh(sizes, spoken)

    def axes(self, where: str, value: object, mesh: Mesh) -> tuple[str, ...]:
        atomic: list[str] = []
        for name in self.words(where, value):
            try:
                atomic += mesh.expand(name)
            except PlanError as error:
                self.fault(where, str(error))
        return self.once(where, atomic)  # two names may stand for the same axis

    def cuts(self, where: str, value: object, mesh: Mesh) -> tuple[Cut, ...]:
        if isinstance(value, Mapping):  # the spelling people write: {"heads,kv_heads": tp}
            pairs = [(self.words(where, str(k)), v, f"{where}.{k}") for k, v in value.items()]
        elif isinstance(value, list) and all(isinstance(v, Mapping) for v in value):
            pairs = []
            for index, entry in enumerate(value):
                at = f"{where}[{index}]"
                self.keys(at, entry, ("dims", "axes"))
                pairs.append((self.words(f"{at}.dims", entry.get("dims")), entry.get("axes"), at))
        else:
            self.fault(where, "expected a mapping from dims to axes.")
            return ()
        return tuple(Cut(dims, self.axes(at, axes, mesh)) for dims, axes, at in pairs)

    def schedule(self, where: str, value: object) -> Schedule:
        data = self.mapping(where, value)
        self.keys(where, data, _SCHEDULE_KEYS)
        kind = str(data.get("kind", DEFAULT))
        if kind not in SCHEDULES:
            hint = did_you_mean(kind, SCHEDULES)
            self.fault(f"{where}.kind", f"unknown schedule {kind!r}.{hint}")
        numbers = {
            key: self.whole(f"{where}.{key}", data[key], limit)
            for key, limit in (
                ("micro_batch", MICRO_BATCH),
                ("stages", DEVICES),
                ("chunks", LAYERS),
            )
            if key in data
        }
        layers = data.get("layers")
        if layers is not None and not (isinstance(layers, list) and layers):
            self.fault(f"{where}.layers", "expected a list of whole numbers.")
            layers = None
        counts = tuple(
            0
            if n == 0 and not isinstance(n, bool)
            else self.whole(f"{where}.layers[{i}]", n, LAYERS)
            for i, n in enumerate(layers or ())
        )
        if "chunks" not in numbers and kind in SCHEDULES:
            numbers["chunks"] = meant(kind, numbers.get("stages", 1), 1)[1]
        return Schedule(kind=kind, layers=counts or None, **numbers)

    def node(self, where: str, value: object, mesh: Mesh, select: str = "*") -> StrategyNode:
        data = self.mapping(where, value)
        is_root = where == "tree"
        self.keys(where, data, _ROOT_KEYS if is_root else (*_NODE_KEYS, "select"))
        state = self.mapping(f"{where}.state", data.get("state", {}))
        self.keys(f"{where}.state", state, STATE_ROLES)
        return StrategyNode(
            select=select,
            split=self.cuts(f"{where}.split", data.get("split", {}), mesh),
            state=tuple((r, self.axes(f"{where}.state.{r}", a, mesh)) for r, a in state.items()),
            recompute=_optional_text(data, "recompute"),
            offload=self.offload(f"{where}.offload", data["offload"])
            if "offload" in data
            else None,
            exchange=self.exchange(f"{where}.exchange", _optional_text(data, "exchange")),
            bucket_bytes=self.bytes(f"{where}.bucket_bytes", data.get("bucket_bytes")),
            schedule=self.schedule(f"{where}.schedule", data["schedule"])
            if "schedule" in data
            else None,
            children=self.children(f"{where}.children", data.get("children", []), mesh),
        )

    def bytes(self, where: str, value: object) -> float | None:
        if value is None:
            return None
        if (
            not isinstance(value, bool)
            and isinstance(value, int | float)
            and QUANTITY.allows(value)
        ):
            return float(value)
        self.fault(where, f"{shown(value)} is not a positive number of bytes.")
        return None

    def children(self, where: str, value: object, mesh: Mesh) -> tuple[StrategyNode, ...]:
        if isinstance(value, Mapping):
            items = [(str(name), child) for name, child in value.items()]
        elif isinstance(value, list):
            items = [(str(self.mapping(where, c).get("select", "*")), c) for c in value]
        else:
            self.fault(where, "expected a mapping from a block or op to its node.")
            return ()
        for name, _ in items:
            self.select(f"{where}.{name:.60}", name)
        return tuple(self.node(f"{where}.{name}", child, mesh, name) for name, child in items)

    def select(self, where: str, text: str) -> None:
        if "[" in text:
            try:
                ranged(text)
            except PlanError as error:
                self.fault(where, str(error))

    def offload(self, where: str, value: object) -> tuple[str, ...]:
        words = self.words(where, value)
        for word in words:
            self.choice(where, word, OFFLOADS)
        return words

    def exchange(self, where: str, value: str | None) -> str | None:
        return value if value is None else self.choice(where, value, EXCHANGES)

    def choice(self, where: str, value: str, known: tuple[str, ...]) -> str:
        if value not in known:
            self.fault(where, f"{value!r} is unknown.{hint(value, known)}")
        return value


def _optional_text(data: Mapping[str, Any], key: str) -> str | None:
    return str(data[key]) if data.get(key) is not None else None


def has_micro_batch(document: Mapping[str, Any]) -> bool:
    """Whether a valid document says its micro-batch; a schedule without one leaves it open."""
    return "micro_batch" in document.get("tree", {}).get("schedule", {})


def plan_from_dict(data: Mapping[str, Any]) -> tuple[Mesh, StrategyNode]:
    """Mesh and tree of a document; a PlanError lists every fault with its path."""
    reader = _Reader()
    document = reader.mapping("plan", data)
    reader.keys("", document, _TOP_KEYS)
    mesh = reader.mesh(document)
    root = StrategyNode()
    if mesh.axes:
        root = reader.node("tree", document.get("tree", {}), mesh)
    if reader.faults:
        raise PlanError("invalid plan:", faults=reader.faults)
    return mesh, root
