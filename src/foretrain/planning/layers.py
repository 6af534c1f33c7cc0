"""What one repetition of each block costs in every state a plan can put it in: the emissions of the estimator.

A *state* is how a block is split and what it keeps: degrees of tensor, context and expert parallelism, sequence
parallelism, micro-batch, recomputation. Pipelines, replicas and ZeRO do not change what one micro-batch does in a
block, so a few hundred states serve a space of a million plans. Blocks are compiled by the compiler's own passes
and their kernels and collectives cost what the simulator charges for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from foretrain.arrays import Bools, Floats, Ints, Objects
from foretrain.compile.blocks import Blocks, BlocksOnLine, recomputed
from foretrain.compile.execution import Communication, Compute, Item
from foretrain.compile.layout import TensorLayout
from foretrain.compile.model_states import Sums, sums
from foretrain.compile.passes.communicate import WeightShard
from foretrain.compile.passes.fold import Fold, fold, uses_of
from foretrain.compile.passes.place import finer
from foretrain.compile.passes.recompute import BlockPass
from foretrain.compile.passes.scope import check_axes
from foretrain.cost.host import chain_summaries, host_seconds, late_seconds
from foretrain.cost.items import INTERCONNECT, NETWORK, ItemCosts, Surroundings
from foretrain.errors import InputError
from foretrain.model.graph import Model
from foretrain.model.ops import family
from foretrain.plan.mesh import Mesh
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import Schedule
from foretrain.planning.task import Task
from foretrain.runtime import Runtime

DATA, CONTEXT, TENSOR, EXPERT = 1, 2, 4, 8
KINDS = range(EXPERT + 1)
"""Kinds of weights by who holds copies of them: replicas (1), context-parallel (2) and tensor-parallel ranks (4), added
up; or replicas with the same experts (8)."""
DENSE = DATA + CONTEXT


class State(NamedTuple):
    """How a block is split on one micro-batch. `pp` is 1 unless stages lie between the ranks of a group."""

    tp: int
    cp: int
    ep: int
    etp: int | None
    sp: bool
    micro: int
    recompute: str
    exchange: str
    tables: str
    order: tuple[str, ...] | None
    pp: int

    def words(self, devices: int) -> Words:
        """A plan in which blocks are in this state; weights are split as far as they can be, to see over what."""
        return Words(
            tp=self.tp,
            cp=self.cp,
            ep=self.ep,
            etp=self.etp,
            pp=self.pp,
            dp=devices // (self.tp * self.cp * self.pp),
            sp=self.sp,
            micro=self.micro,
            recompute=self.recompute,
            exchange=self.exchange,
            tables=self.tables,
            order=self.order,
            zero=3,
        )


@dataclass(frozen=True, slots=True)
class Places:
    """Rows of a table of blocks: repetitions of a block that are alike share one."""

    rows: tuple[tuple[int, ...], ...]  # [blocks][repetitions]

    @property
    def examples(self) -> list[tuple[int, int]]:
        """(block, the first of its repetitions) of every row."""
        each = enumerate(self.rows)
        return [(b, mine.index(row)) for b, mine in each for row in dict.fromkeys(mine)]


def places(model: Model, recomputes: Iterable[str], runtime: Runtime) -> Places:
    """What comes before the first repetition of a block lies otherwise than what comes before the others; some ways to
    recompute take some of them and leave others."""
    words, count, rows = tuple(dict.fromkeys(recomputes)), 0, []
    for block in model.blocks:
        likes = [
            (repetition == 0, *(recomputed(word, repetition, runtime) for word in words))
            for repetition in range(block.repeat)
        ]
        numbers = {like: count + number for number, like in enumerate(dict.fromkeys(likes))}
        rows.append(tuple(numbers[like] for like in likes))
        count += len(numbers)
    return Places(tuple(rows))


@dataclass(frozen=True, eq=False, slots=True)
class Layers:
    """Columns over (states, blocks); seconds over (states, kinds of devices, blocks). A block is there once for every
    row of `places`."""

    places: Places
    number: dict[State, int]
    refused: dict[State, str]  # states the model cannot be in, and why
    forward: Floats
    backward: Floats  # all of it
    weight: Floats  # the part of it that makes weight gradients
    host_forward: Floats  # seconds the host takes to issue it
    host_backward: Floats
    host_weight: Floats
    host_copied: Floats  # [states, blocks, 2] … copies of weights and of gradients, if split
    lead: Floats  # [states, blocks, 3] by which it has to be ahead for a block's devices not to wait: forward, backward, weight
    late: Floats  # [states, blocks, 3] seconds that hosts are late while they poll the network …
    late_lead: Floats  # … and the lead then
    saved: Floats  # bytes kept for backward
    forward_workspace: Floats
    backward_workspace: Floats
    boundary: Floats  # bytes handed on
    # [states, blocks, kinds] of weights; see `compile.model_states.Weights`
    elements: Floats
    gathered: Floats
    trained: Floats
    refreshed: Floats
    touched: Floats
    rows: Floats  # touched ones of tables
    reduced: Floats  # elements that replicas agree on …
    tensors: Floats  # … and tensors, as they are
    ready: Floats  # times at which backward has made some of them
    # [states, blocks, kinds] pools of (elements, number among tied copies or -1): of every tensor, in the order of backward …
    messages: Objects
    pooled: Objects  # … and of a block's together
    large: Floats  # [states, blocks] weights large enough to be split
    oversize: Floats  # … and elements that make some of them larger than a bucket
    rerun: Floats  # [states, blocks, kinds] elements moved once more for ops that run again
    tied: Floats  # [states, copies, kinds] elements of every weight that shares another's storage
    copied: Floats  # [states, kinds of devices, blocks, 2] seconds of copies of weights and of gradients, if split
    wire_forward: Floats  # [states, blocks, 2] seconds in which collectives in it load links, inside a domain and beyond
    wire_backward: Floats
    hidden: (
        Floats  # [states, blocks] seconds of its exchanges of experts under a partner, both ways
    )
    weights: Ints  # [states] equal where weights and what is done with them are
    is_timed: Bools  # [states] whether seconds are known yet
    shared_out: dict[int, Any] = field(default_factory=dict, init=False)  # see `PlanBatch.tables` …
    held: dict[Any, Floats] = field(
        default_factory=dict, init=False
    )  # … and `footprint.held_bytes`

    def fill(self, others: Layers) -> bool:
        """Put in what others know of the same states; whether that changed what they hold."""
        theirs = np.arange(len(others.number))
        mine = np.array([self.number[state] for state in others.number], dtype=np.int64)
        is_new = any(
            not np.allclose(getattr(self, name)[mine], getattr(others, name)[theirs], rtol=1e-9)
            for name in _GROWING
        )
        for name in _COLUMNS:
            getattr(self, name)[mine] = getattr(others, name)[theirs]
        self.weights[:] = _alike(*(getattr(self, name) for name in _WEIGHTS))
        self.shared_out.clear()
        self.held.clear()
        return is_new


COUNTED = ("tensors", "ready")
"""Columns that count weights, not elements."""
_BY_KIND = ("elements", "gathered", "trained", "refreshed", "touched", "rows", "reduced", "tensors", "ready")  # fmt: skip
_WEIGHTS = (*_BY_KIND, "large", "oversize", "tied")
_GROWING = ("saved", "forward_workspace", "backward_workspace", "boundary", "touched")
_APART = ("places", "number", "refused", "shared_out", "held")
_COLUMNS = tuple(f.name for f in fields(Layers) if f.name not in _APART)


def grown(known: Layers, wanted: Mapping[State, Sequence[State]]) -> Layers:
    """States before they are compiled, each with two of its family that are known, the one with the smaller micro-batch
    first, or with one alone: what they hold, on a line through both. Memory is convex in the micro-batch, so the line does
    not run above it."""
    ends = np.array(
        [
            [known.number[s]] * 2
            if s in known.number
            else [known.number[e] for e in (two[0], two[-1])]
            for s, two in wanted.items()
        ],
        dtype=np.int64,
    ).reshape(len(wanted), 2)
    micros = np.array([state.micro for state in known.number], dtype=np.float64)[ends]
    span = np.maximum(micros[:, 1] - micros[:, 0], 1.0)
    along = (np.array([state.micro for state in wanted]) - micros[:, 0]) / span
    columns = {name: getattr(known, name)[ends[:, 0]] for name in _COLUMNS}
    for name in _GROWING:
        low, high = columns[name], getattr(known, name)[ends[:, 1]]
        columns[name] = low + (high - low) * along.reshape(len(wanted), *[1] * (low.ndim - 1))
    columns["is_timed"] = np.array([s in known.number for s in wanted], dtype=np.bool_)
    columns["weights"] = _alike(*(columns[name] for name in _WEIGHTS))
    number = {state: row for row, state in enumerate(wanted)}
    return Layers(known.places, number, known.refused, **columns)


@dataclass(frozen=True, slots=True)
class CompiledState:
    state: State
    mesh: Mesh
    passes: tuple[BlockPass, ...]  # one per block of the model


def layers(
    task: Task, states: Iterable[State], rows: Places, shared: SharedBlocks | None = None
) -> Layers:
    """Compile and cost every state; those the model refuses are told with the reason."""
    compiled: list[CompiledState] = []
    refused: dict[State, str] = {}
    shared = shared or SharedBlocks(task)
    for state in dict.fromkeys(states):
        try:
            compiled.append(shared.compiled(state, rows))
        except InputError as error:
            refused[state] = first_line(error)
    return layer_table(task, compiled, refused, rows)


def first_line(error: InputError) -> str:
    """Why a state is refused, in short."""
    return str(error).splitlines()[0]


class SharedBlocks:
    """Programs of blocks do not depend on what is recomputed, on which ranks the axes of a mesh join, nor, but for tables
    whose rows are met by lot, on how many replicas there are: states that differ in that alone share them. Of micro-batches
    the two smallest are compiled, programs of others follow from those."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._plans: dict[State, tuple[Plan, tuple[object, ...]]] = {}
        self._of_root: dict[object, Blocks] = {}
        self._smallest: dict[object, list[tuple[int, Blocks]]] = {}
        # tied weights are told apart, as they are on a pipeline; a lone stage takes them off again
        model = replace(task.workload.model, tied=())
        self.workload = replace(task.workload, model=model)
        self._meets_rows = any(family(op).touched(op) is not None for _, op in model.ops())

    def family(self, state: State) -> object:
        """Equal for states whose blocks hold as much on as many samples."""
        return self._plan(state)[1], state.recompute

    def _plan(self, state: State) -> tuple[Plan, tuple[object, ...]]:
        base = state._replace(recompute="none")
        if base not in self._plans:
            plan = self.task.plan(base.words(self.task.devices))
            self._plans[base] = plan, self._kind(plan)
        return self._plans[base]

    def compiled(self, state: State, rows: Places) -> CompiledState:
        plan, kind = self._plan(state)
        mesh, blocks = plan.mesh, self._blocks(plan, kind)
        passes = _steady(blocks, state.recompute, rows)
        check_axes(mesh, blocks.used_axes, self.task.workload.model)
        return CompiledState(state, mesh, passes)

    def _blocks(self, plan: Plan, kind: tuple[object, ...]) -> Blocks:
        """Those known with all that decides programs alike; a line needs both its ends."""
        micro = plan.schedule.micro_batch
        found = self._of_root.get((micro, *kind))
        if found is None:
            smaller = self._smallest.setdefault(kind, [])
            fixed = self.workload.model, self.workload.precision, plan, self.task.runtime
            if len(smaller) > 1 and micro > smaller[1][0]:
                found = BlocksOnLine(*fixed, *smaller)
            else:
                found = Blocks(*fixed)
                smaller[:] = sorted((*smaller, (micro, found)), key=lambda one: one[0])[:2]
            self._of_root[micro, *kind] = found
        return found

    def _kind(self, plan: Plan) -> tuple[object, ...]:
        """What decides the programs of blocks beside the micro-batch."""
        is_finer = finer(self.workload.model, plan.schedule) is not self.workload.model
        schedule = replace(plan.schedule, micro_batch=1)
        sizes = dict(plan.mesh.axes)
        if not is_finer and not self._meets_rows:
            schedule = Schedule(micro_batch=1)
            del sizes["pp"]
            for outer in plan.batch_axes[:1]:
                sizes[outer] = min(sizes[outer], 2)
        return replace(plan.root, schedule=schedule), frozenset(sizes.items()), plan.mesh.names


