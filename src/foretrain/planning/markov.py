"""Different strategies for different layers: what every layer takes and holds in every state, and the plan of the best path.

The state of a layer is how far it is tensor parallel, what it recomputes and what ZeRO splits of it. Its cost depends on its
own state, the cost of getting there on the state before it alone: a Markov chain. Emissions and transitions are blocks
compiled on tensors that lie as the state before left them, so resharding is what the compiler makes of it. Which path is
best is then arithmetic: `layer_shares`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from math import inf
from typing import NamedTuple

import numpy as np

from foretrain.arrays import Floats
from foretrain.compile.blocks import Blocks
from foretrain.compile.execution import Item
from foretrain.compile.layout import TensorLayout
from foretrain.compile.model_states import weights_of
from foretrain.compile.passes.bucket import reduced, sharding_axes
from foretrain.compile.passes.communicate import WeightShard
from foretrain.compile.passes.pipeline import boundary_slices
from foretrain.compile.passes.place import layer_blocks, place
from foretrain.compile.passes.recompute import BlockPass
from foretrain.compile.passes.shard import gather_items
from foretrain.errors import InputError
from foretrain.model.graph import Block
from foretrain.plan.mesh import Mesh
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import DEFAULT
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import STATE_ROLES, Cut, Schedule, StrategyNode
from foretrain.planning.exchanges import Exchanges
from foretrain.planning.layer_shares import LayerTable, Shares, Stage, least_seconds, shared_out
from foretrain.planning.layers import chain_seconds
from foretrain.planning.task import Task
from foretrain.simulate import peak_memory

SEQUENCE = ("seq", "slot")
TRANSFORMER = (("heads", "kv_heads"), ("ffn",), ("vocab",))
ROUNDS = 3
"""How often a path is looked for, with what the compiler says that the last one holds more or less than the table."""
_SAME = 1e-3
"""Share of a device's memory by which table and compiler may differ."""


@dataclass(frozen=True, slots=True)
class LayerwiseProblem:
    """What is not chosen layer by layer, and what layers choose from."""

    stages: int
    least_tp: int  # ranks that are always tensor parallel
    micro: int  # samples per rank that the batch is cut over
    zero: int  # of the whole; layers may have another of `zeros`
    recomputes: tuple[str, ...] = ("none", "selective", "full")
    zeros: tuple[int, ...] = ()
    sp: bool = True  # sequences are split over tensor-parallel ranks
    is_tp_fixed: bool = False
    is_even: bool = False  # layers are placed as where a plan says nothing about it


@dataclass(frozen=True, slots=True)
class LayerState:
    """The state of a layer."""

    tp: int
    recompute: str
    zero: int = 0


@dataclass(frozen=True)
class LayerwisePlan:
    """A plan with a choice for every block repetition; what its slowest stage takes for a micro-batch, and all of them
    for a step; and by what share the slowest stage may take more than it could."""

    plan: Plan
    choices: tuple[LayerState, ...]
    slowest: float
    step_seconds: float
    gap: float = 0.0


def walk(task: Task, problem: LayerwiseProblem) -> LayerwisePlan | None:
    """The best path of a problem; None where no path fits in memory."""
    return Walker(task, problem).walk()


