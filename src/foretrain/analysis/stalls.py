"""Stalls: where the step goes, in words that add up to the step exactly.

Every rank class's main chain is read from start to end. Busy time is what the chain was doing. Idle time is
followed back along what each task waited for: while that was moving data the wait is communication, while it
was being issued the wait is the host's, and once it leads to another rank's chain it is the pipeline's
(another stage) or imbalance (the same stage).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.analysis.prediction import STALLS
from foretrain.arrays import Bools, Floats, Ints
from foretrain.compile.columns import order_of
from foretrain.compile.execution import (
    CHAIN,
    COLLECTIVE,
    COPY,
    LAUNCH,
    LAUNCH_REST,
    LOAD,
    TRANSFER,
    UPDATE,
    ExecutionGraph,
    Load,
)
from foretrain.cost.cost import Costs
from foretrain.engine import Run

ROUNDING = 1e-12
"""Of a task's seconds: what end - start may differ from its duration by."""
_NUMBER = {name: number for number, name in enumerate(STALLS)}


@dataclass(frozen=True, eq=False, slots=True)
class Stalls:
    """Seconds by rank class and cause; every row sums to the step."""

    by_class: Floats  # [rank classes, STALLS]

    def mean(self, weights: Ints) -> dict[str, float]:
        """Average over ranks."""
        total = (self.by_class * weights[:, None]).sum(axis=0) / weights.sum()
        return dict(zip(STALLS, total.tolist(), strict=True))


def stalls(graph: ExecutionGraph, costs: Costs, run: Run, step_seconds: float) -> Stalls:
    walk = _Walk(graph, costs, run)
    order, owner = graph.chains
    walk.add_busy(order, owner)
    walk.add_idle(order, owner, step_seconds)
    # Rounding of thousands of sums: what is missing to the exact step (some 1e-15 of it) is compute.
    walk.out[:, _NUMBER["compute"]] += step_seconds - walk.out.sum(axis=1)
    return Stalls(walk.out)


class _Walk:
    """A step that was run, and the seconds found so far, by rank class and cause."""

    def __init__(self, graph: ExecutionGraph, costs: Costs, run: Run) -> None:
        self.graph, self.costs, self.run = graph, costs, run
        self.out = np.zeros((graph.fold.classes, len(STALLS)))

    def _add(self, name: str, owner: Ints, seconds: Floats) -> None:
        np.add.at(self.out[:, _NUMBER[name]], owner, seconds)

    def add_busy(self, task: Ints, owner: Ints) -> None:
        costs, run = self.costs, self.run
        seconds = run.end[task] - run.start[task]
        is_chain = self.graph.task_kind[task] == CHAIN
        is_update = self.graph.task_phase[task] == UPDATE
        parts = costs.breakdown[costs.alike[task]]
        for column, name in enumerate(("compute", "interconnect", "network", "host")):
            value = np.where(is_chain, parts[:, column], 0.0)
            if name == "compute":
                self._add("optimizer", owner[is_update], value[is_update])
                value = np.where(is_update, 0.0, value)
            self._add(name, owner, value)
        crosses = costs.is_network[task]
        for name, flows in (
            ("network", ~is_chain & crosses),
            ("interconnect", ~is_chain & ~crosses),
        ):
            self._add(name, owner[flows], seconds[flows])
        slowed = is_chain & (costs.activity[task] > 0)
        lost = seconds[slowed] - costs.seconds[task[slowed]]
        lost[lost < ROUNDING * seconds[slowed]] = 0.0
        self._add_slowed(np.bincount(owner[slowed], lost, len(self.out)).astype(np.float64))

    def _add_slowed(self, lost: Floats) -> None:
        """Time kernels lost to what ran beside them goes to that: by class, shared by how long each kind took."""
        graph, costs, run = self.graph, self.costs, self.run
        beside = (costs.activity > 0) & (
            (graph.task_kind == COLLECTIVE) | (graph.task_kind == COPY)
        )
        seconds = np.where(beside, run.end - run.start, 0.0)
        task = graph.queued
        rank_class = np.array([c for c, _ in graph.streams], dtype=np.int64)[graph.stream_ids]
        network = np.bincount(rank_class, (seconds * costs.is_network)[task], len(lost))
        total = np.bincount(rank_class, seconds[task], len(lost))
        share = np.divide(network, total, out=np.zeros_like(total), where=total > 0.0)
        self.out[:, _NUMBER["network"]] += lost * share
        self.out[:, _NUMBER["interconnect"]] += lost * (1.0 - share)

    def add_idle(self, task: Ints, owner: Ints, step_seconds: float) -> None:
        """Gaps before tasks, and the wait for the end of the step."""
        graph, run = self.graph, self.run
        is_first = (
            np.concatenate([[True], owner[1:] != owner[:-1]]) if len(owner) else np.zeros(0, bool)
        )
        before = np.where(is_first, 0.0, np.concatenate([[0.0], run.end[task][:-1]]))
        begin, cause = _first_kernel(graph, self.costs, run, task)
        self._add("host", owner, run.start[task] - begin)
        classes = np.arange(graph.fold.classes)
        ends = np.zeros(graph.fold.classes)
        np.maximum.at(ends, owner, run.end[task])
        last = np.full(len(classes), int(np.argmax(run.end))) if graph.tasks else np.zeros(0, int)
        low = np.concatenate([before, ends])
        high = np.concatenate([begin, np.full(len(classes), step_seconds)])
        causes = np.concatenate([cause, last])
        self._follow(np.concatenate([owner, classes]), causes, low, high)

    def _follow(self, owner: Ints, cause: Ints, low: Floats, high: Floats) -> None:
        """Walk all gaps back together: what each cause covers of its gap is its share, the rest goes on."""
        graph, run = self.graph, self.run
        causes = _causes(graph, self.costs)
        on_chain, taking_part = _membership(graph)
        is_launch = (graph.task_kind == LAUNCH) | (graph.task_kind == LAUNCH_REST)
        classes, stage_of = graph.fold.classes, graph.fold.stage_of
        while True:
            open_ = (high > low) & (cause >= 0)
            owner, cause, low, high = owner[open_], cause[open_], low[open_], high[open_]
            if not len(owner):
                return
            other = ~_contains(taking_part, cause * classes + owner)
            elsewhere = stage_of[graph.task_class[cause]] != stage_of[owner]
            launches = is_launch[cause] & elsewhere
            is_chain = (on_chain[cause] & other) | launches
            name = np.where(
                is_chain,
                np.where(elsewhere, _NUMBER["bubble"], _NUMBER["imbalance"]),
                causes[cause],
            )
            # another rank's chain explains all that is left; anything else only while it ran
            start = np.where(is_chain, low, np.maximum(low, run.start[cause]))
            np.add.at(self.out, (owner, name), np.maximum(0.0, high - start))
            high = np.minimum(high, start)
            cause = run.waited_for[cause].astype(np.int64)