def _steady(blocks: Blocks, recompute: str, rows: Places) -> tuple[BlockPass, ...]:
    """The first repetition of each block, and others as they are among their like."""
    layouts: tuple[TensorLayout, ...] | None = None
    found = []
    for number, repetition in rows.examples:
        one, layouts = blocks.block(number, repetition, layouts, recompute)
        found.append(one)
    return tuple(found)


def layer_table(
    task: Task, compiled: Sequence[CompiledState], refused: dict[State, str], where: Places
) -> Layers:
    blocks = len(where.examples)
    kinds = len(task.cluster.devices)
    rows = len(compiled)
    seconds = np.zeros((5, rows, kinds, blocks))
    hosts = np.zeros((5, rows, blocks))
    leads, lates, late_leads = np.zeros((3, rows, blocks, 3))
    wires = np.zeros((5, rows, blocks, 2))
    hides = np.zeros((5, rows, blocks))
    for mesh, mine in _by_mesh(compiled).items():
        chains = [chain for row in mine for p in compiled[row].passes for chain in _chains(p)]
        each = chain_seconds(task, mesh, chains)
        shape = (len(mine), blocks, 5)
        for kind in range(kinds):
            seconds[:, mine, kind] = np.moveaxis(each.device[kind].reshape(shape), 2, 0)
        hides[:, mine] = np.moveaxis(each.hidden.reshape(shape), 2, 0)
        hosts[:, mine] = np.moveaxis(each.host.reshape(shape), 2, 0)
        for table, found in ((leads, each.lead), (lates, each.late), (late_leads, each.late_lead)):
            table[mine] = found.reshape(shape)[:, :, :3]
        wires[:, mine] = np.moveaxis(each.wire.reshape(*shape, 2), 2, 0)
    held = {name: np.zeros((rows, blocks, len(KINDS))) for name in (*_BY_KIND, "rerun")}
    messages, pooled = (np.empty((rows, blocks, len(KINDS)), dtype=object) for _ in range(2))
    copies = {path: number for number, path in enumerate(task.workload.model.origins)}
    for row, one in enumerate(compiled):
        for block, p in enumerate(one.passes):
            weights = _weights(p, one.mesh, copies)
            for name, values in weights.columns.items():
                held[name][row, block] = values
            messages[row, block], pooled[row, block] = weights.messages, weights.pooled

    def column(name: str) -> Floats:
        found = [[getattr(p, name) for p in one.passes] for one in compiled]
        return np.array(found, dtype=np.float64).reshape(rows, blocks)

    by_part = task.runtime.uncoalesced_gather
    large = _large(compiled, by_part.splits_from if by_part else 0.0).reshape(rows, blocks)
    oversize = _oversize(compiled, _bucket_elements(task)).reshape(rows, blocks)
    tied = _tied(task, compiled)
    return Layers(
        places=where,
        number={one.state: row for row, one in enumerate(compiled)},
        refused=refused,
        forward=seconds[0],
        backward=seconds[1],
        weight=seconds[2],
        host_forward=hosts[0],
        host_backward=hosts[1],
        host_weight=hosts[2],
        host_copied=np.moveaxis(hosts[3:], 0, 2),
        lead=leads,
        late=lates,
        late_lead=late_leads,
        saved=column("saved_bytes"),
        forward_workspace=column("forward_workspace"),
        backward_workspace=column("backward_workspace"),
        boundary=column("boundary_bytes"),
        **held,
        messages=messages,
        pooled=pooled,
        large=large,
        oversize=oversize,
        tied=tied,
        copied=np.moveaxis(seconds[3:], 0, 3),
        wire_forward=wires[0],
        wire_backward=wires[1],
        hidden=hides[0] + hides[1],
        weights=_alike(*(held[name] for name in _BY_KIND), large, oversize, tied),
        is_timed=np.ones(rows, dtype=np.bool_),
    )


