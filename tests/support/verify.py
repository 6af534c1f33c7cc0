"""The executable spec of a legal program, run in tests after compiling.

`verify_segments` holds for what the passes hand to assembly, `verify` for the finished graph. Both raise `Bug`
with the first broken rule; each rule is one function and says in its name what must hold. `verify_all` runs both after
every compilation of a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from foretrain.arrays import Ints
from foretrain.compile.assemble import PipelinePrograms, assemble
from foretrain.compile.execution import (
    CHAIN,
    COLLECTIVE,
    COPY,
    FORWARD,
    KIND_NAMES,
    LOAD,
    PHASE_NAMES,
    TRANSFER,
    UPDATE,
    Communication,
    Compute,
    Copy,
    ExecutionGraph,
    Item,
    Load,
)
from foretrain.compile.passes.pipeline import StageProgram
from foretrain.compile.segment import Segment
from foretrain.errors import Bug

_COLUMNS = (
    "task_shape",
    "task_class",
    "task_phase",
    "task_stage",
    "task_chunk",
    "task_micro",
    "task_memory",
    "task_workspace",
)
_WORKS: Mapping[int, type] = {
    COLLECTIVE: Communication,
    TRANSFER: Communication,
    COPY: Copy,
    LOAD: Load,
}
_SENDS = ("send_forward", "send_backward")
_CLOSE = 1e-9


def verify_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, all that is compiled is verified."""

    def checked(pipeline: PipelinePrograms, *rest: Any) -> ExecutionGraph:
        graph = assemble(pipeline, *rest)
        verify_compiled(pipeline.programs, graph)
        return graph

    monkeypatch.setattr("foretrain.compile.compile.assemble", checked)


def verify_compiled(programs: Iterable[StageProgram], graph: ExecutionGraph) -> None:
    """Both: the segments of every stage, then the graph made of them."""
    for program in programs:
        verify_segments((*program.segments.values(), program.update), graph.items)
    verify(graph)


def verify_segments(segments: Iterable[Segment], items: Sequence[Item]) -> None:
    """Raise `Bug` unless the segments of a stage are well formed and give back all the memory they take."""
    change = largest = 0.0
    for segment in segments:
        _segment_is_well_formed(segment, items)
        change += segment.memory
        largest = max(largest, abs(segment.memory))
    _require(abs(change) <= _CLOSE * largest, f"segments keep {change:g} bytes when all have run")


def verify(graph: ExecutionGraph) -> None:
    """Raise `Bug` unless the graph is one that the engine and the analyses can trust."""
    _columns_have_one_length(graph)
    _pointers_are_well_formed(graph)
    _numbers_are_in_range(graph)
    _shapes_suit_their_kinds(graph)
    _tasks_stand_on_their_own_streams(graph)
    _nothing_waits_in_a_circle(graph)
    _stages_run_every_step_once(graph)
    _memory_is_given_back(graph)
    _collectives_join_their_groups(graph)
    _chains_in_step_are_whole(graph)
    _transfers_reach_their_receivers(graph)
    _gradients_are_reduced_before_the_update(graph)


def _require(holds: bool | np.bool_, message: str) -> None:
    if not holds:
        raise Bug(f"illegal execution graph: {message}.")


# --- segments ---------------------------------------------------------------------------------------


def _segment_is_well_formed(segment: Segment, items: Sequence[Item]) -> None:
    count, length = len(items), len(segment.chain)
    inside = not length or (segment.chain.min() >= 0 and segment.chain.max() < count)
    _require(inside, f"a chain names items outside 0..{count - 1}")
    for number in np.unique(segment.chain).tolist():
        _require(not isinstance(items[number].work, Load), "data loading stands on a chain")
    for entry in segment.asyncs:
        work = items[entry.item].work
        _require(not isinstance(work, Compute), f"a kernel runs beside the chain on {entry.stream}")
        _require(
            0 <= entry.after <= length,
            f"work beside a chain of {length} starts after {entry.after}",
        )
        due = length if entry.before is None else entry.before
        _require(entry.after <= due <= length, f"work after item {entry.after} is due before {due}")
    if segment.send is not None:
        work = items[segment.send].work
        is_send = isinstance(work, Communication) and work.collective == "send"
        _require(is_send, "a segment passes its result on with something that is no send")
    sizes = (segment.workspace, segment.memory)
    _require(np.isfinite(sizes).all() and segment.workspace >= 0, f"impossible memory {sizes}")


# --- columns ----------------------------------------------------------------------------------------


