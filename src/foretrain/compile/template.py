"""Templates: a segment cut into rows (tasks to be), once for all the micro-batches that run it.

The chain is cut only where something can come between: where work beside it starts or is waited for, and
around collectives that several rank classes take part in, whose links carry other traffic, or that have something
beside them which slows kernels but not them. Everything else runs as one task, which is exact because nothing outside can
change what happens inside.

Classes that meet in all collectives of a run of a chain go through it in *lockstep*: their devices are alike and leave
each collective together, so that up to the last one the run is one task of each, begun when all of them can. Where
hosts wait for what a step receives they may differ, and what follows the last collective is each class's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Ints32
from foretrain.compile.execution import (
    CHAIN,
    COLLECTIVE,
    COPY,
    LAUNCH,
    LAUNCH_REST,
    TRANSFER,
    Communication,
    Compute,
    Item,
)
from foretrain.compile.passes.fold import Fold, Use
from foretrain.compile.segment import Async, Segment
from foretrain.errors import Bug

T = TypeVar("T", bound=np.generic)


@dataclass(slots=True)
class Template:
    """Rows of one segment for all rank classes of a stage; `first`, `last`, `lead`, `sends` hold one row per
    class (-1: none)."""

    kind: list[int] = field(default_factory=list)
    shape: list[int] = field(default_factory=list)
    rank_class: list[int] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    workspace: list[float] = field(default_factory=list)
    streams: list[tuple[int, ...]] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    at_start: list[tuple[int, int]] = field(
        default_factory=list
    )  # (class position, row) issued at once
    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    lead: list[int] = field(default_factory=list)
    sends: list[int] = field(default_factory=list)
    also: dict[int, list[int]] = field(
        default_factory=dict
    )  # class position → first rows of others that wait for whatever its own does
    received: dict[tuple[int, int], int] = field(
        default_factory=dict
    )  # (class position, another's stream) → its last row that the class needs before the update
    is_accompanied: bool = False
    columns: dict[str, NDArray[np.generic]] = field(default_factory=dict)
    """What was asked of `column`; copies for other rank classes share it, for the rows they have in common."""

    @classmethod
    def lone(cls, kind: int, shape: int, rank_class: int, streams: tuple[int, ...]) -> Template:
        """A single row."""
        return cls([kind], [shape], [rank_class], [0.0], [0.0], [streams])

    @property
    def rows(self) -> int:
        return len(self.kind)

    def column(self, name: str, kind: type[T]) -> NDArray[T]:
        """A list of numbers as an array, made once."""
        known = self.columns.get(name)
        if known is None:
            known = self.columns[name] = np.array(getattr(self, name), dtype=kind)
        return cast("NDArray[T]", known)


class TemplateShapes:
    """Distinct runs of items."""

    def __init__(self) -> None:
        self.runs: list[Ints32] = []
        self._numbers: dict[bytes, int] = {}

    def number(self, run: Ints32) -> int:
        key = run.tobytes()
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.runs)
            self.runs.append(run)
        return found

    def csr(self) -> tuple[Ints32, Ints32]:
        lengths = [len(run) for run in self.runs]
        pointers = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        items = np.concatenate(self.runs) if self.runs else np.zeros(0)
        return pointers, items.astype(np.int32)


@dataclass(frozen=True, slots=True)
class LoweringContext:
    """What cutting segments into rows needs to know."""

    items: list[Item]
    fold: Fold
    shapes: TemplateShapes
    stream: Callable[[int, str], int]  # (rank class, name) → stream number
    has_host: bool
    host_waits: bool  # for what a step receives


def lower_segment(
    segment: Segment, classes: tuple[int, ...], is_accompanied: bool, context: LoweringContext
) -> Template:
    """The rows of one segment on the rank classes of one stage; `is_accompanied` when communication or copies of
    these classes may be under way beside the chain."""
    return _SegmentLowering(segment, classes, is_accompanied, context).run()


class _SegmentLowering:
    def __init__(
        self,
        segment: Segment,
        classes: tuple[int, ...],
        is_accompanied: bool,
        context: LoweringContext,
    ) -> None:
        self.segment, self.classes, self.context = segment, classes, context
        self.is_accompanied = is_accompanied
        self.out = Template(is_accompanied=is_accompanied)
        self.rows: list[tuple[int, int, int, float, tuple[int, ...]]] = []  # columns-to-be of `out`
        self.movers: dict[Use, dict[int, list[int]]] = {}
        self.streams: dict[tuple[int, str], int] = {}
        self.previous = [-1] * len(classes)  # the chain row each class ran last
        self.waits: dict[
            int, list[tuple[int, int]]
        ] = {}  # chain position → (class position, async row)
        self.lockstep: dict[
            int, list[list[int]]
        ] = {}  # where a piece starts that classes run in lockstep → their positions

    def run(self) -> Template:
        out, segment = self.out, self.segment
        out.first = [-1] * len(self.classes)
        out.lead = [-1] * len(self.classes)
        pending = sorted(segment.asyncs, key=lambda a: a.after)
        alone = [[position] for position in range(len(self.classes))]
        for low, high in pairwise(self._cuts()):
            pending = self._issue(pending, low)
            if high - low == 1 and self._is_apart(int(segment.chain[low])):
                self._collective(low)
            else:
                self._piece(low, high, self.lockstep.get(low, alone))
        self._issue(pending, len(segment.chain))
        out.last = list(self.previous)
        out.sends = [-1] * len(self.classes)
        if segment.send is not None:
            self._send(segment.send)
        self._fill_columns()
        return out

    def _fill_columns(self) -> None:
        out = self.out
        if self.rows:
            columns = map(list, zip(*self.rows, strict=True))
            out.kind, out.shape, out.rank_class, out.workspace, out.streams = columns
        out.memory = [0.0] * len(self.rows)
        for row in out.last:
            if row >= 0:
                out.memory[row] = self.segment.memory

    def _cuts(self) -> list[int]:
        chain = self.segment.chain
        cuts = {0, len(chain)}
        for entry in self.segment.asyncs:
            cuts.add(entry.after)
            if entry.before is not None:
                cuts.add(entry.before)
        numbers = sorted(set(chain.tolist()))
        apart = [n for n in numbers if self._is_apart(n)]
        if not apart:
            return sorted(cuts)
        places = np.flatnonzero(np.isin(chain, apart)).tolist()
        runs = self._runs(numbers)
        if runs is not None:
            ends = [0, *(end for end, _ in runs)]
            self.lockstep = {low: who for low, (_, who) in zip(ends, runs, strict=False)}
            return sorted(cuts | set(ends))
        for place in places:
            cuts.update((place, place + 1))
        return sorted(cuts)

    def _is_apart(self, number: int) -> bool:
        """Whether a collective of the chain must be a task of its own."""
        work = self.context.items[number].work
        if not isinstance(work, Communication):
            return False
        fold = self.context.fold
        if self.is_accompanied:
            return True
        for rank_class in self.classes:
            group = fold.group_class(work.group, rank_class)
            if len(fold.groups[work.group].members[group]) > 1 or fold.shared[work.group][group]:
                return True
        return False

    def _runs(self, numbers: list[int]) -> list[tuple[int, list[list[int]]]] | None:
        """Runs of the chain that classes go through in lockstep: where each ends, and the positions of those that go
        together; None where some are not."""
        chain = self.segment.chain
        together = {n: self._together(self.context.items[n]) for n in numbers}
        if self.is_accompanied or None in together.values():
            return None
        runs: list[tuple[int, list[list[int]]]] = []
        for place in np.flatnonzero(np.isin(chain, [n for n in numbers if together[n]])).tolist():
            mine = together[int(chain[place])] or []
            if runs and runs[-1][1] == mine:
                runs.pop()
            runs.append((place + 1, mine))
        if not self.context.host_waits:
            runs[-1] = (len(chain), runs[-1][1])
        return runs

    def _together(self, item: Item) -> list[list[int]] | None:
        """Positions of classes that start and end an item together: none where it is each class's own, None where
        they do not take the same time for what they do together."""
        if not isinstance(item.work, (Compute, Communication)):
            return None
        return [] if item.communication is None else self._meeting(item.communication)

    def _meeting(self, work: Communication) -> list[list[int]] | None:
        """Positions of classes that start and end a collective together; None where others have a part in that."""
        fold = self.context.fold
        if (work.group, work.collective) in fold.subgroups:
            return None
        movers = self._movers(work)
        for mover, positions in movers.items():
            members = tuple(self.classes[position] for position in positions)
            is_whole = members == fold.groups[work.group].members[mover]
            is_alike = len({int(fold.device_of[c]) for c in members}) == 1
            if not is_whole or not is_alike or fold.shared[work.group][mover]:
                return None
        return list(movers.values())

    def _row(
        self,
        kind: int,
        shape: int,
        rank_class: int,
        streams: tuple[int, ...],
        workspace: float = 0.0,
    ) -> int:
        self.rows.append((kind, shape, rank_class, workspace, streams))
        return len(self.rows) - 1

    def _stream(self, position: int, name: str) -> int:
        found = self.streams.get((position, name))
        if found is None:
            found = self.context.stream(self.classes[position], name)
            self.streams[position, name] = found
        return found

    def _launch(self, shape: int, position: int) -> int | None:
        """Host time to issue a shape: the lead the device must wait for, and the rest."""
        if not self.context.has_host:
            return None
        rank_class = self.classes[position]
        host = (self._stream(position, "host"),)
        lead = self._row(LAUNCH, shape, rank_class, host)
        self._row(LAUNCH_REST, shape, rank_class, host)
        if self.out.lead[position] < 0:
            self.out.lead[position] = lead
        return lead

    def _piece(self, low: int, high: int, together: list[list[int]]) -> None:
        """A row for each class; those at positions that go together wait for all that one of them waits for."""
        shape = self.context.shapes.number(self.segment.chain[low:high])
        for members in together:
            leads = [self._launch(shape, position) for position in members]
            before = [self.previous[position] for position in members]
            rows = {}
            for position in members:
                rank_class = self.classes[position]
                compute = (self._stream(position, "compute"),)
                row = self._row(CHAIN, shape, rank_class, compute, self.segment.workspace)
                self._follow(position, row, leads, low)
                rows[position] = row
            if low == 0 and len(members) > 1:
                self.out.also |= {p: [rows[q] for q in members if q != p] for p in members}
            elif low > 0:
                self.out.edges += [
                    (end, rows[p])
                    for p, own in zip(members, before, strict=True)
                    for end in dict.fromkeys(before)
                    if end not in (own, -1)
                ]

    def _collective(self, low: int) -> None:
        number = int(self.segment.chain[low])
        work = self.context.items[number].work
        assert isinstance(work, Communication)
        if (work.group, work.collective) in self.context.fold.subgroups:
            raise Bug(f"{work.collective} on a chain: nothing there waits for neighbours alone.")
        shape = self.context.shapes.number(self.segment.chain[low : low + 1])
        for members in self._movers(work).values():
            leads = [self._launch(shape, position) for position in members]
            streams = tuple(self._stream(p, "compute") for p in members)
            first = self.classes[members[0]]
            row = self._row(COLLECTIVE, shape, first, streams, self.segment.workspace)
            for position, lead in zip(members, leads, strict=True):
                self._follow(position, row, [lead], low)

    def _follow(self, position: int, row: int, leads: list[int | None], low: int) -> None:
        self.out.edges += [(lead, row) for lead in leads if lead is not None]
        for where, waited in self.waits.get(low, ()):
            if where == position:
                self.out.edges.append((waited, row))
        if self.out.first[position] < 0:
            self.out.first[position] = row
        self.previous[position] = row

    def _movers(self, work: Communication) -> dict[int, list[int]]:
        """Positions of this stage's classes that move together, by their class of group or subgroup."""
        fold, use = self.context.fold, (work.group, work.collective)
        found = self.movers.get(use)
        if found is not None:
            return found
        found = self.movers[use] = {}
        for position, rank_class in enumerate(self.classes):
            mover = fold.mover_class(work.group, work.collective, rank_class)
            found.setdefault(mover, []).append(position)
        return found

    def _issue(self, pending: list[Async], at: int) -> list[Async]:
        while pending and pending[0].after <= at:
            self._async(pending.pop(0))
        return pending

    def _async(self, entry: Async) -> None:
        work = self.context.items[entry.item].work
        shape = self.context.shapes.number(np.array([entry.item], dtype=np.int32))
        if isinstance(work, Communication):
            groups, kind = self._movers(work), COLLECTIVE
        else:
            groups, kind = {p: [p] for p in range(len(self.classes))}, COPY
        rows: dict[int, int] = {}
        for mover, members in groups.items():
            streams = tuple(self._stream(p, entry.stream) for p in members)
            row = rows[mover] = self._row(kind, shape, self.classes[members[0]], streams)
            for position in members:
                if self.previous[position] >= 0:
                    self.out.edges.append((self.previous[position], row))
                else:
                    self.out.at_start.append((position, row))
                if entry.before is not None:
                    self.waits.setdefault(entry.before, []).append((position, row))

        if isinstance(work, Communication):
            for mover, members in groups.items():
                sources = self.context.fold.sources(work.group, work.collective, mover)
                self._receive(entry, members, [rows[other] for other in sources])

    def _receive(self, entry: Async, members: list[int], rows: list[int]) -> None:
        """What neighbours send is needed where one's own exchange is, but does not hold up one's own sends."""
        for position in members:
            for row in rows:
                if entry.before is not None:
                    self.waits.setdefault(entry.before, []).append((position, row))
                else:
                    self.out.received[position, self.rows[row][-1][0]] = row

    def _send(self, number: int) -> None:
        work = self.context.items[number].work
        assert isinstance(work, Communication)
        shape = self.context.shapes.number(np.array([number], dtype=np.int32))
        name = "send_forward" if work.group.offset > 0 else "send_backward"
        for position, rank_class in enumerate(self.classes):
            stream = (self._stream(position, name),)
            row = self._row(TRANSFER, shape, rank_class, stream)
            if self.previous[position] >= 0:
                self.out.edges.append((self.previous[position], row))
            self.out.sends[position] = row