def _chains(block: BlockPass) -> tuple[tuple[Item, ...], ...]:
    """Forward, backward and the part of it that makes weight gradients, without copies of split weights (which plans
    that split none do not make), and those: of weights, of gradients."""

    def is_copy(item: Item) -> bool:
        return isinstance(item.work, Compute) and item.work.op == copies

    copies = f"{block.name}.weights"
    chains = (block.forward, block.backward, block.backward_weight)
    plain = tuple(tuple(item for item in chain if not is_copy(item)) for chain in chains)
    out, back = (tuple(filter(is_copy, chain)) for chain in (block.forward, block.backward_weight))
    return (*plain, out, back)


def _alike(*columns: Floats) -> Ints:
    """A number per row, the same where all columns are."""
    if not len(columns[0]):
        return np.zeros(0, dtype=np.int64)
    numbers: dict[bytes, int] = {}
    rows = np.concatenate([column.reshape(len(column), -1) for column in columns], axis=1)
    return np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in rows], np.int64)


def _large(compiled: Sequence[CompiledState], least: float) -> Floats:
    """Weights of so many elements at least, trained or not."""
    found = [[sum(w.elements >= least for w in p.weights) for p in one.passes] for one in compiled]
    return np.array(found, dtype=np.float64)


def _bucket_elements(task: Task) -> float:
    return task.runtime.gradients.bucket_bytes / task.states.gradient_bytes