def _columns_have_one_length(graph: ExecutionGraph) -> None:
    for name in _COLUMNS:
        column = getattr(graph, name)
        _require(
            len(column) == graph.tasks, f"{name} has {len(column)} rows for {graph.tasks} tasks"
        )
    for name in ("task_memory", "task_workspace"):
        _require(np.isfinite(getattr(graph, name)).all(), f"{name} is not finite")
    _require((graph.task_workspace >= 0).all(), "a task needs less than no workspace")


def _pointers_are_well_formed(graph: ExecutionGraph) -> None:
    for name, pointers, values, rows in (
        ("shape", graph.shape_ptr, graph.shape_items, len(graph.shape_ptr) - 1),
        ("stream", graph.stream_ptr, graph.stream_ids, graph.tasks),
        ("succ", graph.succ_ptr, graph.succ, graph.tasks),
    ):
        _require(
            len(pointers) == rows + 1, f"{name}_ptr has {len(pointers)} entries for {rows} rows"
        )
        _require(
            pointers[0] == 0 and pointers[-1] == len(values), f"{name}_ptr does not span its values"
        )
        _require((np.diff(pointers) >= 0).all(), f"{name}_ptr goes back")


def _numbers_are_in_range(graph: ExecutionGraph) -> None:
    shapes, classes = len(graph.shape_ptr) - 1, graph.fold.classes
    for name, low, high in (
        ("task_kind", 0, len(KIND_NAMES)),
        ("task_shape", 0, shapes),
        ("task_class", 0, classes),
        ("task_phase", 0, len(PHASE_NAMES)),
        ("task_stage", 0, len(graph.stages)),
        ("task_chunk", -1, graph.tasks + 1),
        ("task_micro", -1, graph.tasks + 1),
        ("shape_items", 0, len(graph.items)),
        ("stream_ids", 0, len(graph.streams)),
        ("succ", 0, graph.tasks),
    ):
        values = getattr(graph, name)
        inside = not len(values) or (values.min() >= low and values.max() < high)
        _require(inside, f"{name} leaves {low}..{high - 1}")
    _require((np.diff(graph.shape_ptr) > 0).all(), "a shape without items")
    same = graph.fold.stage_of[graph.task_class] == graph.task_stage
    _require(same.all(), "a task is labelled with a stage that its rank class does not run")
    _require(len(set(graph.streams)) == len(graph.streams), "a stream is listed twice")


def _shapes_suit_their_kinds(graph: ExecutionGraph) -> None:
    """Flows, copies and loads are single works of their own type; chains hold anything but loads."""
    pairs = np.unique(graph.task_kind.astype(np.int64) << 32 | graph.task_shape.astype(np.int64))
    for kind, shape in zip((pairs >> 32).tolist(), (pairs & 0xFFFFFFFF).tolist(), strict=True):
        items = graph.shape(shape)
        if kind in _WORKS:
            fits = len(items) == 1 and isinstance(items[0].work, _WORKS[kind])
            _require(
                fits, f"a {KIND_NAMES[kind]} of {len(items)} items, first {items[0].work!r:.80}"
            )
            _require(items[0].beside is None, f"a {KIND_NAMES[kind]} with something beside it")
        else:
            _require(
                not any(isinstance(i.work, Load) for i in items), f"a load in a {KIND_NAMES[kind]}"
            )
        if kind == TRANSFER:
            _require(_communication(items[0]).collective == "send", "a transfer that is no send")


def _tasks_stand_on_their_own_streams(graph: ExecutionGraph) -> None:
    """A task of one class stands on one stream of it; only collectives join several, of one name."""
    counts = np.diff(graph.stream_ptr)
    _require((counts > 0).all(), "a task without a stream")
    lone = graph.task_kind != COLLECTIVE
    _require((counts[lone] == 1).all(), "a task other than a collective on several streams")
    rank_class = np.array([c for c, _ in graph.streams])
    first = graph.stream_ids[graph.stream_ptr[:-1]]
    _require(
        (rank_class[first] == graph.task_class).all(), "a task on a stream of another rank class"
    )
    for task in np.flatnonzero(counts > 1).tolist():
        names = {graph.streams[s][1] for s in _streams(graph, task)}
        _require(
            len(names) == 1, f"collective {task} joins streams of different names {sorted(names)}"
        )


# --- order ------------------------------------------------------------------------------------------


def _nothing_waits_in_a_circle(graph: ExecutionGraph) -> None:
    """Edges and stream order together leave an order in which all tasks can run."""
    after = _followers(graph)
    missing = np.zeros(graph.tasks, dtype=np.int64)
    for row in after:
        for task in row:
            missing[task] += 1
    ready = np.flatnonzero(missing == 0).tolist()
    ran = 0
    while ready:
        task = ready.pop()
        ran += 1
        for other in after[task]:
            missing[other] -= 1
            if missing[other] == 0:
                ready.append(other)
    if ran < graph.tasks:
        stuck = int(np.flatnonzero(missing > 0)[0])
        raise Bug(
            f"illegal execution graph: {graph.tasks - ran} tasks wait for each other, first"
            f" {stuck}: {_told(graph, stuck)}."
        )