def _first_kernel(graph: ExecutionGraph, costs: Costs, run: Run, task: Ints) -> tuple[Floats, Ints]:
    """When the first kernel of each task could have begun, and what it waited for.

    A chain that runs as one task waits in front for all its launches; kernel by kernel it would begin as soon as
    the first is issued and wait for the others in between. What lies between the two is the host's, however the
    chain was cut.
    """
    begin, cause = run.start[task], run.waited_for[task].astype(np.int64)
    late = (graph.task_kind[task] == CHAIN) & (cause >= 0)
    late[late] = graph.task_kind[cause[late]] == LAUNCH
    if not late.any():
        return begin, cause
    ready, other = _without_launches(graph, run, task[late])
    issued = run.start[cause[late]] + costs.first_launch[costs.alike[task[late]]]
    begin[late] = np.minimum(begin[late], np.maximum(ready, issued))
    cause[late] = np.where(ready >= issued, other, cause[late])
    return begin, cause


def _without_launches(graph: ExecutionGraph, run: Run, task: Ints) -> tuple[Floats, Ints]:
    """When each task could have begun but for its launch, and the last thing (-1: nothing) it waited for then."""
    before, after = _waits(graph)
    asked = np.zeros(graph.tasks, dtype=np.bool_)
    asked[task] = True
    keep = asked[after] & (graph.task_kind[before] != LAUNCH)
    before, after = before[keep], after[keep]
    # of several that end together the first decides, as in the engine
    order = np.lexsort((-before, run.end[before], after))
    before, after = before[order], after[order]
    last = np.searchsorted(after, task, side="right") - 1
    has_other = (last >= 0) & (after[np.maximum(last, 0)] == task) if len(after) else last >= 0
    other = np.where(has_other, before[last], -1) if len(after) else last
    return np.where(has_other, run.end[other], 0.0), other


def _waits(graph: ExecutionGraph) -> tuple[Ints, Ints]:
    """Pairs (before, after): successors, and neighbours on a stream."""
    task = np.repeat(np.arange(graph.tasks), np.diff(graph.succ_ptr))
    on_stream = graph.queued
    order = order_of(graph.stream_ids)  # tasks are in order already
    streams, queued = graph.stream_ids[order], on_stream[order]
    same = streams[1:] == streams[:-1]
    before = np.concatenate([task, queued[:-1][same]])
    return before, np.concatenate([graph.succ.astype(np.int64), queued[1:][same]])


def _contains(ordered: Ints, values: Ints) -> Bools:
    """Whether each value is in an ascending array."""
    place = np.searchsorted(ordered, values)
    hit: Bools = ordered[np.minimum(place, len(ordered) - 1)] == values
    return hit


def _membership(graph: ExecutionGraph) -> tuple[Bools, Ints]:
    """Which tasks stand on somebody's main chain, and `task · classes + class` of all that take part in one."""
    task = graph.queued
    rank_class = np.array([c for c, _ in graph.streams], dtype=np.int64)
    is_compute = np.array([name == "compute" for _, name in graph.streams], dtype=np.bool_)
    on_chain = np.zeros(graph.tasks, dtype=np.bool_)
    on_chain[task[is_compute[graph.stream_ids]]] = True
    return on_chain, np.sort(
        task * graph.fold.classes + rank_class[graph.stream_ids], kind="stable"
    )


def _causes(graph: ExecutionGraph, costs: Costs) -> Ints:
    """The stall that waiting for a task of one's own class counts as."""
    names = np.full(graph.tasks, _NUMBER["compute"])
    kind = graph.task_kind
    flows = (kind == COLLECTIVE) | (kind == TRANSFER)
    names[flows] = np.where(costs.is_network[flows], _NUMBER["network"], _NUMBER["interconnect"])
    names[kind == COPY] = _NUMBER["interconnect"]
    names[(kind == LAUNCH) | (kind == LAUNCH_REST)] = _NUMBER["host"]
    for task in np.flatnonzero(kind == LOAD).tolist():
        work = graph.shape(int(graph.task_shape[task]))[0].work
        assert isinstance(work, Load)
        names[task] = _NUMBER[work.kind]
    return names
