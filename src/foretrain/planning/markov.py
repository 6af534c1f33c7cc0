"""Different strategies for different layers: Viterbi over the layers of a stage, memory as a budget.

The state of a layer is how far it is tensor parallel and what it recomputes. Its cost depends on its own state, the
cost of getting there on the state before it alone: a Markov chain. Emissions and transitions are blocks compiled on
tensors that lie as the state before left them, so resharding is what the compiler makes of it.

Stages hold different numbers of micro-batches in flight, so each gets the fastest path that its own memory allows;
layers are shared out so that the slowest stage is fastest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product

import numpy as np

from foretrain.arrays import Floats, Ints
from foretrain.compile.blocks import Blocks
from foretrain.compile.layout import TensorLayout
from foretrain.compile.model_states import weights_of
from foretrain.compile.passes.place import layer_blocks
from foretrain.compile.passes.recompute import BlockPass
from foretrain.errors import InputError
from foretrain.model.graph import Block
from foretrain.plan.mesh import Mesh
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import DEFAULT
from foretrain.plan.strategy import STATE_ROLES, Cut, Schedule, StrategyNode
from foretrain.planning.layers import chain_seconds
from foretrain.planning.task import Task

BUDGET_STEPS = 48
STEPS_PER_LAYER = 4
"""Into how many pieces a stage's memory is cut for the walk: so many, or so many for every layer."""
SEQUENCE = ("seq", "slot")
TRANSFORMER = (("heads", "kv_heads"), ("ffn",), ("vocab",))


@dataclass(frozen=True, slots=True)
class LayerwiseProblem:
    """What a walk does not choose: stages, ranks that are always tensor parallel, samples, ZeRO, recomputations."""

    stages: int
    least_tp: int
    micro: int  # samples per rank that the batch is cut over
    zero: int
    recomputes: tuple[str, ...] = ("none", "selective", "full")
    is_tp_fixed: bool = False  # layers differ in what they recompute alone


@dataclass(frozen=True, slots=True)
class LayerState:
    """The state of a layer."""

    tp: int
    recompute: str


@dataclass(frozen=True)
class LayerwisePlan:
    """A plan with a choice for every block repetition, and what its slowest stage takes for a micro-batch."""

    plan: Plan
    choices: tuple[LayerState, ...]
    slowest: float


def walk(task: Task, problem: LayerwiseProblem) -> LayerwisePlan | None:
    """The best path of a problem; None where no path fits in memory."""
    return _Walker(task, problem).walk()