def _stages_run_every_step_once(graph: ExecutionGraph) -> None:
    """On every chain each (phase, chunk, micro-batch) is one unbroken run, forward before backward."""
    for rank_class in range(graph.fold.classes):
        chain = _tasks_on(graph, rank_class, ("compute",))
        keys = np.stack(
            [graph.task_phase[chain], graph.task_chunk[chain], graph.task_micro[chain]], axis=1
        ).astype(np.int64)
        changes = np.flatnonzero((np.diff(keys, axis=0) != 0).any(axis=1)) + 1
        runs = [tuple(keys[i].tolist()) for i in (0, *changes.tolist())] if len(keys) else []
        _require(len(set(runs)) == len(runs), f"class {rank_class} runs a step twice")
        place = {run: number for number, run in enumerate(runs) if run[0] != UPDATE}
        updates = [number for number, run in enumerate(runs) if run[0] == UPDATE]
        _require(updates in ([], [len(runs) - 1]), f"class {rank_class} goes on after its update")
        _grid_is_complete(rank_class, place)
        went_back = (
            len({run[0] for run in place}) > 1
        )  # frozen stages that open a pipeline need not
        _require(went_back or not updates, f"class {rank_class} lacks a direction")


def _grid_is_complete(rank_class: int, place: Mapping[tuple[int, ...], int]) -> None:
    phases, chunks, micros = ({run[i] for run in place} for i in range(3))
    for chunk in sorted(chunks):
        for micro in sorted(micros):
            spots = [place.get((phase, chunk, micro), -1) for phase in sorted(phases)]
            where = f"class {rank_class}, chunk {chunk}, micro-batch {micro}"
            _require(min(spots) >= 0, f"{where}: a step is missing")
            _require(spots == sorted(spots), f"{where}: steps out of order {spots}")
    _require(FORWARD in phases, f"class {rank_class} never runs forward")


# --- memory, communication --------------------------------------------------------------------------


def _memory_is_given_back(graph: ExecutionGraph) -> None:
    for rank_class in range(graph.fold.classes):
        change = graph.task_memory[_tasks_on(graph, rank_class, ("compute",))]
        held = np.cumsum(change)
        largest = float(np.abs(held).max(initial=0.0))
        _require(
            abs(change.sum()) <= _CLOSE * largest,
            f"class {rank_class} keeps {change.sum():g} bytes",
        )
        _require(
            held.min(initial=0.0) >= -_CLOSE * largest,
            f"class {rank_class} frees what it never held",
        )
    chains = np.isin(np.arange(graph.tasks), np.flatnonzero(graph.task_memory))
    on_chain = np.isin(graph.task_kind, (CHAIN, COLLECTIVE))
    _require(on_chain[chains].all(), "memory changes beside the chain")


def _collectives_join_their_groups(graph: ExecutionGraph) -> None:
    """The streams of a collective are those of exactly the rank classes of its group (or subgroup) class."""
    for task in np.flatnonzero(graph.task_kind == COLLECTIVE).tolist():
        work = _communication(graph.shape(int(graph.task_shape[task]))[0])
        is_known = work.group in graph.fold.groups
        _require(is_known, f"collective {task} over an unknown group {work.group}")
        group = graph.fold.mover_class(work.group, work.collective, int(graph.task_class[task]))
        joined = tuple(sorted(graph.streams[s][0] for s in _streams(graph, task)))
        wanted = graph.fold.movers(work.group, work.collective).members[group]
        _require(
            joined == wanted, f"{_told(graph, task)} joins classes {joined}, its group is {wanted}"
        )


def _chains_in_step_are_whole(graph: ExecutionGraph) -> None:
    """A collective inside a chain is in the same chain, at the same step, of every rank class of its group."""
    fold = graph.fold
    tasks = np.flatnonzero(graph.task_kind == CHAIN).tolist()
    steps = {_step_of(graph, task, int(graph.task_class[task])) for task in tasks}
    for task in tasks:
        for item in graph.shape(int(graph.task_shape[task])):
            if isinstance(item.work, Communication):
                rank_class, group = int(graph.task_class[task]), item.work.group
                members = fold.groups[group].members[fold.group_class(group, rank_class)]
                missing = [c for c in members if _step_of(graph, task, c) not in steps]
                _require(not missing, f"{_told(graph, task)} lacks classes {missing}")