def _oversize(compiled: Sequence[CompiledState], bucket: float) -> Floats:
    """Elements that weights have beyond a bucket of so many."""
    held = [[[w.elements for _, ws in p.ready for w in ws] for p in one.passes] for one in compiled]
    beyond = [[sum(max(n - bucket, 0.0) for n in block) for block in row] for row in held]
    return np.array(beyond, dtype=np.float64)


def _tied(task: Task, compiled: Sequence[CompiledState]) -> Floats:
    """Elements of weights that are copies of another's, in the order of `Model.origins`."""
    copies = task.workload.model.origins
    found = np.zeros((len(compiled), len(copies), len(KINDS)))
    for row, one in enumerate(compiled if copies else ()):
        weights = {w.path: w for p in one.passes for w in p.weights}
        for number, path in enumerate(copies):
            found[row, number, _kind(weights[path].reduce_axes, one.mesh)] = weights[path].elements
    return found


def _by_mesh(compiled: Sequence[CompiledState]) -> dict[Mesh, list[int]]:
    found: dict[Mesh, list[int]] = {}
    for row, one in enumerate(compiled):
        found.setdefault(one.mesh, []).append(row)
    return found


class ChainSeconds(NamedTuple):
    """Of every chain."""

    device: list[Floats]  # on each kind of device
    host: Floats
    wire: Floats  # [chains, 2] in which its collectives load links, inside a domain and beyond
    hidden: Floats  # what hides under a partner
    lead: Floats  # the host's
    late: Floats  # by which it is late while it polls the network …
    late_lead: Floats  # … and its lead then


