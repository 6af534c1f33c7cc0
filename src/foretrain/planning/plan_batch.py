"""Plans that share a mesh and a way to share out layers, ready for closed forms: [plans, parts] columns, where a part is a
piece of the model that is a chunk of some stage.

Everything a closed form needs is gathered here once: what each part of the pipeline runs, holds and exchanges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Bools, Floats, Ints
from foretrain.cluster.device import Device
from foretrain.cluster.node import Node
from foretrain.compile.columns import first_of
from foretrain.compile.execution import Communicator
from foretrain.compile.model_states import Shards, Weights
from foretrain.compile.passes.place import place, stored_before
from foretrain.cost.items import copy_rate
from foretrain.model.graph import Model
from foretrain.plan.mesh import Mesh
from foretrain.plan.schedules import DEFAULT, SCHEDULES, Pieces, PipelineSchedule
from foretrain.plan.short_form import Words, build, schedule_of
from foretrain.plan.strategy import Schedule
from foretrain.planning.choices import Choices
from foretrain.planning.exchanges import Exchange, Exchanges
from foretrain.planning.layers import (
    CONTEXT,
    DATA,
    EXPERT,
    TENSOR,
    Layers,
    Places,
)
from foretrain.planning.part_tables import PartTables, Ties
from foretrain.planning.task import Task


@dataclass(frozen=True, eq=False, slots=True)
class PlanBatch:
    """`rows`: the plans' states in `layers`. `share[part, block]`: repetitions of a block in a part. `ties`: of every
    weight that shares another's storage, see `Ties`. `behind[part, block, other]`: repetitions of another block that lie
    behind the last of a block in a part."""

    task: Task
    choices: Choices
    layers: Layers
    rows: Ints
    mesh: Mesh
    exchanges: Exchanges
    share: Floats
    behind: Floats
    ties: Ties
    kinds: Bools  # [stages, kinds of devices]: which a stage runs on
    _axes: dict[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    _asked: dict[tuple[tuple[str, ...], str, bool], Exchange] = field(default_factory=dict)
    _owner_count: dict[int, int] = field(default_factory=dict)

    @property
    def stages(self) -> int:
        return int(self.choices.pp[0])

    @property
    def chunks(self) -> int:
        return int(self.choices.vpp[0])

    def schedule(self, number: int) -> PipelineSchedule:
        """By its number in the palette; one stage runs forward and backward in turn, whatever it is called."""
        return SCHEDULES[self.choices.palette.schedule[number] if self.stages > 1 else DEFAULT]

    @property
    def tables(self) -> PartTables:
        """What all plans have in common whose layers are shared out alike."""
        found: PartTables | None = self.layers.shared_out.get(id(self.share))
        if found is None:  # which keeps `share`, so that no other one gets its number
            pieces = self.schedule(int(self.choices.schedule[0])).pieces(self.stages, self.chunks)
            found = PartTables(self.layers, self.share, self.ties, pieces)
            self.layers.shared_out[id(self.share)] = found
        return found

    @property
    def pieces(self) -> Pieces:
        """Where the parts lie: for all plans as for the first."""
        return self.tables.pieces

    def by_chunk(self, parts: Floats, axis: int = -1) -> Floats:
        """[…, parts, …] → […, chunks, stages, …]"""
        return np.asarray(self.pieces.by_chunk(parts, axis))

    @property
    def counts(self) -> Floats:
        """Micro-batches of a replica."""
        batch = self.task.workload.global_batch
        return np.asarray(batch / (self.choices.dp * self.choices.micro), dtype=np.float64)

    def take(self, rows: Ints) -> PlanBatch:
        """Some of the plans."""
        return PlanBatch(
            self.task,
            self.choices.take(rows),
            self.layers,
            self.rows[rows],
            self.mesh,
            self.exchanges,
            self.share,
            self.behind,
            self.ties,
            self.kinds,
            self._axes,
            self._asked,
            self._owner_count,
        )

    def distinct(self, *columns: NDArray[Any]) -> tuple[PlanBatch, Ints]:
        """One plan for every combination of what columns hold, and which of them stands for each plan."""
        key = np.zeros(len(self.rows), dtype=np.int64)
        for column in columns:
            key = key * (int(column.max(initial=0)) + 1) + column
        first, inverse = first_of(key)
        return self.take(first), inverse

    @property
    def weights(self) -> Ints:
        """Equal for plans whose ranks hold the same weights before these are split."""
        return np.asarray(self.layers.weights[self.rows])

    def by_part(self, column: Floats) -> Floats:
        """[states, blocks] → [plans, parts]."""
        return np.asarray(column[self.rows] @ self.share.T)

    def by_stage(self, column: Floats) -> Floats:
        """[states, blocks] → [plans, stages]."""
        return np.asarray(column[self.rows] @ self.stage_share.T)

    def summed(self, parts: Floats) -> Floats:
        """[plans, parts] → [plans, stages]."""
        return parts if self.chunks == 1 else np.asarray(self.by_chunk(parts).sum(axis=1))

    def first_chunk(self, parts: Floats) -> Floats:
        """[plans, parts] → [plans, stages] of the first chunks."""
        return np.asarray(self.by_chunk(parts)[:, 0])

    @property
    def stage_share(self) -> Floats:
        """[stages, blocks] repetitions."""
        return self.tables.stage_share

    def last_blocks(self) -> Ints:
        """[parts] the block that each ends with."""
        return np.asarray(self.share.shape[1] - 1 - np.argmax(self.share[:, ::-1] > 0, axis=1))

    def seconds_by_part(self, blocks: Floats) -> Floats:
        """[plans, kinds, blocks] → [plans, parts] on the slowest device of each stage."""
        if self.kinds.shape[1] == 1:  # summed row by row, so that plans that are alike tie
            return np.asarray(np.einsum("nb,pb->np", blocks[:, 0], self.share))
        each = np.einsum("nkb,pb->nkp", blocks, self.share)
        runs_on = self.kinds[self.pieces.stage_of]  # [parts, kinds]
        return np.asarray(np.where(runs_on.T[None], each, 0.0).max(axis=1))

    def exchange(self, axes: tuple[str, ...], collective: str, alone: bool = False) -> Exchange:
        """Of the groups of all stages at once, or of one stage alone."""
        found = self._asked.get((axes, collective, alone))
        if found is None:
            found = self.exchanges.between(self.mesh, Communicator(axes), collective, alone)
            self._asked[axes, collective, alone] = found
        return found

    def elements(self, name: str, kind: int) -> Floats:
        """[states, blocks] a column of weights; of tied ones each stage has one."""
        return self.tables.elements(name, kind)

    def stage_weights(self, name: str, kind: int) -> Floats:
        """[plans, stages] … of a stage."""
        return np.asarray(self.tables.by_stage(name, kind)[self.rows])

    def weights_of(self, kind: int) -> Weights:
        """[plans, stages] weights of a kind."""
        return self._weights(kind, lambda name: self.stage_weights(name, kind))

    def block_weights(self, kind: int) -> Weights:
        """[plans, blocks]"""
        return self._weights(kind, lambda name: self.elements(name, kind)[self.rows])

    def _weights(self, kind: int, column: Callable[[str], Floats]) -> Weights:
        has_copies = bool(self.axes_of(kind))
        rows = column("rows")
        return Weights(
            elements=column("elements"),
            gathered=column("gathered"),
            trained=column("trained"),
            refreshed=column("refreshed"),
            touched=column("touched"),
            rows=np.zeros_like(rows) if has_copies else rows,
            shards=Shards(*self._split(kind, np.array([1, 2, 3])[:, None, None])),
            has_copies=has_copies,
        )

    @property
    def kinds_held(self) -> list[int]:
        """Kinds that some plan has weights of."""
        is_held = np.any(self.tables.is_held[self.rows], axis=0)
        return np.flatnonzero(is_held).tolist()

    @property
    def is_offloaded(self) -> Bools:
        """[plans, 1] whether optimizer states are kept in host memory."""
        return self._offloads("optimizer")[:, None]

    @property
    def leaves(self) -> Bools:
        """[plans] whether what blocks save leaves for host memory."""
        return self._offloads("activations")

    def _offloads(self, what: str) -> Bools:
        names = np.array([what in offload for offload in self.choices.palette.offload])
        return np.asarray(names[self.choices.offload])

    def hosts_of(self, stage: int) -> list[tuple[Device, Node]]:
        """Devices that a stage runs on and the nodes they are in, one of each kind."""
        cluster = self.task.cluster
        if cluster.is_uniform:
            return [(cluster.devices[0], cluster.node(0))]
        ranks = np.flatnonzero(self.mesh.coordinate("pp") == stage)
        pairs = np.stack([cluster.device_kind[ranks], cluster.node_of[ranks]], axis=1)
        each = [(cluster.devices[kind], cluster.node(node)) for kind, node in np.unique(pairs, axis=0).tolist()]  # fmt: skip
        return list({(device.name, id(node)): (device, node) for device, node in each}.values())

    def hosts_by_stages(self) -> list[tuple[slice, list[tuple[Device, Node]]]]:
        """Stages that `hosts_of` is the same for, and that."""
        if self.task.cluster.is_uniform:
            return [(slice(None), self.hosts_of(0))]
        return [(slice(n, n + 1), self.hosts_of(n)) for n in range(self.stages)]

    def copy_rates(self, way: str) -> Floats:
        """[kinds of devices] bytes/s between devices and their hosts, where that is slowest."""
        rates = np.full(len(self.task.cluster.devices), np.inf)
        for device, node in (pair for _, hosts in self.hosts_by_stages() for pair in hosts):
            kind = self.task.cluster.devices.index(device)
            rates[kind] = min(rates[kind], copy_rate(device, node, way))
        return rates

    def tied_between(self) -> Floats:
        """[plans] elements of trained weights that several stages have copies of."""
        exchanged = self.ties.is_trained & ~self.ties.is_stored_before
        apart = self.layers.tied.sum(axis=2)[self.rows] * exchanged
        origins = [np.flatnonzero(self.ties.origin == n) for n in np.unique(self.ties.origin)]
        total = np.zeros(len(self.rows))
        for copies in origins:
            total += apart[:, copies].max(axis=1)
        return total

    def axes_of(self, kind: int) -> tuple[str, ...]:
        """The axes along which copies of a kind of weights lie."""
        found = self._axes.get(("copies", kind))
        if found is None:
            found = self._axes["copies", kind] = self._copies(kind)
        return found

    def _copies(self, kind: int) -> tuple[str, ...]:
        words = {DATA: "dp", CONTEXT: "cp", TENSOR: "tp"}
        if kind != EXPERT:
            named = (self.mesh.expand(word) for bit, word in words.items() if kind & bit)
            return self._real(tuple(axis for axes in named for axis in axes))
        if not any(name == "ep" for name, _ in self.mesh.names):
            return ()
        holders = self.mesh.expand("expert_ranks")
        return self._real(tuple(a for a in holders if a not in self.mesh.expand("ep")))

    def owners_of(self, kind: int) -> tuple[str, ...]:
        """… and those that states of it are split over by ZeRO."""
        found = self._axes.get(("owners", kind))
        if found is None:
            found = self._axes["owners", kind] = self._owners(kind)
        return found

    def _owners(self, kind: int) -> tuple[str, ...]:
        is_hybrid = any(name == "shards" for name, _ in self.mesh.names)
        words = ("shards",) if is_hybrid else ("dp", "cp")
        split = {axis for word in words for axis in self.mesh.expand(word)}
        return tuple(axis for axis in self.axes_of(kind) if axis in split)

    def _real(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        sizes = dict(self.mesh.axes)
        return tuple(axis for axis in axes if sizes[axis] > 1)

    def parts_of(self, kind: int, role: int) -> Floats:
        """Into how many pieces a state of a kind of weights is split; roles are ZeRO's stages."""
        return self._split(kind, role)[:, 0]

    def _split(self, kind: int, role: int | Ints) -> Floats:
        """[…, plans, 1]"""
        return np.where(self.choices.zero[:, None] >= role, float(self.owner_count(kind)), 1.0)

    def owner_count(self, kind: int) -> int:
        """Ranks that states of a kind of weights are split over."""
        found = self._owner_count.get(kind)
        if found is None:
            found = self._owner_count[kind] = self.mesh.size(*self.owners_of(kind))
        return found


