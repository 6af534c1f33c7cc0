"""The strategy tree: how every op is split and how every subgraph is scheduled.

A `StrategyNode` selects a block, an op or a kind of op and says what holds below it. Nothing else in Foretrain knows
about "data parallelism" or "ZeRO": those words build nodes (see `foretrain.plan.parallelism`).

Splits are *cuts*: "these dims are cut over these axes". An op takes each cut whose dims it has; an axis goes
to the first cut that wants it, deeper nodes first. So `ffn: tp` before `seq: tp` means: ops with an `ffn`
dim are tensor parallel, the others sequence parallel.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from foretrain.errors import PlanError
from foretrain.limits import DEVICES, LAYERS, MICRO_BATCH, shown
from foretrain.model.graph import Op
from foretrain.plan.schedules import DEFAULT, SCHEDULES, Pieces

STATE_ROLES = ("optimizer", "gradient", "weight")
OFFLOADS = ("optimizer", "activations")
EXCHANGES = ("all-gather", "ring")
_RANGED = re.compile(
    r"(?P<block>[^\[\].]+)\[(?P<low>\d{0,9})(?P<colon>:?)(?P<high>\d{0,9})\](\.(?P<op>.+))?"
)


@dataclass(frozen=True, slots=True)
class Cut:
    """`dims` that correspond to each other (heads and kv_heads) are cut together over `axes`."""

    dims: tuple[str, ...]
    axes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How micro-batches flow through stages. `layers`: repetitions of each piece of the model, uneven
    if wanted."""

    kind: str = DEFAULT
    micro_batch: int = 1
    stages: int = 1
    chunks: int = 1
    layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        limits = {"micro_batch": MICRO_BATCH, "stages": DEVICES, "chunks": LAYERS}
        faults = [
            f"{name}: {limit.fault(getattr(self, name))}"
            for name, limit in limits.items()
            if not limit.allows(getattr(self, name))
        ]
        if faults:
            raise PlanError("invalid schedule:", faults=faults)

    @property
    def pieces(self) -> Pieces:
        """Which pieces of the model the chunks of each stage are."""
        return SCHEDULES[self.kind].pieces(self.stages, self.chunks)


@dataclass(frozen=True, slots=True)
class StrategyNode:
    """One node of the tree. None and empty mean "as above"."""

    select: str = "*"
    split: tuple[Cut, ...] = ()
    state: tuple[tuple[str, tuple[str, ...]], ...] = ()  # optimizer | gradient | weight over axes
    # none | selective | full | full*0.5, of so many of the repetitions | comma-separated op names
    recompute: str | None = None
    offload: tuple[str, ...] | None = None  # optimizer, activations
    exchange: str | None = None  # context parallel: ring | all-gather
    bucket_bytes: float | None = None
    schedule: Schedule | None = None
    children: tuple[StrategyNode, ...] = ()

    def with_child(self, child: StrategyNode) -> StrategyNode:
        return replace(self, children=(*self.children, child))

    def with_cuts(self, *cuts: Cut) -> StrategyNode:
        return replace(self, split=(*self.split, *cuts))

    def with_state(self, role: str, axes: tuple[str, ...]) -> StrategyNode:
        rest = tuple(item for item in self.state if item[0] != role)
        return replace(self, state=(*rest, (role, axes)))


def nodes(node: StrategyNode) -> Iterator[StrategyNode]:
    """A node and all below it."""
    yield node
    for child in node.children:
        yield from nodes(child)


@dataclass(frozen=True, slots=True)
class Leaf:
    """What holds for one op, all nodes on the way applied."""

    axes: tuple[tuple[str, tuple[str, ...]], ...]  # dim → axes, only split dims
    state: tuple[tuple[str, tuple[str, ...]], ...]
    exchange: str

    def axes_of(self, dim: str) -> tuple[str, ...]:
        for name, axes in self.axes:
            if name == dim:
                return axes
        return ()

    @property
    def used(self) -> tuple[str, ...]:
        """Every axis that splits this op, in a fixed order."""
        return tuple(dict.fromkeys(axis for _, axes in self.axes for axis in axes))


@dataclass(frozen=True, slots=True)
class BlockChoice:
    """What holds for a repetition of a block as a whole."""

    recompute: str
    offload: tuple[str, ...]


def leaf(root: StrategyNode, block: str, index: int, op: Op) -> Leaf:
    """The strategy of one op in repetition `index` of a block."""
    cuts: list[Cut] = []
    state: dict[str, tuple[str, ...]] = {}
    exchange = "all-gather"
    for node in _chosen(root, block, index, op):
        cuts = [*node.split, *cuts]
        state.update(node.state)
        exchange = node.exchange or exchange
    return Leaf(_assigned(cuts, op), tuple(sorted(state.items())), exchange)


