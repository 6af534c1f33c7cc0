"""Trees of plans whose layers differ: what is open in a layer-wise search, and the plan that a path through it is.

Where layers differ in what they recompute or in what ZeRO splits, a plan in words stays as it is, with nodes for some of
its layers. Where they differ in tensor parallelism as well, ranks are a grid of prime factors, the innermost of which are
tensor parallel in some layers and data parallel in others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Protocol

import numpy as np

from foretrain.errors import InputError
from foretrain.model.graph import Block, Model
from foretrain.plan.mesh import Mesh
from foretrain.plan.plan import Plan
from foretrain.plan.schedules import DEFAULT
from foretrain.plan.short_form import Words
from foretrain.plan.strategy import STATE_ROLES, Cut, Schedule, StrategyNode
from foretrain.planning.task import Task

SEQUENCE = ("seq", "slot")
TRANSFORMER = (("heads", "kv_heads"), ("ffn",), ("vocab",))


@dataclass(frozen=True, slots=True)
class LayerwiseProblem:
    """What is not chosen layer by layer, and what layers choose from."""

    stages: int
    least_tp: int  # ranks that are always tensor parallel
    micro: int  # samples per rank that the batch is cut over
    zero: int  # what layers have that have no choice, see `zeros`
    recomputes: tuple[str, ...] = ("none", "selective", "full")
    zeros: tuple[int, ...] = ()
    tps: tuple[int, ...] = ()  # none named: all that the ranks allow, up to a domain
    sp: bool = True  # sequences are split over tensor-parallel ranks
    is_even: bool = False  # layers are placed as where a plan says nothing about it
    words: Words | None = (
        None  # the plan that all of them share, where tensor parallelism is no choice
    )


@dataclass(frozen=True, slots=True)
class LayerState:
    """The state of a layer."""

    tp: int
    recompute: str
    zero: int = 0


class Trees(Protocol):
    """The plans of a problem."""

    @property
    def mesh(self) -> Mesh: ...

    @property
    def tps(self) -> Sequence[int]: ...

    @property
    def replicas(self) -> int: ...

    def probe(self, tp: int, zero: int) -> Plan:
        """All layers in one state."""

    def plan(self, choices: Sequence[LayerState], layers: tuple[int, ...] | None) -> Plan:
        """A state for every repetition of every block, and layers of stages where a plan says them."""


def trees(task: Task, problem: LayerwiseProblem) -> Trees:
    if problem.words is None:
        return MixedTrees(task, problem)
    return AlikeTrees(task, problem, problem.words)


@dataclass(frozen=True)
class AlikeTrees:
    """Tensor parallelism is the same throughout."""

    task: Task
    problem: LayerwiseProblem
    words: Words

    @property
    def tps(self) -> Sequence[int]:
        return (self.words.tp,)

    @property
    def mesh(self) -> Mesh:
        return self.probe(self.words.tp, self.problem.zero).mesh

    @property
    def replicas(self) -> int:
        return self.probe(self.words.tp, self.problem.zero).replicas

    def probe(self, tp: int, zero: int) -> Plan:
        words = replace(self.words, tp=tp, zero=zero, recompute="none", layers=None)
        return self.task.plan(words)

    def plan(self, choices: Sequence[LayerState], layers: tuple[int, ...] | None) -> Plan:
        zero = common_zero(choices)
        words = replace(self.words, zero=zero, recompute="none", layers=layers)
        axes = dict(self.probe(self.words.tp, 3).root.state).get("weight", ())
        common = LayerState(self.words.tp, "none", zero)
        children = tuple(
            with_zero(StrategyNode(name, recompute=_unless_none(choice)), zero, choice.zero, axes)
            for name, choice in runs(self.task.workload.model, choices)
            if choice != common
        )
        plan = self.task.plan(words)
        root = replace(plan.root, children=(*plan.root.children, *children))
        return Plan(plan.mesh, root, "" if children else plan.text)


@dataclass(frozen=True)
class MixedTrees:
    """Layers may be tensor parallel to different degrees."""

    task: Task
    problem: LayerwiseProblem

    def __post_init__(self) -> None:
        if self.problem.least_tp not in self.degrees:
            raise InputError(
                f"tp {self.problem.least_tp} cannot be formed from the factors of {self._ranks} ranks."
            )

    @property
    def _ranks(self) -> int:
        return self.task.devices // self.problem.stages

    @cached_property
    def axes(self) -> tuple[tuple[str, int], ...]:
        return tuple((f"x{i}", n) for i, n in enumerate(primes(self._ranks)))

    @cached_property
    def degrees(self) -> list[int]:
        found = [1]
        for _, size in reversed(self.axes):
            found.append(found[-1] * size)
        return found

    @cached_property
    def tps(self) -> Sequence[int]:
        """Up to a domain, unless it has to be wider."""
        if self.problem.tps:
            return self.problem.tps
        domain = int(np.bincount(np.asarray(self.task.cluster.domain_of)).max())
        least = self.problem.least_tp
        return [tp for tp in self.degrees if least <= tp <= max(domain, least)]

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

    @property
    def replicas(self) -> int:
        return self.mesh.size(*self.batch_axes)

    def root(self, zero: int, layers: tuple[int, ...] | None = None) -> StrategyNode:
        schedule = Schedule(DEFAULT, self.problem.micro, self.problem.stages, 1, layers)
        node = StrategyNode(split=(Cut(("batch",), self.batch_axes),), schedule=schedule)
        return with_zero(node, 0, zero, self.batch_axes)

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
        children = tuple(
            StrategyNode(select=block.name, split=self.cuts(block, tp))
            for block in self.task.workload.model.blocks
        )
        return Plan(self.mesh, replace(self.root(zero), children=children))

    def plan(self, choices: Sequence[LayerState], layers: tuple[int, ...] | None) -> Plan:
        """Where tensor parallelism came out the same throughout, the tree of a plan in words."""
        (first, *others), zero = (
            dict.fromkeys(choice.tp for choice in choices),
            common_zero(choices),
        )
        if not others:
            alike = AlikeTrees(self.task, self.problem, self._words(first))
            return alike.plan(choices, layers)
        model = self.task.workload.model
        blocks = {block.name: block for block in model.blocks}
        children = []
        for name, choice in runs(model, choices):
            split = self.cuts(blocks[name.partition("[")[0]], choice.tp)
            node = StrategyNode(name, split=split, recompute=choice.recompute)
            children.append(with_zero(node, zero, choice.zero, self.batch_axes))
        return Plan(self.mesh, replace(self.root(zero, layers), children=tuple(children)))

    def _words(self, tp: int) -> Words:
        p = self.problem
        return Words(
            tp=tp,
            pp=p.stages,
            dp=self._ranks // tp,
            sp=p.sp and tp > 1,
            micro=p.micro * tp // p.least_tp,
            schedule=DEFAULT if p.stages > 1 else None,
        )


def common_zero(choices: Sequence[LayerState]) -> int:
    """What most layers have."""
    return Counter(choice.zero for choice in choices).most_common(1)[0][0]


def with_zero(node: StrategyNode, has: int, wants: int, axes: tuple[str, ...]) -> StrategyNode:
    """A node whose layers have more or fewer of their states split than those around them."""
    low, high = sorted((has, wants))
    for role in STATE_ROLES[low:high]:
        node = node.with_state(role, axes if wants > has else ())
    return node


def runs(model: Model, choices: Sequence[LayerState]) -> list[tuple[str, LayerState]]:
    """Runs of repetitions with one choice, by what selects them."""
    found, at = [], 0
    for block in model.blocks:
        mine = choices[at : at + block.repeat]
        at += block.repeat
        start = 0
        for choice, run in groupby(mine):
            end = start + len(list(run))
            name = f"{block.name}[{start}:{end}]" if block.repeat > 1 else block.name
            found.append((name, choice))
            start = end
    return found


def _unless_none(choice: LayerState) -> str | None:
    return None if choice.recompute == "none" else choice.recompute


def primes(count: int) -> list[int]:
    """The prime factors of a number, the largest first."""
    found, left, prime = [], count, 2
    while left > 1:
        while left % prime == 0:
            found.append(prime)
            left //= prime
        prime += 1
    return sorted(found, reverse=True)