class Shares:
    """How layers are shared out over parts: remembered, as meshes of every kind ask for the same."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._known: dict[tuple[object, ...], tuple[Floats, Floats, Ties]] = {}

    def of(self, schedule: Schedule, places: Places) -> tuple[Floats, Floats, Ties]:
        """[parts, blocks] repetitions, [parts, blocks, blocks] those behind each, and how tied weights lie."""
        key = (
            schedule.stages,
            schedule.chunks,
            schedule.layers,
            schedule.pieces.of.tobytes(),
            places,
        )
        found = self._known.get(key)
        if found is None:
            model = self.task.workload.model
            by_products = self.task.runtime.pipeline.places_by_products
            blocks = len(places.examples)
            share = np.zeros((schedule.stages * schedule.chunks, blocks))
            behind = np.zeros((len(share), blocks, blocks))
            for part, instances in enumerate(place(model, schedule, by_products)):
                for block, repetition in reversed(instances):
                    row = places.rows[block][repetition]
                    if not share[part, row]:
                        behind[part, row] = share[part]
                    share[part, row] += 1.0
            ties = _ties(model, places, stored_before(model, schedule, by_products))
            found = self._known[key] = share, behind, ties
        return found


def _ties(model: Model, places: Places, doubled: frozenset[str]) -> Ties:
    names = [model.blocks[number].name for number, _ in places.examples]
    frozen = {f"{block.name}.{op.name}" for block, op in model.ops() if op.is_frozen}
    block = np.zeros((len(model.origins), len(names)))
    for copy, path in enumerate(model.origins):
        block[copy, names.index(path.split(".")[0])] = 1.0
    origins = list(dict.fromkeys(model.origins.values()))
    return Ties(
        is_stored_before=np.array([path in doubled for path in model.origins], dtype=np.bool_),
        block=block,
        origin=np.array([origins.index(o) for o in model.origins.values()], dtype=np.int64),
        is_trained=np.array(
            [path.rpartition(".")[0] not in frozen for path in model.origins], dtype=np.bool_
        ),
    )


def plan_batch(
    shares: Shares, choices: Choices, layers: Layers, rows: Ints, exchanges: Exchanges
) -> PlanBatch:
    """All of `choices` have the degrees, the order and the sharding of the first."""
    task = shares.task
    words = choices.words(0)
    mesh = mesh_of(task, words)
    kinds = np.zeros((words.pp, len(task.cluster.devices)), dtype=np.bool_)
    kinds[mesh.coordinate("pp"), np.asarray(task.cluster.device_kind)] = True
    share, behind, ties = shares.of(schedule_of(words), layers.places)
    return PlanBatch(task, choices, layers, rows, mesh, exchanges, share, behind, ties, kinds)


def mesh_of(task: Task, words: Words) -> Mesh:
    """The mesh alone, as the compiler would have it."""
    return build(words, task.runtime)[0]