def block_choice(root: StrategyNode, block: str, index: int) -> BlockChoice:
    """Recompute and offload of one repetition of a block."""
    recompute = "none"
    offload: tuple[str, ...] = ()
    for node in _chosen(root, block, index, None):
        recompute = recompute if node.recompute is None else node.recompute
        offload = offload if node.offload is None else node.offload
    return BlockChoice(of_repetition(recompute, index), offload)


def likeness(node: StrategyNode, block: str, index: int) -> tuple[object, ...]:
    """Equal for repetitions of a block whose ops are split in the same way: what the nodes that may speak for them
    say, without the ranges they are chosen by."""
    below = []
    for child in node.children:
        if "[" not in child.select or child.select.startswith("kind:"):
            below.append((child.select, likeness(child, block, index)))
            continue
        name, chosen, op_name = ranged(child.select)
        if fnmatchcase(block, name) and index in chosen:
            below.append((op_name or "*", likeness(child, block, index)))
    return node.split, node.state, node.exchange, tuple(below)


def recompute_kind(word: str) -> str:
    """`none`, `selective`, `full` (also of some repetitions alone), or `ops` that are named."""
    if word in ("none", "selective"):
        return word
    is_full = word == "full" or share_recomputed(word) is not None or listed_recomputed(word)
    return "full" if is_full else "ops"


@lru_cache(maxsize=256)  # asked for every repetition of a block
def share_recomputed(word: str) -> float | None:
    """Of `full*0.5`: 0.5."""
    match = re.fullmatch(r"full\*(0?\.\d+|0|1(\.0*)?)", word)
    return float(match[1]) if match else None


@lru_cache(maxsize=256)
def listed_recomputed(word: str) -> frozenset[int] | None:
    """Of `full@0,1,7`: those repetitions of a block."""
    match = re.fullmatch(r"full@(\d{1,9}(?:,\d{1,9})*)", word)
    return frozenset(map(int, match[1].split(","))) if match else None


def of_repetition(word: str, index: int) -> str:
    """What `full*0.5` (evenly spread) or `full@0,1,7` means for one repetition of a block."""
    listed = listed_recomputed(word)
    if listed is not None:
        return "full" if index in listed else "none"
    share = share_recomputed(word)
    if share is None:
        return word
    return "full" if int((index + 1) * share + 1e-9) > int(index * share + 1e-9) else "none"


def _assigned(cuts: list[Cut], op: Op) -> tuple[tuple[str, tuple[str, ...]], ...]:
    taken: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for cut in cuts:
        present = [dim for dim in cut.dims if dim in op.size]
        free = tuple(axis for axis in cut.axes if axis not in used)
        if not present or not free:
            continue
        for dim in present:
            taken[dim] = (*taken.get(dim, ()), *free)
        used.update(free)
    return tuple(sorted(taken.items()))


def _chosen(node: StrategyNode, block: str, index: int, op: Op | None) -> Iterator[StrategyNode]:
    """The node and its matching descendants, outermost first."""
    yield node
    for child in node.children:
        if matches(child.select, block, index, op):
            yield from _chosen(child, block, index, op)


@lru_cache(maxsize=4096)
def ranged(select: str) -> tuple[str, range, str | None]:
    """Block, repetitions and, where given, op of a select with a range."""
    match = _RANGED.fullmatch(select)
    if match is None or not (match["low"] or match["colon"]):
        raise PlanError(
            f"{shown(select)} selects nothing: a range is written layers[0:8], layers[3] or layers[8:].fc1."
        )
    low = int(match["low"] or 0)
    high = int(match["high"]) if match["high"] else (LAYERS.most if match["colon"] else low + 1)
    return match["block"], range(low, high), match["op"]


def matches(select: str, block: str, index: int, op: Op | None) -> bool:
    """`layers`, `layers[0:8]`, `layers[3]`, `layers[0:8].fc*`, `kind:norm`, `fc*`, `layers.fc*` or `*`."""
    if select.startswith("kind:"):
        return op is not None and fnmatchcase(op.kind, select[5:])
    if "[" in select:
        name, chosen, op_name = ranged(select)
        if not fnmatchcase(block, name) or index not in chosen:
            return False
        return op_name is None or (op is not None and fnmatchcase(op.name, op_name))
    if fnmatchcase(block, select):
        return True
    return op is not None and (
        fnmatchcase(op.name, select) or fnmatchcase(f"{block}.{op.name}", select)
    )