class Walker:
    """A problem with its table, and its best path."""

    def __init__(self, task: Task, problem: LayerwiseProblem) -> None:
        self.task, self.problem = task, problem
        self.model = task.workload.model
        self.zeros = problem.zeros or (problem.zero,)
        ranks = task.devices // problem.stages
        factors = _primes(ranks)
        self.axes = tuple((f"x{i}", n) for i, n in enumerate(factors))
        self.degrees = [1]
        for _, size in reversed(self.axes):
            self.degrees.append(self.degrees[-1] * size)
        if problem.least_tp not in self.degrees:
            raise InputError(
                f"tp {problem.least_tp} cannot be formed from the factors of {ranks} ranks."
            )
        domain = int(np.bincount(np.asarray(task.cluster.domain_of)).max())
        most = problem.least_tp if problem.is_tp_fixed else max(domain, problem.least_tp)
        self.tps = [t for t in self.degrees if problem.least_tp <= t <= most]
        self.blocks = {
            (tp, zero): made
            for tp, zero in product(self.tps, self.zeros)
            if (made := self._made(tp, zero)) is not None
        }
        self.tps = list(dict.fromkeys(tp for tp, _ in self.blocks))
        if not self.tps:
            raise InputError(
                f"no tensor parallelism of {problem.least_tp} to {most} divides the model."
            )
        self.states = [
            LayerState(tp, recompute, zero)
            for tp, recompute, zero in product(self.tps, problem.recomputes, self.zeros)
        ]

    def _made(self, tp: int, zero: int) -> Blocks | None:
        """All blocks with one degree; None where it does not divide one of them."""
        work = self.task.workload
        made = Blocks(work.model, work.precision, self.probe(tp, zero), self.task.runtime)
        layouts: tuple[TensorLayout, ...] | None = None
        try:
            for number in range(len(self.model.blocks)):
                _, layouts = made.block(number, 0, layouts, "none")
        except InputError:
            return None
        return made

    # --- trees ----------------------------------------------------------------------------------------

    def inner(self, tp: int) -> tuple[str, ...]:
        """The innermost axes that make up a degree."""
        count = self.degrees.index(tp)
        return tuple(name for name, _ in self.axes[len(self.axes) - count :])

    @property
    def mesh(self) -> Mesh:
        axes = (("pp", self.problem.stages), *self.axes)
        return Mesh(axes, (("tp", self.inner(self.tps[-1])),))

    @property
    def batch_axes(self) -> tuple[str, ...]:
        fixed = self.inner(self.problem.least_tp)
        return tuple(name for name, _ in self.axes if name not in fixed)

    def root(self, layers: tuple[int, ...] | None = None, zero: int | None = None) -> StrategyNode:
        schedule = Schedule(DEFAULT, self.problem.micro, self.problem.stages, 1, layers)
        node = StrategyNode(split=(Cut(("batch",), self.batch_axes),), schedule=schedule)
        for role in STATE_ROLES[: self.problem.zero if zero is None else zero]:
            node = node.with_state(role, self.batch_axes)
        return node

    def cuts(self, block: Block, tp: int) -> tuple[Cut, ...]:
        """Tensor parallelism of a block, and its sequence over the same ranks where nothing else is cut."""
        if tp == 1:
            return ()
        axes = self.inner(tp)
        dims = {dim: None for op in block.ops for dim in op.size}
        found = [Cut(names, axes) for names in TRANSFORMER if any(n in dims for n in names)]
        if not found:
            found = [Cut((dim,), axes) for dim in dims if dim.startswith("channel_")]
        if self.problem.sp and ("seq" in dims or "slot" in dims):
            found.append(Cut(SEQUENCE, axes))
        return tuple(found)

    def probe(self, tp: int, zero: int) -> Plan:
        """All blocks in one state."""
        children = tuple(
            StrategyNode(select=block.name, split=self.cuts(block, tp))
            for block in self.model.blocks
        )
        return Plan(self.mesh, replace(self.root(zero=zero), children=children))

    def _plan(self, choices: Sequence[LayerState], counts: Sequence[int]) -> Plan:
        """The tree of a path. Where tensor parallelism is the same throughout, it is that of a plan in words, with
        what some layers have instead."""
        layers = None
        if self.problem.stages > 1 and not self.problem.is_even:
            layers = tuple(counts)
        if len({choice.tp for choice in choices}) > 1:
            return self._mixed(choices, layers)
        tp, stages = choices[0].tp, self.problem.stages
        words = Words(
            tp=tp, pp=stages, dp=self.task.devices // (tp * stages), zero=self.problem.zero,
            sp=self.problem.sp and tp > 1, layers=layers, micro=self.problem.micro * tp // self.problem.least_tp,
            schedule=DEFAULT if stages > 1 else None, recompute="none",
        )  # fmt: skip
        plan = self.task.plan(words)
        split = dict(self.task.plan(replace(words, zero=3)).root.state)
        axes = split.get("weight", ())
        common = LayerState(tp, "none", self.problem.zero)
        children = [
            self._with_zero(StrategyNode(name, recompute=_unless_none(choice)), choice.zero, axes)
            for name, choice in self._runs(choices)
            if choice != common
        ]
        root = replace(plan.root, children=(*plan.root.children, *children))
        return Plan(plan.mesh, root, plan.text if not children else "")

    def _mixed(self, choices: Sequence[LayerState], layers: tuple[int, ...] | None) -> Plan:
        blocks = {block.name: block for block in self.model.blocks}
        children = [
            self._with_zero(
                StrategyNode(
                    name,
                    split=self.cuts(blocks[name.partition("[")[0]], choice.tp),
                    recompute=choice.recompute,
                ),
                choice.zero,
                self.batch_axes,
            )
            for name, choice in self._runs(choices)
        ]
        return Plan(self.mesh, replace(self.root(layers), children=tuple(children)))

    def _with_zero(self, node: StrategyNode, zero: int, axes: tuple[str, ...]) -> StrategyNode:
        """A node whose layers have other states split than the whole."""
        low, high = sorted((zero, self.problem.zero))
        for role in STATE_ROLES[low:high]:
            node = node.with_state(role, axes if zero == high else ())
        return node

    def _runs(self, choices: Sequence[LayerState]) -> list[tuple[str, LayerState]]:
        """Runs of repetitions with one choice, and what selects them."""
        found, at = [], 0
        for block in self.model.blocks:
            mine = choices[at : at + block.repeat]
            at += block.repeat
            start = 0
            for choice, run in groupby(mine):
                end = start + len(list(run))
                name = f"{block.name}[{start}:{end}]" if block.repeat > 1 else block.name
                found.append((name, choice))
                start = end
        return found

    # --- the best path --------------------------------------------------------------------------------

    @property
    def least_seconds(self) -> float:
        """… of a step by the table, if memory were no matter."""
        return self.step_seconds(*least_seconds(self.table, self._fixed))

    @cached_property
    def first_shares(self) -> Shares | None:
        """The best path by the table as it is."""
        return shared_out(self.table, self._fixed)

    @property
    def seconds(self) -> float:
        """… of a step by it."""
        shares = self.first_shares
        return inf if shares is None else self.step_seconds(shares.slowest, shares.total)

    def step_seconds(self, slowest: float, total: float) -> float:
        """One forward, one backward: the slowest stage runs all micro-batches but the one that fills the pipeline and
        drains it."""
        return slowest * (self.micro_batches - 1) + total

    @cached_property
    def _fixed(self) -> tuple[int, ...] | None:
        return self._counts() if self.problem.is_even else None

    def walk(self) -> LayerwisePlan | None:
        """The best path by the table; where its plan holds more than the table says, as the compiler sees it, or less,
        that is what the next one is allowed."""
        table, shares, best = self.table, self.first_shares, None
        for _ in range(ROUNDS):
            if shares is None:
                break
            found = self._told(table, shares)
            held = self._held(found.plan)
            lacks = held - self._room
            if (lacks <= 0.0).all() and (best is None or found.slowest < best.slowest):
                best = found
            beyond = held - self._peaks(table, shares)
            stages = tuple(
                replace(stage, room=float(room - more))
                for stage, room, more in zip(table.stages, self._room, beyond, strict=True)
            )
            changed = np.array([a.room - b.room for a, b in zip(stages, table.stages, strict=True)])
            if (np.abs(changed) <= _SAME * self._room).all() and best is found:
                break
            table = replace(table, stages=stages)
            shares = shared_out(table, self._fixed)
        return best

    def _told(self, table: LayerTable, shares: Shares) -> LayerwisePlan:
        choices = tuple(self.states[s] for path in shares.paths for s in path.states)
        return LayerwisePlan(
            self._plan(choices, shares.counts),
            choices,
            shares.slowest,
            self.step_seconds(shares.slowest, shares.total),
            shares.gap,
        )

    def _held(self, plan: Plan) -> Floats:
        """[stages] bytes on the fullest device; when all stages are at work they hold no more with more micro-batches."""
        held = np.zeros(self.problem.stages)
        scenario = self.task.scenario(plan)
        few = min(self.micro_batches, self.problem.stages + 1) * plan.replicas
        work = replace(scenario.workload, global_batch=few * plan.schedule.micro_batch)
        for stage in peak_memory(replace(scenario, workload=work)).by_stage:
            held[stage.stage] = max(held[stage.stage], stage.peak_bytes)
        return held

    def _peaks(self, table: LayerTable, shares: Shares) -> Floats:
        """[stages] bytes by the table."""
        ends = np.cumsum(shares.counts)
        return np.array(
            [
                table.chain(number, int(end) - count, int(end)).peak(np.array(path.states))
                for number, (count, end, path) in enumerate(
                    zip(shares.counts, ends, shares.paths, strict=True)
                )
            ]
        )

    @cached_property
    def _room(self) -> Floats:
        """[stages] bytes on the smallest device."""
        return np.array([self.task.usable_bytes[kinds].min() for kinds in self.kinds_of_stages()])

    def kinds_of_stages(self) -> list[list[int]]:
        """The kinds of devices that each stage runs on."""
        stage_of = self.mesh.coordinate("pp")
        kinds = np.asarray(self.task.cluster.device_kind)
        return [sorted(set(kinds[stage_of == s].tolist())) for s in range(self.problem.stages)]

    # --- the table ------------------------------------------------------------------------------------

    @property
    def micro_batches(self) -> int:
        replicas = self.mesh.size(*self.batch_axes)
        return self.task.workload.global_batch // (self.problem.micro * replicas)

    @cached_property
    def table(self) -> LayerTable:
        """Every layer in every state."""
        rows = tuple(b for b, block in enumerate(self.model.blocks) for _ in range(block.repeat))
        stages, shared = self.problem.stages, range(len(rows))
        if stages > 1:
            main = layer_blocks(self.model)
            mine = [place for place, row in enumerate(rows) if row in main]
            shared = range(mine[0], mine[-1] + 1)
        if len(shared) < stages:
            raise InputError(f"{stages} stages for {len(shared)} layers.")
        passes, seconds = self._timed()
        loose = 1.0 + self.task.runtime.memory.held_share(exchanges=True)
        held = np.array([[self._bytes(one) for one in row] for row in passes])
        static, saved, work, whole = np.moveaxis(held, 2, 0)
        kinds = {tuple(kinds): np.zeros(0) for kinds in self.kinds_of_stages()}
        for own in kinds:
            kinds[own] = seconds[list(own)].max(axis=0)
        sends = self._sends(passes[rows[shared[-1]]][0].boundary_bytes)
        each = tuple(
            Stage(kinds[tuple(own)], float(room), min(stages - number, self.micro_batches), sent)
            for number, (own, room, sent) in enumerate(
                zip(self.kinds_of_stages(), self._room, sends, strict=True)
            )
        )
        return LayerTable(rows, shared, static, loose * saved, loose * work + whole, each)

    def _sends(self, size: float) -> list[float]:
        """Of every stage: seconds of a micro-batch in which it sends and can do nothing else."""
        stages, task = self.problem.stages, self.task
        if stages == 1 or task.runtime.pipeline.overlaps_pipeline:
            return [0.0] * stages
        if len(self.tps) == 1:
            size /= boundary_slices(task.runtime, self.tps[0], self.problem.sp)
        ways = Exchanges(task.network, task.runtime.communication.library).sends(self.mesh)
        ahead = [float(way.seconds(np.array([size]))[0]) for way in ways[:-1]]
        return [a + b for a, b in zip([*ahead, 0.0], [0.0, *ahead], strict=True)]

    def _counts(self) -> tuple[int, ...]:
        """Layers of stages where a plan does not say so."""
        model, main = self.model, layer_blocks(self.model)
        by_products = self.task.runtime.pipeline.places_by_products
        parts = place(model, Schedule(DEFAULT, stages=self.problem.stages), by_products)
        return tuple(sum(block in main for block, _ in part) for part in parts)

    def _timed(self) -> tuple[list[list[BlockPass]], Floats]:
        """[blocks][states] what runs, and [kinds of devices, blocks, states before, states] seconds of it."""
        chains, passes = [], []
        layouts: dict[int, tuple[TensorLayout, ...] | None] = dict.fromkeys(self.tps)
        for number, block in enumerate(self.model.blocks):
            outgoing: dict[int, tuple[TensorLayout, ...] | None] = {}
            for tp in self.tps:
                one = self.blocks[tp, self.zeros[0]]
                _, outgoing[tp] = one.block(number, 0, layouts[tp], "none")
            before = outgoing if block.repeat > 1 else layouts
            row = []
            for last, state in product(self.tps, self.states):
                made = self.blocks[state.tp, state.zero]
                repetition = min(1, block.repeat - 1)
                one_pass, _ = made.block(number, repetition, before[last], state.recompute)
                chains += [one_pass.forward, one_pass.backward]
                row.append(one_pass)
            passes.append(row[: len(self.states)])
            layouts = outgoing
        device, *_ = chain_seconds(self.task, self.mesh, chains)
        shape = (len(passes), len(self.tps), len(self.states), 2)
        seconds = np.stack(device).reshape(len(device), *shape)
        total = seconds.sum(axis=-1)
        if len(self.zeros) > 1:
            total = total + self._exposed(passes, seconds)
        tp_of = [self.tps.index(state.tp) for state in self.states]
        return passes, total[:, :, tp_of]

    def _exposed(self, passes: Sequence[Sequence[BlockPass]], work: Floats) -> Floats:
        """[kinds, blocks, tp before, states] seconds of what replicas exchange for a block, beyond those that it runs
        beside, for every micro-batch. `work`: … forward and backward."""
        sent = [exchange for row in passes for one in row for exchange in self._exchanges(one)]
        device, *_ = chain_seconds(self.task, self.mesh, sent)
        blocks, states = len(passes), len(self.states)
        each = np.stack(device).reshape(len(device), blocks, 1, states, len(_Exchanges._fields))
        gather, often, once, refresh = np.moveaxis(each, -1, 0)
        forward, backward = work[..., 0], work[..., 1]
        steps, runtime = float(self.micro_batches), self.task.runtime
        # what is due for every micro-batch moves beside this one or the next, what is due for the last one beside it
        is_ahead = runtime.sharding.prefetched_blocks > 0
        moving = often + (2.0 * gather if is_ahead else 0.0)
        found = _beyond(moving, forward + backward) + (0.0 if is_ahead else 2.0 * gather)
        late = _beyond(once, backward) if runtime.gradients.overlaps_gradients else once
        return np.asarray(found + (late + refresh) / steps)

    def _exchanges(self, block: BlockPass) -> _Exchanges:
        """Weights that are gathered for every micro-batch; gradients that are reduced for every one and for the last;
        weights that are gathered after the update."""
        states = self.task.states
        split = [w for w in block.pooled if not sharding_axes(w, "weight")]
        trained = [w for w in block.pooled if not w.is_frozen]
        often = [w for w in trained if sharding_axes(w, "gradient")]
        return _Exchanges(
            tuple(gather_items(block.pooled, "weight", states.weight_bytes)),
            self._reductions(often),
            self._reductions([w for w in trained if w not in often]),
            tuple(gather_items(split, "optimizer", states.weight_bytes)),
        )

    def _reductions(self, weights: Sequence[WeightShard]) -> tuple[Item, ...]:
        sizes: dict[tuple[tuple[str, ...], tuple[str, ...]], float] = {}
        for w in weights:
            if w.reduce_axes:
                way = (w.reduce_axes, sharding_axes(w, "optimizer"))
                amount = w.elements if w.reduced is None else w.reduced
                sizes[way] = sizes.get(way, 0.0) + amount * self.task.states.reduced_bytes
        ranks = dict(self.mesh.axes)
        return tuple(
            item
            for (axes, owners), size in sizes.items()
            for item in reduced(size, axes, owners, ranks, "all_reduce")
        )

    def _bytes(self, block: BlockPass) -> tuple[float, float, float, float]:
        """Of a block on a rank: weights, gradients and optimizer states; what a micro-batch saves; what it works with;
        and weights that are gathered meanwhile."""
        states = self.task.states
        groups = weights_of(block.pooled, dict(self.mesh.axes))
        static = sum(states.weights(w) + states.gradients(w) + states.optimizer(w) for w in groups)
        whole = sum(
            states.gathered(w) * states.blocks_gathered + states.reducing(w) for w in groups
        )
        work = max(block.forward_workspace, block.backward_workspace)
        return float(static), float(block.saved_bytes), float(work), float(whole)


class _Exchanges(NamedTuple):
    gathers: tuple[Item, ...]
    often: tuple[Item, ...]
    once: tuple[Item, ...]
    refresh: tuple[Item, ...]


def _beyond(seconds: Floats, work: Floats) -> Floats:
    return np.maximum(seconds - work, 0.0)


def _unless_none(choice: LayerState) -> str | None:
    return None if choice.recompute == "none" else choice.recompute


def _primes(count: int) -> list[int]:
    found, left, prime = [], count, 2
    while left > 1:
        while left % prime == 0:
            found.append(prime)
            left //= prime
        prime += 1
    return sorted(found, reverse=True)