class _Walker:
    def __init__(self, task: Task, problem: LayerwiseProblem) -> None:
        self.task, self.problem = task, problem
        self.model = task.workload.model
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
        self.blocks = {tp: made for tp in self.tps if (made := self._made(tp)) is not None}
        self.tps = list(self.blocks)
        if not self.tps:
            raise InputError(
                f"no tensor parallelism of {problem.least_tp} to {most} divides the model."
            )
        self.states = [LayerState(t, r) for t, r in product(self.tps, problem.recomputes)]

    def _made(self, tp: int) -> Blocks | None:
        """All blocks with one degree; None where it does not divide one of them."""
        work = self.task.workload
        made = Blocks(work.model, work.precision, self.probe(tp), self.task.runtime)
        layouts: tuple[TensorLayout, ...] | None = None
        try:
            for number in range(len(self.model.blocks)):
                _, layouts = made.block(number, 0, layouts, "none")
        except InputError:
            return None
        return made

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

    def root(self, layers: tuple[int, ...] | None = None) -> StrategyNode:
        schedule = Schedule(DEFAULT, self.problem.micro, self.problem.stages, 1, layers)
        node = StrategyNode(split=(Cut(("batch",), self.batch_axes),), schedule=schedule)
        for role in STATE_ROLES[: self.problem.zero]:
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
        if "seq" in dims or "slot" in dims:
            found.append(Cut(SEQUENCE, axes))
        return tuple(found)

    def probe(self, tp: int) -> Plan:
        """All blocks in one state."""
        children = tuple(
            StrategyNode(select=block.name, split=self.cuts(block, tp))
            for block in self.model.blocks
        )
        return Plan(self.mesh, replace(self.root(), children=children))

    def kinds_of_stages(self) -> list[list[int]]:
        """The kinds of devices that each stage runs on."""
        stage_of = self.mesh.coordinate("pp")
        kinds = np.asarray(self.task.cluster.device_kind)
        return [sorted(set(kinds[stage_of == s].tolist())) for s in range(self.problem.stages)]

    def walk(self) -> LayerwisePlan | None:
        table = self._table()
        paths = _Paths(self, table)
        counts = paths.shared_out()
        if counts is None:
            return None
        choices, slowest = paths.chosen(counts)
        return LayerwisePlan(self._plan(choices, counts), choices, slowest)

    def _table(self) -> _Table:
        """Emissions and transitions of every block."""
        made = self.blocks
        chains, shapes = [], []
        layouts: dict[int, tuple[TensorLayout, ...] | None] = dict.fromkeys(self.tps)
        for number, block in enumerate(self.model.blocks):
            outgoing: dict[int, tuple[TensorLayout, ...] | None] = {}
            for tp in self.tps:
                _, outgoing[tp] = made[tp].block(number, 0, layouts[tp], "none")
            before = outgoing if block.repeat > 1 else layouts
            for last, state in product(self.tps, self.states):
                one, _ = made[state.tp].block(
                    number, min(1, block.repeat - 1), before[last], state.recompute
                )
                chains += [one.forward, one.backward]
                shapes.append(one)
            layouts = outgoing
        device, *_ = chain_seconds(self.task, self.mesh, chains)
        size = (len(self.model.blocks), len(self.tps), len(self.states))
        return _Table(
            seconds=np.stack([d.reshape(-1, 2).sum(axis=1).reshape(size) for d in device]),
            saved=np.array([p.saved_bytes for p in shapes]).reshape(size)[:, 0],
            work=np.array([max(p.forward_workspace, p.backward_workspace) for p in shapes]).reshape(
                size
            )[:, 0],
            static=np.array([self._static(p) for p in shapes]).reshape(size)[:, 0],
        )

    def _static(self, block: BlockPass) -> float:
        """Bytes of a block's weights, gradients and optimizer states on a rank."""
        states, sizes = self.task.states, dict(self.mesh.axes)
        groups = weights_of(block.pooled, sizes)
        return float(
            sum(states.weights(w) + states.gradients(w) + states.optimizer(w) for w in groups)
        )

    def _plan(self, choices: Sequence[LayerState], counts: Sequence[int]) -> Plan:
        """The tree of a walk: one node per run of repetitions with one choice."""
        children, at = [], 0
        for block in self.model.blocks:
            mine = choices[at : at + block.repeat]
            at += block.repeat
            place = 0
            for choice, run in groupby(mine):
                length = len(list(run))
                name = f"{block.name}[{place}:{place + length}]" if block.repeat > 1 else block.name
                children.append(
                    StrategyNode(
                        name, split=self.cuts(block, choice.tp), recompute=choice.recompute
                    )
                )
                place += length
        layers = self._layers(counts) if self.problem.stages > 1 else None
        return Plan(self.mesh, replace(self.root(layers), children=tuple(children)))

    def _layers(self, counts: Sequence[int]) -> tuple[int, ...]:
        """As the compiler counts them: of a model of few layers, blocks before and after them are layers too."""
        repeats, shared = [block.repeat for block in self.model.blocks], layer_blocks(self.model)
        walked = [number for number, times in enumerate(repeats) if times > 1] or sorted(shared)
        layers = list(counts)
        layers[0] += sum(repeats[number] for number in shared if number < walked[0])
        layers[-1] += sum(repeats[number] for number in shared if number > walked[-1])
        return tuple(layers)


@dataclass(frozen=True, eq=False, slots=True)
class _Table:
    seconds: Floats  # [kinds of devices, blocks, tp before, states]
    saved: Floats  # [blocks, states] bytes kept per micro-batch
    work: Floats  # … needed at work
    static: Floats  # … of weights, gradients and optimizer states


@dataclass(frozen=True, eq=False, slots=True)
class _Step:
    """How each (memory used, state) was reached: from which state, and what the state costs."""

    came: Ints
    cost: Ints