def _step_of(graph: ExecutionGraph, task: int, rank_class: int) -> tuple[int, ...]:
    columns = (graph.task_shape, graph.task_phase, graph.task_chunk, graph.task_micro)
    return (rank_class, *(int(column[task]) for column in columns))


def _transfers_reach_their_receivers(graph: ExecutionGraph) -> None:
    """A send leads to the chain of the class at its other end, in the same phase and micro-batch."""
    compute = {s for s, (_, name) in enumerate(graph.streams) if name == "compute"}
    for task in np.flatnonzero(graph.task_kind == TRANSFER).tolist():
        work = _communication(graph.shape(int(graph.task_shape[task]))[0])
        partner = graph.fold.partner(work.group, int(graph.task_class[task]))
        _require(
            graph.streams[_streams(graph, task)[0]][1] in _SENDS, f"send {task} on a wrong stream"
        )
        receivers = [
            other
            for other in graph.succ[graph.succ_ptr[task] : graph.succ_ptr[task + 1]].tolist()
            if any(s in compute and graph.streams[s][0] == partner for s in _streams(graph, other))
            and graph.task_phase[other] == graph.task_phase[task]
            and graph.task_micro[other] == graph.task_micro[task]
        ]
        # a frozen stage that opens a pipeline is sent gradients, and has nothing to do with them
        here = graph.task_phase[_tasks_on(graph, partner, ("compute",))]
        wanted = int(bool((here == graph.task_phase[task]).any()))
        _require(len(receivers) == wanted, f"{_told(graph, task)} has {len(receivers)} receivers")


def _gradients_are_reduced_before_the_update(graph: ExecutionGraph) -> None:
    """Whatever a class has on its gradient stream ends before its update begins."""
    before: dict[int, set[int]] = {}
    preceding = _preceding(graph)
    for rank_class in range(graph.fold.classes):
        mine = _tasks_on(graph, rank_class, ("compute",))
        updates = mine[graph.task_phase[mine] == UPDATE]
        reductions = _tasks_on(graph, rank_class, ("data", "copy_out"))
        if not len(updates) or not len(reductions):
            continue
        first, last = int(updates[0]), int(reductions[-1])
        if first not in before:
            before[first] = _ancestors(preceding, first, int(reductions[0]))
        _require(
            last in before[first], f"{_told(graph, last)} may still run when the weights change"
        )


def _preceding(graph: ExecutionGraph) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(graph.tasks)]
    for task, after in enumerate(_followers(graph)):
        for other in after:
            rows[other].append(task)
    return rows


def _ancestors(preceding: Sequence[Sequence[int]], task: int, lowest: int) -> set[int]:
    seen = {task}
    waiting = [task]
    while waiting:
        for other in preceding[waiting.pop()]:
            if other not in seen and other >= lowest:
                seen.add(other)
                waiting.append(other)
    return seen


# --- reading ----------------------------------------------------------------------------------------


def _communication(item: Item) -> Communication:
    if not isinstance(item.work, Communication):
        raise Bug(
            f"illegal execution graph: {item.work!r:.80} stands where a communication should."
        )
    return item.work


def _streams(graph: ExecutionGraph, task: int) -> list[int]:
    low, high = graph.stream_ptr[task], graph.stream_ptr[task + 1]
    return [int(s) for s in graph.stream_ids[low:high]]


def _tasks_on(graph: ExecutionGraph, rank_class: int, names: tuple[str, ...]) -> Ints:
    wanted = [s for s, (c, name) in enumerate(graph.streams) if c == rank_class and name in names]
    task = graph.queued
    return task[np.isin(graph.stream_ids, wanted)]


def _followers(graph: ExecutionGraph) -> list[list[int]]:
    rows = [
        graph.succ[graph.succ_ptr[t] : graph.succ_ptr[t + 1]].tolist() for t in range(graph.tasks)
    ]
    last: dict[int, int] = {}
    for task in range(graph.tasks):
        for stream in _streams(graph, task):
            if stream in last:
                rows[last[stream]].append(task)
            last[stream] = task
    return rows


def _told(graph: ExecutionGraph, task: int) -> str:
    kind = KIND_NAMES[int(graph.task_kind[task])]
    phase = PHASE_NAMES[int(graph.task_phase[task])]
    what = graph.shape(int(graph.task_shape[task]))[0].work
    name = what.collective if isinstance(what, Communication) else type(what).__name__.lower()
    return f"{kind} {name} ({phase}, class {graph.task_class[task]}, micro-batch {graph.task_micro[task]})"
