"""Conformance kit for parallelisms: what each may do to the tree, and what a whole plan must conserve.

`check_parallelism` and `check_factoring` take a row of `foretrain.plan.parallelism`; `check_plan` takes a whole
plan and compares what it runs with the same model on one device.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from math import isclose, prod

import numpy as np

from foretrain.compile.execution import (
    CHAIN,
    COLLECTIVE,
    TRANSFER,
    Communication,
    Compute,
    ExecutionGraph,
)
from foretrain.model.graph import Model
from foretrain.model.ops.base import kernel_kind
from foretrain.plan.mesh import Mesh
from foretrain.plan.parallelism import FACTORINGS, Factoring, Parallelism
from foretrain.plan.plan import Plan
from foretrain.plan.short_form import Words, parse
from foretrain.plan.strategy import Cut, Schedule, StrategyNode
from foretrain.simulate import compile_scenario
from foretrain.testing.asking import ask

EXAMPLES = tuple(
    parse(text)
    for text in (
        "dp8", "tp4 dp2", "tp2 dp4 sp", "pp2 dp4", "cp2 dp4", "cp4 tp2", "dp8 zero1", "dp8 zero2",
        "dp4 tp2 zero3", "dp8 zero3 shard=4", "cp2 dp4 zero1 shard=4", "dp8 ep4", "dp4 tp2 ep4",
        "dp2 tp4 ep8", "dp4 tp2 ep8 etp1", "dp8 ep4 zero3", "dp4 cp2 ep8 zero1 shard=2",
        "pp2 dp4 recompute=full offload=optimizer", "dp8 buckets=4MB", "pp2 vpp2 dp2 tp2 sp cp=ring",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sent:
    """One kind of message of a step."""

    phase: int
    collective: str
    axes: tuple[str, ...]
    purpose: str


def check_parallelism(parallelism: Parallelism) -> None:
    """Raise `AssertionError` unless the row adds to the tree, on axes of the mesh, and nothing at degree 1."""
    start = StrategyNode(schedule=Schedule())
    alone = parallelism(Words(dp=1), _mesh(Words(dp=1)), start)
    for cut in alone.split:
        assert cut == Cut(cut.dims, ()), f"degree 1 cuts {cut}"
    for words in EXAMPLES:
        mesh = _mesh(words)
        axes = {name for name, _ in mesh.axes}
        before = StrategyNode(
            split=(Cut(("marker",), ("tp",)),), schedule=Schedule(stages=words.pp)
        )
        after = parallelism(words, mesh, before)
        assert after.split[:1] == before.split, "cuts of others must stay in front"
        assert after.schedule == before.schedule, "the schedule is not a parallelism's to change"
        named = {axis for cut in after.split for axis in cut.axes}
        named |= {axis for _, state_axes in after.state for axis in state_axes}
        assert named <= axes, f"{words.text()}: {sorted(named - axes)} are no axes of the mesh"
        assert parallelism(words, mesh, before) == after, "the same words give another tree"
        _check_round_trip(Plan(mesh, after, words.text()))


def check_factoring(factoring: Factoring) -> None:
    """Raise `AssertionError` unless ranks stay where they are and every name stands for axes that exist."""
    plain = Mesh((("pp", 1), ("dp", 1), ("cp", 1), ("tp", 1)))
    assert factoring(Words(dp=1), plain) == plain, "degree 1 changes the mesh"
    for words in EXAMPLES:
        before = _degrees(words)
        after = factoring(words, before)
        assert after.ranks == before.ranks, (
            f"{words.text()}: {before.ranks} ranks became {after.ranks}"
        )
        sizes = dict(after.axes)
        for name, members in after.names:
            assert all(axis in sizes for axis in members), f"{name} stands for unknown {members}"
        for name, size in before.axes:
            whole = after.groups(after.expand(name))
            assert (whole == before.groups((name,))).all(), (
                f"{words.text()}: {name} joins other ranks"
            )
            assert after.size(name) == size
        for name, degree in (("ep", words.ep), ("shards", words.shard or 0)):
            if name in dict(after.names):
                assert after.size(name) == degree, (
                    f"{name} has {after.size(name)} of {degree} ranks"
                )


def check_plan(plan: str, model: Model, on: str = "1 x dgx-a100-80gb", batch: int = 16) -> None:
    """Raise `AssertionError` unless all ranks together do the arithmetic that one device alone would do."""
    options = {"pads_vocabulary_to": 1}
    many = ask(model, on=on, plan=plan, batch=batch, micro_batch=1, runtime_options=options)
    micro = many.plan.schedule.micro_batch * many.plan.replicas
    alone = ask(model, on="1 x a100-80gb", batch=batch, micro_batch=micro, runtime_options=options)
    _check_round_trip(many.plan)
    split, whole = (contraction_flops(compile_scenario(one)) for one in (many, alone))
    assert isclose(split, whole, rel_tol=1e-9), (
        f"{plan}: ranks do {split:g} FLOPs, one device {whole:g}"
    )


def contraction_flops(graph: ExecutionGraph, phase: int | None = None) -> float:
    """FLOPs of all ranks' GEMMs, attentions and convolutions in one step, or in one phase of it: what a split divides.
    What is left whole (norms, residuals) every rank repeats."""
    works = [item.work for item in graph.items]
    flops = np.array([
        w.kernel.flops if isinstance(w, Compute) and kernel_kind(w.kernel).is_contraction else 0.0 for w in works
    ])  # fmt: skip
    owner = np.repeat(np.arange(len(graph.shape_ptr) - 1), np.diff(graph.shape_ptr))
    of_shape = np.bincount(owner, flops[graph.shape_items], len(graph.shape_ptr) - 1)
    chains = graph.task_kind == CHAIN
    if phase is not None:
        chains &= graph.task_phase == phase
    return float(
        (of_shape[graph.task_shape[chains]] * graph.fold.counts[graph.task_class[chains]]).sum()
    )


def messages(graph: ExecutionGraph, rank_class: int = 0) -> Counter[Sent]:
    """How often a rank class takes part in each kind of message."""
    counts: Counter[Sent] = Counter()
    for sent, _ in _messages(graph, rank_class):
        counts[sent] += 1
    return counts


def message_bytes(graph: ExecutionGraph, rank_class: int = 0) -> dict[Sent, float]:
    """Bytes (as `Communication` counts them) of each kind of message that a rank class takes part in."""
    sizes: dict[Sent, float] = {}
    for sent, size in _messages(graph, rank_class):
        sizes[sent] = sizes.get(sent, 0.0) + size
    return sizes


def _messages(graph: ExecutionGraph, rank_class: int) -> list[tuple[Sent, float]]:
    messages = []
    kinds = np.isin(graph.task_kind, (CHAIN, COLLECTIVE, TRANSFER))
    mine = np.array([c == rank_class for c, _ in graph.streams], dtype=np.bool_)
    for task in np.flatnonzero(kinds).tolist():
        if not mine[graph.stream_ids[graph.stream_ptr[task] : graph.stream_ptr[task + 1]]].any():
            continue
        for item in graph.shape(int(graph.task_shape[task])):
            for work in (item.work, item.beside):
                if isinstance(work, Communication):
                    phase = int(graph.task_phase[task])
                    sent = Sent(phase, work.collective, work.group.axes, work.purpose)
                    messages.append((sent, work.bytes))
    return messages


def _degrees(words: Words) -> Mesh:
    sizes = {"pp": words.pp, "dp": words.dp or 1, "cp": words.cp, "tp": words.tp}
    return Mesh(tuple(sizes.items()))


def _mesh(words: Words) -> Mesh:
    mesh = _degrees(words)
    for factoring in FACTORINGS:
        mesh = factoring(words, mesh)
    assert mesh.ranks == prod((words.pp, words.dp or 1, words.cp, words.tp))
    return mesh


def _check_round_trip(plan: Plan) -> None:
    again = Plan.from_dict(plan.to_dict())
    assert replace(again, text=plan.text) == plan, (
        f"{plan.text}: the document reads back as another plan"
    )
