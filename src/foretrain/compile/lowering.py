"""Lowering: a segment is cut into rows (tasks to be), once for all the micro-batches that run it.

The chain is cut only where something can come between: where work beside it starts or is waited for, and
around collectives that several rank classes take part in, whose links carry other traffic, or that have something
beside them which slows kernels but not them. Everything else runs as one task, which is exact because nothing outside can
change what happens inside.

Classes that meet in all collectives of a run of a chain go through it in *lockstep*: their devices are alike and leave
each collective together, so that up to the last one the run is one task of each, begun when all of them can. Where
hosts wait for what a step receives they may differ, and what follows the last collective is each class's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

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
from foretrain.compile.template import Template, TemplateShapes
from foretrain.errors import Bug


class _Beside(NamedTuple):
    """Work beside the chain as every entry of a segment has it that issues the same: the classes (positions) that move
    together, the streams they do it on, and which of them wait for what others send (by their places in these lists)."""

    kind: int
    shape: int
    members: list[list[int]]
    streams: list[tuple[int, ...]]
    waiting: list[tuple[list[int], list[int]]]


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
        self.chain: list[int] = segment.chain.tolist()
        self.is_accompanied = is_accompanied
        self.out = Template(is_accompanied=is_accompanied)
        self.rows: list[tuple[int, int, int, float, tuple[int, ...]]] = []  # columns-to-be of `out`
        self.movers: dict[Use, dict[int, list[int]]] = {}
        self.lanes: dict[tuple[int, str], tuple[int, ...]] = {}
        self.apart: set[int] = set()  # collectives of the chain that are tasks of their own …
        self.collectives: dict[
            int, tuple[int, list[list[int]]]
        ] = {}  # … shape and who goes together
        self.beside: dict[tuple[int, str], _Beside] = {}
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
        pending = deque(sorted(segment.asyncs, key=lambda a: a.after))
        alone = [[position] for position in range(len(self.classes))]
        for low, high in pairwise(self._cuts()):
            self._issue(pending, low)
            if high - low == 1 and self.chain[low] in self.apart:
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
        cuts = {0, len(self.chain)}
        for entry in self.segment.asyncs:
            cuts.add(entry.after)
            if entry.before is not None:
                cuts.add(entry.before)
        numbers = sorted(set(self.chain))
        self.apart = {n for n in numbers if self._is_apart(n)}
        if not self.apart:
            return sorted(cuts)
        runs = self._runs(numbers)
        if runs is not None:
            ends = [0, *(end for end, _ in runs)]
            self.lockstep = {low: who for low, (_, who) in zip(ends, runs, strict=False)}
            return sorted(cuts | set(ends))
        places = [place for place, number in enumerate(self.chain) if number in self.apart]
        return sorted(cuts.union(places, (place + 1 for place in places)))

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
        together = {n: self._together(self.context.items[n]) for n in numbers}
        if self.is_accompanied or None in together.values():
            return None
        runs: list[tuple[int, list[list[int]]]] = []
        for place, number in enumerate(self.chain):
            mine = together[number]
            if not mine:
                continue
            if runs and runs[-1][1] == mine:
                runs.pop()
            runs.append((place + 1, mine))
        if not self.context.host_waits:
            runs[-1] = (len(self.chain), runs[-1][1])
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

    def _lane(self, position: int, name: str) -> tuple[int, ...]:
        """The stream of that name of one class, alone."""
        found = self.lanes.get((position, name))
        if found is None:
            found = (self.context.stream(self.classes[position], name),)
            self.lanes[position, name] = found
        return found

    def _lanes(self, members: list[int], name: str) -> tuple[int, ...]:
        if len(members) == 1:
            return self._lane(members[0], name)
        return tuple(stream for position in members for stream in self._lane(position, name))

    def _launch(self, shape: int, position: int) -> int | None:
        """Host time to issue a shape: the lead the device must wait for, and the rest."""
        if not self.context.has_host:
            return None
        rank_class, host = self.classes[position], self._lane(position, "host")
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
                rank_class, compute = self.classes[position], self._lane(position, "compute")
                row = self._row(CHAIN, shape, rank_class, compute, self.segment.workspace)
                self._follow(position, row, leads, low)
                rows[position] = row
            if len(members) > 1:
                self._meet(members, before, rows, low)

    def _meet(self, members: list[int], before: list[int], rows: dict[int, int], low: int) -> None:
        """Those that go together begin when all of them are done with what they ran before."""
        if low == 0:
            self.out.also |= {p: [rows[q] for q in members if q != p] for p in members}
            return
        self.out.edges += [
            (end, rows[p])
            for p, own in zip(members, before, strict=True)
            for end in dict.fromkeys(before)
            if end not in (own, -1)
        ]

    def _collective(self, low: int) -> None:
        shape, together = self._alone(low)
        for members in together:
            leads = [self._launch(shape, position) for position in members]
            streams, first = self._lanes(members, "compute"), self.classes[members[0]]
            row = self._row(COLLECTIVE, shape, first, streams, self.segment.workspace)
            for position, lead in zip(members, leads, strict=True):
                self._follow(position, row, [lead], low)

    def _alone(self, low: int) -> tuple[int, list[list[int]]]:
        """The shape of a collective of the chain, and the positions of those that go through it together."""
        number = self.chain[low]
        found = self.collectives.get(number)
        if found is None:
            work = self.context.items[number].work
            assert isinstance(work, Communication)
            if (work.group, work.collective) in self.context.fold.subgroups:
                raise Bug(
                    f"{work.collective} on a chain: nothing there waits for neighbours alone."
                )
            shape = self.context.shapes.number(self.segment.chain[low : low + 1])
            found = self.collectives[number] = shape, list(self._movers(work).values())
        return found

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

    def _issue(self, pending: deque[Async], at: int) -> None:
        while pending and pending[0].after <= at:
            self._async(pending.popleft())

    def _async(self, entry: Async) -> None:
        key = (entry.item, entry.stream)
        beside = self.beside.get(key)
        if beside is None:
            beside = self.beside[key] = self._beside(*key)
        waits = None if entry.before is None else self.waits.setdefault(entry.before, [])
        rows = [
            self._row(beside.kind, beside.shape, self.classes[members[0]], streams)
            for members, streams in zip(beside.members, beside.streams, strict=True)
        ]
        for row, members in zip(rows, beside.members, strict=True):
            for position in members:
                if self.previous[position] >= 0:
                    self.out.edges.append((self.previous[position], row))
                else:
                    self.out.at_start.append((position, row))
                if waits is not None:
                    waits.append((position, row))
        for members, sources in beside.waiting:
            self._receive(waits, members, [rows[source] for source in sources])

    def _beside(self, number: int, stream: str) -> _Beside:
        work, fold = self.context.items[number].work, self.context.fold
        shape = self.context.shapes.number(np.array([number], dtype=np.int32))
        members, kind = [[position] for position in range(len(self.classes))], COPY
        waiting: list[tuple[list[int], list[int]]] = []
        if isinstance(work, Communication):
            movers = self._movers(work)
            members, kind = list(movers.values()), COLLECTIVE
            places = {mover: place for place, mover in enumerate(movers)}
            sources = [fold.sources(work.group, work.collective, mover) for mover in movers]
            waiting = [
                (who, [places[m] for m in s]) for who, s in zip(members, sources, strict=True) if s
            ]
        streams = [self._lanes(together, stream) for together in members]
        return _Beside(kind, shape, members, streams, waiting)

    def _receive(
        self, waits: list[tuple[int, int]] | None, members: list[int], rows: list[int]
    ) -> None:
        """What neighbours send is needed where one's own exchange is, but does not hold up one's own sends."""
        for position in members:
            for row in rows:
                if waits is not None:
                    waits.append((position, row))
                else:
                    self.out.received[position, self.rows[row][-1][0]] = row

    def _send(self, number: int) -> None:
        work = self.context.items[number].work
        assert isinstance(work, Communication)
        shape = self.context.shapes.number(np.array([number], dtype=np.int32))
        name = "send_forward" if work.group.offset > 0 else "send_backward"
        for position, rank_class in enumerate(self.classes):
            row = self._row(TRANSFER, shape, rank_class, self._lane(position, name))
            if self.previous[position] >= 0:
                self.out.edges.append((self.previous[position], row))
            self.out.sends[position] = row