def chain_seconds(task: Task, mesh: Mesh, chains: Sequence[tuple[Item, ...]]) -> ChainSeconds:
    """Chains of items on a mesh, each by itself."""
    numbers: dict[Item, int] = {}
    members = [[numbers.setdefault(item, len(numbers)) for item in chain] for chain in chains]
    items = tuple(numbers)
    where = _folded(task, mesh, items)
    around = Surroundings(task.cluster, task.runtime, task.network, task.compute)
    costs = ItemCosts(items, where, around)
    by_class = [costs.seconds_of(c) for c in range(where.classes)]
    seconds = np.array([total for total, _, _ in by_class])
    on_links = [parts[[INTERCONNECT, NETWORK]] for _, parts, _ in by_class]
    moving = np.max(
        [np.maximum(each - _latencies(costs, c), 0.0) for c, each in enumerate(on_links)], axis=0
    )
    ptr = np.concatenate([[0], np.cumsum([len(chain) for chain in chains])])
    owner = np.repeat(np.arange(len(chains)), np.diff(ptr))
    item = np.array([number for chain in members for number in chain], dtype=np.int64)
    device_kind = np.asarray(task.cluster.device_kind)[where.examples]
    device = []
    for kind in range(len(task.cluster.devices)):
        mine = np.flatnonzero(device_kind == kind)
        slowest = seconds[mine].max(axis=0) if len(mine) else np.zeros(len(items))
        summed = np.bincount(owner, weights=slowest[item], minlength=len(chains))
        device.append(summed.astype(np.float64))
    wire = np.stack([np.bincount(owner, way[item], len(chains)) for way in moving], axis=1).astype(
        np.float64
    )
    under = np.max([costs.hidden_of(c).sum(axis=0) for c in range(where.classes)], axis=0)
    hidden = np.bincount(owner, under[item], len(chains)).astype(np.float64)
    none = np.zeros(len(chains))
    quiet = ChainSeconds(device, none, wire, hidden, none, none, none)
    if task.runtime.host.uses_cuda_graphs:
        return quiet
    each = host_seconds(items, where, task.cluster, task.runtime)
    if not each.any():
        return quiet
    slowest, late = seconds.max(axis=0), late_seconds(items, where, task.runtime)
    plain = chain_summaries(ptr, slowest[item], each[item])
    polling = chain_summaries(ptr, slowest[item], (each + late)[item]) if late.any() else plain
    late_host = polling.host - plain.host
    return ChainSeconds(device, plain.host, wire, hidden, plain.lead, late_host, polling.lead)


