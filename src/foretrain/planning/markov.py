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
from itertools import product
from math import inf

import numpy as np

from foretrain.arrays import Floats
from foretrain.compile.blocks import Blocks
from foretrain.compile.layout import TensorLayout
from foretrain.compile.model_states import weights_of
from foretrain.compile.passes.pipeline import boundary_slices
from foretrain.compile.passes.place import layer_blocks, place
from foretrain.compile.passes.recompute import BlockPass
from foretrain.errors import InputError
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import DEFAULT
from foretrain.plan.strategy import Schedule
from foretrain.planning.exchanges import Exchanges
from foretrain.planning.layer_exchanges import exposed
from foretrain.planning.layer_shares import LayerTable, Shares, Stage, least_seconds, shared_out
from foretrain.planning.layer_trees import LayerState, LayerwiseProblem, trees
from foretrain.planning.layers import chain_seconds
from foretrain.planning.task import Task
from foretrain.simulate import peak_memory

ROUNDS = 3
"""How often a path is looked for, with what the compiler says that the last one holds more or less than the table."""
ROOMIER = 1.25
"""Times the memory there is, by which a first path is looked for where the table has none that fits."""
_SAME = 1e-3
"""Share of a device's memory by which table and compiler may differ."""


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
        self.trees = trees(task, problem)
        self.mesh = self.trees.mesh
        zeros = problem.zeros or (problem.zero,)
        self.blocks = {
            (tp, zero): made
            for tp, zero in product(self.trees.tps, zeros)
            if (made := self._made(tp, zero)) is not None
        }
        self.tps = list(dict.fromkeys(tp for tp, _ in self.blocks))
        if not self.tps:
            least, most = self.trees.tps[0], self.trees.tps[-1]
            raise InputError(f"no tensor parallelism of {least} to {most} divides the model.")
        self.states = [
            LayerState(tp, recompute, zero)
            for tp, recompute, zero in product(self.tps, problem.recomputes, zeros)
        ]
        self.table = self._table()

    def _made(self, tp: int, zero: int) -> Blocks | None:
        """All blocks with one degree; None where it does not divide one of them."""
        work = self.task.workload
        made = Blocks(work.model, work.precision, self.trees.probe(tp, zero), self.task.runtime)
        layouts: tuple[TensorLayout, ...] | None = None
        try:
            for number in range(len(self.model.blocks)):
                _, layouts = made.block(number, 0, layouts, "none")
        except InputError:
            return None
        return made

    # --- the best path --------------------------------------------------------------------------------

    @cached_property
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

    def walk(self) -> LayerwisePlan | None:
        """The best path by the table; where its plan holds more than the table says, as the compiler sees it, or less,
        that is what the next one is allowed."""
        table, shares, best = self.table, self.first_shares, None
        if shares is None:  # by the table, which may say more than is held
            table = self._with_rooms(table, ROOMIER * self._room)
            shares = shared_out(table, self._fixed)
        for _ in range(ROUNDS):
            if shares is None:
                break
            found = self._told(shares)
            held = self._held(found.plan)
            if (held <= self._room).all() and (best is None or found.slowest < best.slowest):
                best = found
            rooms = self._room - (held - self._peaks(table, shares))
            known = np.array([stage.room for stage in table.stages])
            if best is found and (np.abs(rooms - known) <= _SAME * self._room).all():
                break
            table = self._with_rooms(table, rooms)
            shares = shared_out(table, self._fixed)
        return best

    def _with_rooms(self, table: LayerTable, rooms: Floats) -> LayerTable:
        each = zip(table.stages, rooms.tolist(), strict=True)
        return replace(table, stages=tuple(replace(stage, room=room) for stage, room in each))

    def _told(self, shares: Shares) -> LayerwisePlan:
        choices = tuple(self.states[s] for path in shares.paths for s in path.states)
        layers = None if shares.counts == self._placed else shares.counts
        return LayerwisePlan(
            self.trees.plan(choices, layers),
            choices,
            shares.slowest,
            self.step_seconds(shares.slowest, shares.total),
            shares.gap,
        )

    def _held(self, plan: Plan) -> Floats:
        """[stages] bytes on the fullest device; once all stages are at work, more micro-batches are no more bytes."""
        held = np.zeros(self.problem.stages)
        scenario = self.task.scenario(plan)
        few = min(self.micro_batches, self.problem.stages + 1) * plan.replicas
        work = replace(scenario.workload, global_batch=few * plan.schedule.micro_batch)
        for stage in peak_memory(replace(scenario, workload=work)).by_stage:
            held[stage.stage] = max(held[stage.stage], stage.peak_bytes)
        return held

    def _peaks(self, table: LayerTable, shares: Shares) -> Floats:
        """[stages] bytes by the table."""
        ends = np.cumsum(shares.counts).tolist()
        each = enumerate(zip(shares.counts, ends, shares.paths, strict=True))
        return np.array(
            [
                table.chain(number, end - count, end).peak(np.array(path.states))
                for number, (count, end, path) in each
            ]
        )

    # --- the table ------------------------------------------------------------------------------------

    @property
    def micro_batches(self) -> int:
        return self.task.workload.global_batch // (self.problem.micro * self.trees.replicas)

    @cached_property
    def _room(self) -> Floats:
        """[stages] bytes on the smallest device."""
        return np.array([self.task.usable_bytes[kinds].min() for kinds in self._kinds])

    @cached_property
    def _kinds(self) -> list[list[int]]:
        """The kinds of devices that each stage runs on."""
        kinds = np.asarray(self.task.cluster.device_kind)
        if self.problem.stages == 1:
            return [sorted(set(kinds.tolist()))]
        stage_of = self.mesh.coordinate("pp")
        return [sorted(set(kinds[stage_of == s].tolist())) for s in range(self.problem.stages)]

    @property
    def _fixed(self) -> tuple[int, ...] | None:
        return self._placed if self.problem.is_even else None

    @cached_property
    def _placed(self) -> tuple[int, ...]:
        """Layers of stages where a plan does not say so."""
        model, main = self.model, layer_blocks(self.model)
        if self.problem.stages == 1:
            return (sum(block.repeat for block in model.blocks),)
        by_products = self.task.runtime.pipeline.places_by_products
        parts = place(model, Schedule(DEFAULT, stages=self.problem.stages), by_products)
        return tuple(sum(block in main for block, _ in part) for part in parts)

    def _table(self) -> LayerTable:
        """Every layer in every state."""
        rows = tuple(b for b, block in enumerate(self.model.blocks) for _ in range(block.repeat))
        shared = range(len(rows))
        if self.problem.stages > 1:
            main = layer_blocks(self.model)
            mine = [number for number, row in enumerate(rows) if row in main]
            shared = range(mine[0], mine[-1] + 1)
        if len(shared) < self.problem.stages:
            raise InputError(f"{self.problem.stages} stages for {len(shared)} layers.")
        passes, seconds = self._timed()
        loose = 1.0 + self.task.runtime.memory.held_share(exchanges=True)
        static, saved, work, whole = np.moveaxis(
            np.array([[self._bytes(one) for one in row] for row in passes]), 2, 0
        )
        sends = self._sends(passes[rows[shared[-1]]][0].boundary_bytes)
        return LayerTable(
            rows, shared, static, loose * saved, loose * work + whole, self._stages(seconds, sends)
        )

    def _stages(self, seconds: Floats, sends: Sequence[float]) -> tuple[Stage, ...]:
        """Those on devices alike share what layers take."""
        slowest = {tuple(kinds): seconds[kinds].max(axis=0) for kinds in self._kinds}
        rooms = self._room.tolist()
        return tuple(
            Stage(slowest[tuple(kinds)], room, min(len(sends) - number, self.micro_batches), sent)
            for number, (kinds, room, sent) in enumerate(
                zip(self._kinds, rooms, sends, strict=True)
            )
        )

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

    def _timed(self) -> tuple[list[list[BlockPass]], Floats]:
        """[blocks][states] what runs, and [kinds of devices, blocks, states before, states] seconds of it."""
        chains, passes = [], []
        layouts: dict[int, tuple[TensorLayout, ...] | None] = dict.fromkeys(self.tps)
        zero = self.states[0].zero
        for number, block in enumerate(self.model.blocks):
            outgoing: dict[int, tuple[TensorLayout, ...] | None] = {}
            for tp in self.tps:
                _, outgoing[tp] = self.blocks[tp, zero].block(number, 0, layouts[tp], "none")
            before = outgoing if block.repeat > 1 else layouts
            row = []
            for last, state in product(self.tps, self.states):
                made = self.blocks[state.tp, state.zero]
                repetition = min(1, block.repeat - 1)
                one, _ = made.block(number, repetition, before[last], state.recompute)
                chains += [one.forward, one.backward]
                row.append(one)
            passes.append(row[: len(self.states)])
            layouts = outgoing
        device, *_ = chain_seconds(self.task, self.mesh, chains)
        shape = (len(passes), len(self.tps), len(self.states), 2)
        seconds = np.stack(device).reshape(len(device), *shape)
        total = seconds.sum(axis=-1)
        if len(self.problem.zeros) > 1:
            total = total + exposed(self.task, self.mesh, passes, seconds, self.micro_batches)
        tp_of = [self.tps.index(state.tp) for state in self.states]
        return passes, total[:, :, tp_of]

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