class _Paths:
    """Fastest paths through runs of layers under the memory of the stage that runs them."""

    def __init__(self, walker: _Walker, table: _Table) -> None:
        self.w, self.t = walker, table
        self.tp_of = np.array([walker.tps.index(s.tp) for s in walker.states])
        blocks = walker.model.blocks
        self.instances = [b for b, block in enumerate(blocks) for _ in range(block.repeat)]
        main = [i for i, b in enumerate(self.instances) if blocks[b].repeat > 1]
        if not main or walker.problem.stages == 1:
            main = list(range(len(self.instances)))
        self.first, self.last = main[0], main[-1]
        self.layers = self.last - self.first + 1
        runtime = walker.task.runtime
        self.loose = 1.0 + runtime.memory.held_share(exchanges=True)
        self.kinds = walker.kinds_of_stages()
        self.most = self._most()

    def _most(self) -> int:
        """Layers that a stage is offered at most: around an even share, more where devices differ."""
        even = -(-self.layers // self.w.problem.stages)
        return min(self.layers, even + 2 if len(self.w.task.cluster.devices) == 1 else 3 * even)

    def _run(self, number: int, count: int) -> tuple[list[int], list[int], list[int]]:
        """Blocks a stage runs before its layers, its layers up to `count`, and after them."""
        is_first, is_last = number == 0, number == self.w.problem.stages - 1
        before = self.instances[: self.first] if is_first else []
        start = self.last + 1 - count if is_last else self.first
        layers = self.instances[start : start + count]
        return before, layers, self.instances[self.last + 1 :] if is_last else []

    def _costs(self, number: int, blocks: Sequence[int]) -> tuple[Ints, int] | None:
        """[blocks, states] memory in steps, rounded up so that no path slips through, and how many there are."""
        flight = self.w.problem.stages - number
        room = float(self.w.task.usable_bytes[list(self.kinds[number])].min())
        room -= self.loose * float(self.t.work[list(blocks)].min(axis=1).max())
        if room <= 0:
            return None
        steps = max(BUDGET_STEPS, STEPS_PER_LAYER * len(blocks))
        need = self.t.static[list(blocks)] + flight * self.loose * self.t.saved[list(blocks)]
        return np.ceil(need / (room / steps) - 1e-9).astype(np.int64), steps

    def _seconds(self, number: int, block: int) -> Floats:
        """[states before, states] on the slowest device of a stage."""
        return np.asarray(self.t.seconds[self.kinds[number], block].max(axis=0)[self.tp_of])

    def profile(self, number: int) -> Floats:
        """[layers + 1] seconds of a micro-batch on a stage by how many layers it holds; infinite where none fits."""
        found = np.full(self.most + 1, np.inf)
        before, layers, after = self._run(number, self.most)
        costed = self._costs(number, [*before, *layers, *after])
        if costed is None:
            return found
        cost, steps = costed
        best: Floats | None = None
        for place, block in enumerate((*before, *layers)):
            best, _ = self._step(number, best, block, cost[place], steps)
            count = place + 1 - len(before)
            if count > 0:
                found[count] = self._ended(number, best, after, cost, steps)
        return found

    def _ended(
        self, number: int, best: Floats, after: Sequence[int], cost: Ints, steps: int
    ) -> float:
        for place, block in enumerate(after):
            best, _ = self._step(number, best, block, cost[len(cost) - len(after) + place], steps)
        return float(best.min())

    def _step(
        self, number: int, best: Floats | None, block: int, cost: Ints, steps: int
    ) -> tuple[Floats, _Step]:
        """One block further: [steps + 1, states] seconds by memory used and state."""
        states = len(self.tp_of)
        each = self._seconds(number, block)
        if best is None:
            value = np.full((steps + 1, states), np.inf)
            value[0] = np.diagonal(each)  # what comes in lies as the first block wants it
            came = np.broadcast_to(np.arange(states), value.shape)
        else:
            through = best[:, :, None] + each[None]
            came = through.argmin(axis=1)
            value = np.take_along_axis(through, came[:, None, :], axis=1)[:, 0, :]
        moved = np.full((steps + 1, states), np.inf)
        for state in np.flatnonzero(cost <= steps).tolist():
            need = int(cost[state])
            moved[need:, state] = value[: steps + 1 - need, state]
        return moved, _Step(came.astype(np.int64), cost)

    def path(self, number: int, count: int) -> tuple[float, list[int]]:
        """The fastest path through so many layers of a stage."""
        before, layers, after = self._run(number, count)
        blocks = [*before, *layers, *after]
        full = [*self._run(number, self.most)[0], *self._run(number, self.most)[1], *after]
        costed = self._costs(number, full)
        assert costed is not None
        cost = np.concatenate(
            [costed[0][: len(before) + count], costed[0][len(full) - len(after) :]]
        )
        best: Floats | None = None
        back: list[_Step] = []
        for block, need in zip(blocks, cost, strict=True):
            best, step = self._step(number, best, block, need, costed[1])
            back.append(step)
        assert best is not None
        used, state = divmod(int(np.argmin(best)), len(self.tp_of))
        seconds, states = float(best[used, state]), []
        for step in reversed(back):
            states.append(state)
            used -= int(step.cost[state])
            state = int(step.came[used, state])
        return seconds, states[::-1]

    def shared_out(self) -> list[int] | None:
        """Layers per stage with the smallest slowest stage; None where nothing fits."""
        stages = self.w.problem.stages
        reached: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
        for number in range(stages):
            profile = self.profile(number)
            left = stages - number - 1
            found: dict[int, tuple[float, list[int]]] = {}
            for done, (slowest, counts) in reached.items():
                least = self.layers - done if not left else 1
                for count in range(max(1, least), min(self.most, self.layers - done - left) + 1):
                    worst = max(slowest, float(profile[count]))
                    known = found.get(done + count)
                    if np.isfinite(worst) and (known is None or worst < known[0]):
                        found[done + count] = (worst, [*counts, count])
            reached = found
        return reached[self.layers][1] if self.layers in reached else None

    def chosen(self, counts: Sequence[int]) -> tuple[tuple[LayerState, ...], float]:
        found = [self.path(number, count) for number, count in enumerate(counts)]
        choices = tuple(self.w.states[s] for _, states in found for s in states)
        return choices, max(seconds for seconds, _ in found)


def _primes(count: int) -> list[int]:
    found, left, prime = [], count, 2
    while left > 1:
        while left % prime == 0:
            found.append(prime)
            left //= prime
        prime += 1
    return sorted(found, reverse=True)