def _latencies(costs: ItemCosts, rank_class: int) -> Floats:
    """[items] seconds of collectives in which nothing moves."""
    latencies = np.zeros(len(costs.items))
    for other in costs.roles.others[rank_class]:
        cost, work = costs.collective_cost(other), other.item.work
        if cost is not None and isinstance(work, Communication):
            latencies[other.index] = cost.choice.latency * costs.exposed(work)
    return latencies


def _folded(task: Task, mesh: Mesh, items: Sequence[Item]) -> Fold:
    return fold(task.network, mesh, uses_of(items), frozenset(), True)


@dataclass(frozen=True, eq=False, slots=True)
class _Held:
    """The weights of a block by kind."""

    columns: dict[str, list[float]]
    messages: list[tuple[Pool, ...]]
    pooled: list[tuple[Pool, ...]]


Message = tuple[float, int]
Pool = tuple[Message, ...]
"""Messages that are reduced as one."""


_NONE = -1
"""The kind of no weight."""


def _weights(block: BlockPass, mesh: Mesh, copies: Mapping[str, int]) -> _Held:
    shards = (
        *block.pooled,
        *block.rerun,
        *block.weights,
        *(w for _, ws in block.ready for w in ws),
    )
    kind_of = {axes: _kind(axes, mesh) for axes in dict.fromkeys(w.reduce_axes for w in shards)}
    found = {kind: _Kind(block, kind_of, kind, copies) for kind in {*kind_of.values(), _NONE}}
    kinds = [found.get(kind, found[_NONE]) for kind in KINDS]
    return _Held(
        {name: [kind.column(name) for kind in kinds] for name in (*_BY_KIND, "rerun")},
        [kind.messages for kind in kinds],
        [kind.together for kind in kinds],
    )


class _Kind:
    """Weights of one kind in a block, added up as the compiler adds up a stage's."""

    def __init__(
        self,
        block: BlockPass,
        kind_of: Mapping[tuple[str, ...], int],
        kind: int,
        copies: Mapping[str, int],
    ) -> None:
        def mine(shards: Iterable[WeightShard]) -> list[WeightShard]:
            return [w for w in shards if kind_of[w.reduce_axes] == kind]

        self.sums = sums(mine(block.pooled))
        self.rerun = sum(w.elements * w.sent for w in mine(block.rerun))
        made = [mine(ws) for _, ws in block.ready]
        self.messages = tuple(((_reduced(w), copies.get(w.path, -1)),) for ws in made for w in ws)
        pools: dict[object, list[Message]] = {}
        for w in mine(block.weights):
            if not w.is_frozen:
                alike = pools.setdefault((w.reduce_axes, w.state, w.is_table), [])
                alike.append((w.elements, copies.get(w.path, -1)))
        self.together = tuple(map(tuple, pools.values()))
        self.reduced = sum(n for ((n, _),) in self.messages)
        self.tensors = len(self.messages)
        self.ready = sum(1 for ws in made if ws)

    def column(self, name: str) -> float:
        return float(getattr(self.sums if name in Sums._fields else self, name))


def _reduced(w: WeightShard) -> float:
    return w.elements if w.reduced is None else w.reduced


@lru_cache(maxsize=1024)
def _kind(reduce_axes: tuple[str, ...], mesh: Mesh) -> int:
    copies, real = set(reduce_axes), {axis for axis, size in mesh.axes if size > 1}
    data, context, tensor = ({*mesh.expand(word)} & real for word in ("dp", "cp", "tp"))
    if (copies & data and not data <= copies) or (copies & context and not context <= copies):
        return EXPERT
    is_tensor = bool(tensor) and tensor <= copies
    return DATA * (data <= copies) + CONTEXT * (context <= copies) + TENSOR * is_tensor
