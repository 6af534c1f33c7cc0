"""Assemble: lay out every stage's templates along its schedule and join them into one graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Bools, Ints, Ints32
from foretrain.compile.columns import distinct
from foretrain.compile.execution import (
    BACKWARD,
    COLLECTIVE,
    FORWARD,
    LOAD,
    UPDATE,
    Communication,
    Communicator,
    ExecutionGraph,
    Item,
    Load,
)
from foretrain.compile.lowering import LoweringContext
from foretrain.compile.passes.fold import Fold
from foretrain.compile.passes.pipeline import Key, StageProgram
from foretrain.compile.patterns import Patterns
from foretrain.compile.segment import Interner, Segment
from foretrain.compile.table import TaskTable, edges_csr
from foretrain.compile.template import Template, TemplateShapes
from foretrain.plan.schedules import Pieces, Steps
from foretrain.plan.schedules.base import joined
from foretrain.runtime import Runtime


@dataclass(frozen=True, eq=False, slots=True)
class PipelinePrograms:
    """What each stage runs, in which order, and where the pieces of the model lie."""

    programs: tuple[StageProgram, ...]
    orders: tuple[Steps, ...]
    pieces: Pieces
    joins_gradients: bool  # input gradients leave with the weight gradients that follow them
    barriers: tuple[Item, ...]  # join stages before the update
    loads: tuple[Item, ...]  # bring in the next step's samples while this one runs


@dataclass(slots=True)
class _StageLayout:
    """Where one stage's templates lie: step i starts at `base[i]` and runs template `which[i]`."""

    classes: tuple[int, ...]
    templates: list[Template]
    which: Ints
    base: Ints
    steps: Steps
    step_of: Mapping[tuple[int, int], Ints]  # (phase, chunk) → step number per micro-batch
    tables: dict[str, Ints] = field(default_factory=dict)  # what was asked of `table`

    def table(self, name: str) -> Ints:
        """Rows of `name` (first, last, lead, sends) per template and class position, made once."""
        known = self.tables.get(name)
        if known is None:
            rows = [getattr(t, name) for t in self.templates]
            known = self.tables[name] = np.array(rows, dtype=np.int64)
        return known

    def rows(self, name: str, steps: Ints, position: int) -> Ints:
        """Task numbers of a class's named row in the given steps (-1: none)."""
        local = self.table(name)[self.which[steps], position]
        return np.where(local < 0, -1, self.base[steps] + local)

    def also(self, steps: Ints, position: int) -> Iterator[Ints]:
        """First tasks of others in the given steps that wait for whatever a class's own waits for (-1: none)."""
        found = [template.also.get(position, []) for template in self.templates]
        for place in range(max(map(len, found))):
            rows = np.array([rows[place] if len(rows) > place else -1 for rows in found])
            local = rows[self.which[steps]]
            yield np.where(local < 0, -1, self.base[steps] + local)


def assemble(
    pipeline: PipelinePrograms, fold: Fold, interner: Interner, runtime: Runtime
) -> ExecutionGraph:
    """The execution graph of one training step."""
    return _Assembly(pipeline, fold, interner, runtime).graph()


class _Assembly:
    def __init__(
        self, pipeline: PipelinePrograms, fold: Fold, interner: Interner, runtime: Runtime
    ) -> None:
        self.pipeline, self.fold, self.interner = pipeline, fold, interner
        self.host_blocks = runtime.host.host_blocks_on_pipeline
        self.overlaps_sends = runtime.pipeline.overlaps_pipeline
        self.shapes = TemplateShapes()
        self.stream_numbers: dict[tuple[int, str], int] = {}
        self.sources: list[Ints] = []
        self.targets: list[Ints] = []
        self.tail: list[tuple[int, Template]] = []  # (first task, template) of barriers and updates
        has_host = runtime.host.launches_take_time
        lowering = LoweringContext(
            interner.items, fold, self.shapes, self._stream, has_host, has_host and self.host_blocks
        )
        self.patterns = Patterns(lowering, self.stream_numbers)
        self.layouts: list[_StageLayout] = []
        self.total = 0
        steps = zip(pipeline.programs, pipeline.orders, strict=True)
        for stage, (program, order) in enumerate(steps):
            self.layouts.append(self._lay_out(stage, program, order))
        self.awaited_sends = self._awaited_sends()

    def _stream(self, rank_class: int, name: str) -> int:
        return self.stream_numbers.setdefault((rank_class, name), len(self.stream_numbers))

    def _classes(self, stage: int) -> tuple[int, ...]:
        return tuple(np.flatnonzero(self.fold.stage_of == stage).tolist())

    def _lay_out(self, stage: int, program: StageProgram, order: Steps) -> _StageLayout:
        classes = self._classes(stage)
        keys = list(program.segments)
        segment_of = _which(keys, order)
        accompanied = self._accompanied([program.segments[k] for k in keys], segment_of)
        variants, which = distinct(segment_of * 2 + accompanied)
        templates = [
            self.patterns.template(program.segments[keys[variant // 2]], classes, variant % 2 > 0)
            for variant in variants.tolist()
        ]
        rows = np.array([t.rows for t in templates])[which]
        base = self.total + np.concatenate([[0], np.cumsum(rows)[:-1]])
        self.total += int(rows.sum())
        step_of: dict[tuple[int, int], Ints] = {}
        for phase, chunk in {(k[0], k[1]) for k in keys}:
            found = np.flatnonzero((order[:, 0] == phase) & (order[:, 1] == chunk))
            numbers = np.empty(len(found), dtype=np.int64)
            numbers[order[found, 2]] = found
            step_of[phase, chunk] = numbers
        return _StageLayout(classes, templates, which, base, order, step_of)

    def _accompanied(self, segments: list[Segment], segment_of: Ints) -> Bools:
        """Whether each step may run while communication or copies beside the chain are under way: its own, or
        what an earlier step started and nobody has waited for."""
        own = np.array([bool(segment.asyncs) for segment in segments])
        lasting = np.array([any(a.before is None for a in s.asyncs) for s in segments])
        return own[segment_of] | np.logical_or.accumulate(lasting[segment_of])

    def graph(self) -> ExecutionGraph:
        for stage, layout in enumerate(self.layouts):
            self._inner_edges(layout)
            self._transfers(stage, layout)
            self._starts(layout)
            self._lockstep(layout)
            self._late_sends(layout)
            if not self.overlaps_sends:
                self._blocking_sends(layout)
        barrier_rows = [self._barrier(item) for item in self.pipeline.barriers]
        self._updates(barrier_rows)
        for item in self.pipeline.loads:
            self._load(item)
        return self._columns()

    def _join(self, source: Ints, target: Ints) -> None:
        keep = (source >= 0) & (target >= 0)
        self.sources.append(source[keep])
        self.targets.append(target[keep])

    def _inner_edges(self, layout: _StageLayout) -> None:
        for number, template in enumerate(layout.templates):
            base = layout.base[layout.which == number]
            if not template.edges or not len(base):
                continue
            edges = np.array(template.edges, dtype=np.int64)
            self._join((base[:, None] + edges[:, 0]).ravel(), (base[:, None] + edges[:, 1]).ravel())

    def _transfers(self, stage: int, layout: _StageLayout) -> None:
        """What a step receives comes from the send of the same micro-batch on the stage of the piece before it; where
        that is its own, steps follow one another anyway."""
        pieces = self.pipeline.pieces
        stages, chunks, hops = (c.tolist() for c in (pieces.stage_of, pieces.chunk_of, pieces.hops))
        for (phase, chunk), steps in layout.step_of.items():
            if phase not in (FORWARD, BACKWARD):
                continue
            way = 1 if phase == FORWARD else -1
            piece = int(pieces.of[chunk, stage])
            before = piece - way
            if not 0 <= before < pieces.count:
                continue
            hop = way * hops[min(piece, before)]
            other = self.layouts[stages[before]]
            if hop and (phase, chunks[before]) in other.step_of:
                self._receive(layout, steps, other, other.step_of[phase, chunks[before]], hop)

    def _receive(
        self, layout: _StageLayout, steps: Ints, other: _StageLayout, sent: Ints, direction: int
    ) -> None:
        group = self._shift(direction)
        if group is None:
            return
        for position, sender in enumerate(other.classes):
            receiver = layout.classes.index(self.fold.partner(group, sender))
            source = other.rows("sends", sent, position)
            self._join(source, layout.rows("first", steps, receiver))
            for rows in layout.also(steps, receiver):
                self._join(source, rows)
            if self.host_blocks:
                self._join(source, layout.rows("lead", steps, receiver))

    def _shift(self, direction: int) -> Communicator | None:
        for found in self.fold.groups:
            if (found.kind, found.axes, found.offset) == ("shift", ("pp",), direction):
                return found
        return None

    def _starts(self, layout: _StageLayout) -> None:
        """Work issued at the start of a step waits for the step before it."""
        for number, template in enumerate(layout.templates):
            steps = np.flatnonzero(layout.which == number)
            steps = steps[steps > 0]
            for position, row in template.at_start:
                before = layout.rows("last", steps - 1, position)
                self._join(before, layout.base[steps] + row)

    def _lockstep(self, layout: _StageLayout) -> None:
        """Classes that run a step together begin it when all of them are done with the step before."""
        steps = np.arange(len(layout.which) - 1)
        for position in range(len(layout.classes)):
            for rows in layout.also(steps + 1, position):
                self._join(layout.rows("last", steps, position), rows)

    def _late(self, layout: _StageLayout) -> Ints:
        """Steps whose sends leave after the step that follows."""
        none = np.zeros(0, dtype=np.int64)
        return np.flatnonzero(joined(layout.steps)) if self.pipeline.joins_gradients else none

    def _late_sends(self, layout: _StageLayout) -> None:
        steps = self._late(layout)
        for position in range(len(layout.classes)):
            sent = layout.rows("sends", steps, position)
            self._join(layout.rows("last", steps + 1, position), sent)

    def _blocking_sends(self, layout: _StageLayout) -> None:
        steps = np.arange(len(layout.which) - 1)
        after = steps + 1
        after[self._late(layout)] += 1
        steps, after = (column[after < len(layout.which)] for column in (steps, after))
        for position in range(len(layout.classes)):
            sent = layout.rows("sends", steps, position)
            self._join(sent, layout.rows("first", after, position))
            for rows in layout.also(after, position):
                self._join(sent, rows)

    def _tail_template(self, template: Template) -> int:
        start = self.total
        self.tail.append((start, template))
        self.total += template.rows
        edges = np.array(template.edges, dtype=np.int64).reshape(-1, 2)
        self._join(start + edges[:, 0], start + edges[:, 1])
        return start

    def _lone(self, kind: int, item: Item, members: tuple[int, ...], stream: str) -> int:
        """A task of one item after the schedule, of rank classes on their streams of a name."""
        shape = self.shapes.number(np.array([self.interner.number(item)], dtype=np.int32))
        streams = tuple(self._stream(rank_class, stream) for rank_class in members)
        return self._tail_template(Template.lone(kind, shape, members[0], streams))

    def _barrier(self, item: Item) -> list[tuple[tuple[int, ...], int]]:
        """A collective between stages before the update; returns (rank classes, task) per group class."""
        work = item.work
        assert isinstance(work, Communication)
        placed = []
        for members in self.fold.groups[work.group].members:
            task = self._lone(COLLECTIVE, item, members, "data")
            for rank_class in members:
                self._join(self._chain_end(rank_class), np.array([task]))
                for sent in self.awaited_sends.get(rank_class, ()):
                    self._join(np.array([sent]), np.array([task]))
            placed.append((members, task))
        return placed

    def _load(self, item: Item) -> None:
        """Loading has the whole step to finish: prefetching hides it until it is the longest."""
        work = item.work
        assert isinstance(work, Load)
        for rank_class in self._classes(0):
            self._lone(LOAD, item, (rank_class,), work.kind)

    def _chain_end(self, rank_class: int) -> Ints:
        """The last task of a class on its chain (stream order covers everything before it)."""
        layout = self.layouts[int(self.fold.stage_of[rank_class])]
        last = np.array([len(layout.which) - 1])
        return layout.rows("last", last, layout.classes.index(rank_class))

    def _updates(self, barriers: list[list[tuple[tuple[int, ...], int]]]) -> None:
        data_tails = self._last_on_streams(("data", "copy_out"))
        for stage, program in enumerate(self.pipeline.programs):
            classes = self._classes(stage)
            if not len(program.update.chain):
                continue
            template = self.patterns.template(program.update, classes, True)
            start = self._tail_template(template)
            for position, rank_class in enumerate(classes):
                first = np.array([start + template.first[position]])
                waited = (*data_tails.get(rank_class, ()), *self.awaited_sends.get(rank_class, ()))
                for tail in waited:
                    self._join(np.array([tail]), first)
                for placed in barriers:
                    for members, task in placed:
                        if rank_class in members:
                            self._join(np.array([task]), first)

    def _awaited_sends(self) -> dict[int, list[int]]:
        """Last sends of neighbours that each class needs before its update (stream order covers earlier ones)."""
        last: dict[tuple[int, int], int] = {}
        for layout in self.layouts:
            for number, template in enumerate(layout.templates):
                steps = np.flatnonzero(layout.which == number)
                for (position, stream), row in template.received.items() if len(steps) else ():
                    key = (layout.classes[position], stream)
                    last[key] = max(last.get(key, -1), int(layout.base[steps[-1]] + row))
        found: dict[int, list[int]] = {}
        for (rank_class, _), task in last.items():
            found.setdefault(rank_class, []).append(task)
        return found

    def _last_on_streams(self, names: tuple[str, ...]) -> dict[int, list[int]]:
        """Last task of each class on streams beside the chain."""
        found: dict[int, list[int]] = {}
        for (rank_class, name), stream in self.stream_numbers.items():
            if name not in names:
                continue
            layout = self.layouts[int(self.fold.stage_of[rank_class])]
            best = -1
            for number, template in enumerate(layout.templates):
                rows = [row for row, streams in enumerate(template.streams) if stream in streams]
                steps = np.flatnonzero(layout.which == number)
                if rows and len(steps):
                    best = max(best, int(layout.base[steps[-1]] + rows[-1]))
            if best >= 0:
                found.setdefault(rank_class, []).append(best)
        return found

    def _columns(self) -> ExecutionGraph:
        table = TaskTable(
            [*(t for one in self.layouts for t in one.templates), *(t for _, t in self.tail)]
        )
        row = self._rows(table)
        stream_ptr, stream_ids = table.streams(row)
        succ_ptr, succ = edges_csr(self.total, self.sources, self.targets)
        shape_ptr, shape_items = self.shapes.csr()
        phase, chunk, micro = self._labels()
        rank_class = table.column("rank_class", np.int32)[row]
        return ExecutionGraph(
            items=tuple(self.interner.items),
            shape_ptr=shape_ptr,
            shape_items=shape_items,
            task_kind=table.column("kind", np.int8)[row],
            task_shape=table.column("shape", np.int32)[row],
            task_class=rank_class,
            task_phase=phase,
            task_stage=self.fold.stage_of.astype(np.int32)[rank_class],
            task_chunk=chunk,
            task_micro=micro,
            task_memory=table.column("memory", np.float64)[row],
            task_workspace=table.column("workspace", np.float64)[row],
            task_accompanied=table.is_accompanied[row],
            stream_ptr=stream_ptr,
            stream_ids=stream_ids,
            succ_ptr=succ_ptr,
            succ=succ,
            streams=tuple(self.stream_numbers),
            stages=tuple(program.stage for program in self.pipeline.programs),
            fold=self.fold,
        )

    def _rows(self, table: TaskTable) -> Ints:
        """The template row of every task."""
        which, first = [], 0
        for layout in self.layouts:
            which.append(first + layout.which)
            first += len(layout.templates)
        which.append(first + np.arange(len(self.tail)))
        template = np.concatenate(which)
        lengths = table.lengths[template]
        start = np.cumsum(lengths) - lengths
        row: Ints = np.arange(self.total) + np.repeat(table.start[template] - start, lengths)
        return row

    def _labels(self) -> tuple[NDArray[np.int8], Ints32, Ints32]:
        """Phase, chunk and micro-batch of every task."""
        steps = np.concatenate([layout.steps for layout in self.layouts])
        counts = [np.array([t.rows for t in one.templates])[one.which] for one in self.layouts]
        rows = np.concatenate(counts)
        rest = self.total - int(rows.sum())
        phase = np.append(
            np.repeat(steps[:, 0].astype(np.int8), rows), np.full(rest, UPDATE, np.int8)
        )
        chunk, micro = (
            np.append(np.repeat(steps[:, n].astype(np.int32), rows), np.full(rest, -1, np.int32))
            for n in (1, 2)
        )
        return phase, chunk, micro


def _which(keys: list[Key], order: Steps) -> Ints:
    """The template of every step: first forward and last backward have their own."""
    chunks = max(k[1] for k in keys) + 1
    last = int(order[:, 2].max())
    numbers = np.full((3, chunks, 2), -1, dtype=np.int64)
    for number, (phase, chunk, is_edge) in enumerate(keys):
        numbers[phase, chunk, int(is_edge)] = number
    is_edge = np.where(order[:, 0] == FORWARD, order[:, 2] == 0, order[:, 2] == last)
    chosen: Ints = numbers[order[:, 0], order[:, 1], is_edge.astype(int)]
    return chosen
