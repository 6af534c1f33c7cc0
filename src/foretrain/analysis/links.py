"""Links: how much of the step each kind of link is in use, by what, and when.

Traffic is gathered per distinct (rank class, shape): all tasks of such a pair put the same bytes on the same
links. Bytes are those that cross a link; how long they keep it busy is counted apart, as few flows reach its rate. Collectives inside chains are known to every rank class that takes part; they are counted once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from foretrain.analysis.prediction import LinkFlows, LinkUse
from foretrain.arrays import Bools, Floats, Ints
from foretrain.compile.execution import (
    CHAIN,
    COLLECTIVE,
    TRANSFER,
    Communication,
    Communicator,
    ExecutionGraph,
)
from foretrain.compile.passes.fold import Fold
from foretrain.cost.cost import Costs
from foretrain.cost.network import EngineRoutes, FlowRoutes

MOST_LINKS = 256
"""Kinds of links an answer holds: all of them for folded clusters, the busiest for irregular ones."""
MOST_WITH_FLOWS = 24
"""Kinds of links whose flows are kept one by one."""


def link_use(
    graph: ExecutionGraph,
    costs: Costs,
    name: Callable[[int], str],
    step_seconds: float,
    limit: int = MOST_LINKS,
    counts: Ints | None = None,
) -> tuple[LinkUse, ...]:
    """The busiest links, one of each kind, over one step; `counts` says how many links each kind has."""
    routes = costs.network_routes
    pairs = _pairs(graph)
    traffic = _traffic(graph, costs, pairs)
    moved = traffic.bytes * pairs.times[traffic.pair]
    crossed = np.bincount(traffic.link, moved, len(routes.capacity))
    busy = traffic.busy * pairs.times[traffic.pair]
    load = np.bincount(traffic.link, busy, len(routes.capacity))
    order = np.argsort(-load / routes.capacity, kind="stable")
    rows = []
    for rank, k in enumerate(order[:limit].tolist()):
        if load[k] <= 0:
            break
        mine = traffic.on(k)
        sent, received = _stages(graph, pairs, mine)
        called = name(int(routes.example[k]))
        rows.append(
            LinkUse(
                name=called,
                is_network=bool(routes.on_network[k]),
                bytes=float(crossed[k]),
                bandwidth=float(routes.capacity[k]),
                share=float(load[k] / routes.capacity[k] / step_seconds),
                kind=link_kind(called),
                count=0 if counts is None else int(counts[k]),
                traffic=_by_purpose(graph, pairs, mine),
                from_stages=sent,
                to_stages=received,
                flows=_flows(graph, pairs, mine) if rank < MOST_WITH_FLOWS else None,
            )
        )
    return tuple(rows)


def link_kind(name: str) -> str:
    """The pattern of a link's name: `domain3.device0->switch` is a `device->switch`."""
    inner = name.partition(".")[2] or name
    return re.sub(r"\d+(\.\d+)*", "", inner)


@dataclass(frozen=True, eq=False, slots=True)
class _Pairs:
    """Tasks of one rank class and shape: pair k is `task[ptr[k]:ptr[k + 1]]`, on a chain or not."""

    task: Ints
    ptr: Ints
    first: Ints
    times: Ints

    def of(self, pairs: Ints) -> tuple[Ints, Ints]:
        """The tasks of these pairs and, for each, which of the pairs it is of."""
        owner, place = _spread(self.times[pairs])
        return self.task[self.ptr[pairs][owner] + place], owner


def _pairs(graph: ExecutionGraph) -> _Pairs:
    kind, shapes = graph.task_kind, len(graph.shape_ptr) - 1
    # launches and copies move nothing over links
    tasks = np.flatnonzero((kind == CHAIN) | (kind == COLLECTIVE) | (kind == TRANSFER))
    key = graph.task_class.astype(np.int64)[tasks] * shapes + graph.task_shape[tasks]
    key = key * 2 + (kind[tasks] == CHAIN)
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.diff(key[order], prepend=-1))
    ptr = np.append(starts, len(tasks))
    return _Pairs(tasks[order], ptr, tasks[order[starts]], np.diff(ptr))


def _spread(length: Ints) -> tuple[Ints, Ints]:
    """Entries of ragged rows: the row each is in, and its place there."""
    owner = np.repeat(np.arange(len(length)), length)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)


@dataclass(frozen=True, eq=False, slots=True)
class _Traffic:
    """Entry i: each task of pair `pair[i]` puts `bytes[i]` on `link[i]`, by the collective of `item[i]`.

    The link is busy with them as long as with `busy[i]` bytes at its rate.
    """

    link: Ints
    bytes: Floats
    busy: Floats
    item: Ints
    pair: Ints

    def on(self, link: int) -> _Traffic:
        at = np.flatnonzero(self.link == link)
        return _Traffic(self.link[at], self.bytes[at], self.busy[at], self.item[at], self.pair[at])


def _traffic(graph: ExecutionGraph, costs: Costs, pairs: _Pairs) -> _Traffic:
    both = (_task_traffic(graph, costs, pairs), _chain_traffic(graph, costs, pairs))
    columns = ([getattr(part, name) for part in both] for name in _Traffic.__slots__)
    return _Traffic(*map(np.concatenate, columns))


def _task_traffic(graph: ExecutionGraph, costs: Costs, pairs: _Pairs) -> _Traffic:
    """What the engine moved."""
    pair = np.flatnonzero(costs.route[pairs.first] >= 0)
    task = pairs.first[pair]
    item = graph.shape_items[graph.shape_ptr[graph.task_shape[task]]].astype(np.int64)
    route = costs.route[task].astype(np.int64)
    volumes = (costs.moved[costs.alike[task]], costs.volume[task])
    return _on_links(costs.routes, route, volumes, item, pair)


def _chain_traffic(graph: ExecutionGraph, costs: Costs, pairs: _Pairs) -> _Traffic:
    """What collectives inside chains moved."""
    pair = np.flatnonzero(graph.task_kind[pairs.first] == CHAIN)
    shape = graph.task_shape[pairs.first[pair]]
    owner, place = _spread(np.diff(graph.shape_ptr)[shape].astype(np.int64))
    item = graph.shape_items[graph.shape_ptr[shape][owner] + place].astype(np.int64)
    rank_class = graph.task_class[pairs.first[pair]][owner]
    counted = _counted(graph, costs)[rank_class, item]
    owner, item, rank_class = owner[counted], item[counted], rank_class[counted]
    route = costs.item_route[rank_class, item]
    volumes = (costs.item_moved[rank_class, item], costs.item_volume[rank_class, item])
    return _on_links(costs.network_routes, route, volumes, item, pair[owner])


def _counted(graph: ExecutionGraph, costs: Costs) -> Bools:
    """[rank classes, items]: the first of the classes that run a collective on the same route speaks for all."""
    route = costs.item_route
    runs = np.flatnonzero((route >= 0).ravel() & (graph.item_runs > 0).ravel())
    item = runs % route.shape[1] if route.size else runs
    key = route.ravel()[runs] * max(1, route.shape[1]) + item
    _, first = np.unique(key, return_index=True)
    counted = np.zeros(route.size, dtype=np.bool_)
    counted[runs[first]] = True
    return counted.reshape(route.shape)


def _on_links(
    routes: FlowRoutes | EngineRoutes,
    route: Ints,
    volumes: tuple[Floats, Floats],
    item: Ints,
    pair: Ints,
) -> _Traffic:
    """Every route loads the links it crosses; `volumes`: bytes moved, and those that keep links as busy."""
    owner, place = _spread(np.diff(routes.ptr)[route].astype(np.int64))
    entry = routes.ptr[route][owner] + place
    link = routes.link[entry].astype(np.int64)
    moved, busy = (volume[owner] * routes.weight[entry] for volume in volumes)
    return _Traffic(link, moved, busy, item[owner], pair[owner])


def _moves(graph: ExecutionGraph, item: int) -> Communication:
    work = graph.items[item].communication
    assert work is not None
    return work


def _by_purpose(
    graph: ExecutionGraph, pairs: _Pairs, mine: _Traffic
) -> tuple[tuple[str, float], ...]:
    total: dict[str, float] = {}
    moved = (mine.bytes * pairs.times[mine.pair]).tolist()
    for item, amount in zip(mine.item.tolist(), moved, strict=True):
        purpose = _moves(graph, item).purpose
        total[purpose] = total.get(purpose, 0.0) + amount
    return tuple(sorted(total.items(), key=lambda row: -row[1]))


def _stages(
    graph: ExecutionGraph, pairs: _Pairs, mine: _Traffic
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pipeline stages whose ranks send, and receive, what crosses a link; those of most bytes first."""
    sent: dict[int, float] = {}
    received: dict[int, float] = {}
    ends: dict[tuple[Communicator, int], tuple[set[int], set[int]]] = {}
    classes = graph.task_class[pairs.first[mine.pair]].tolist()
    moved = (mine.bytes * pairs.times[mine.pair]).tolist()
    for item, rank_class, amount in zip(mine.item.tolist(), classes, moved, strict=True):
        group = _moves(graph, item).group
        which = graph.fold.group_class(group, rank_class)
        both = ends.get((group, which))
        if both is None:
            both = ends[group, which] = _ends(graph.fold, group, which)
        for total, stages in zip((sent, received), both, strict=True):
            for stage in stages:
                total[stage] = total.get(stage, 0.0) + amount
    return _ranked(sent), _ranked(received)


def _ends(fold: Fold, group: Communicator, group_class: int) -> tuple[set[int], set[int]]:
    """Stages of those that send and of those that receive."""
    folded = fold.groups[group]
    if group.kind == "shift":
        ranks = folded.groups[folded.examples[group_class]]
        sender, receiver = fold.stage_of[fold.rank_class[ranks]].tolist()
        return {sender}, {receiver}
    stages = {int(fold.stage_of[c]) for c in folded.members[group_class]}
    return stages, stages


def _ranked(total: dict[int, float]) -> tuple[int, ...]:
    return tuple(sorted(total, key=lambda stage: (-total[stage], stage)))


def _flows(graph: ExecutionGraph, pairs: _Pairs, mine: _Traffic) -> LinkFlows:
    """The tasks that cross a link, in order of their number."""
    crossing, inverse = np.unique(mine.pair, return_inverse=True)
    amount = np.bincount(inverse, mine.bytes, len(crossing)).astype(np.float64)
    whats: list[dict[str, None]] = [{} for _ in crossing]
    for pair, item in zip(inverse.tolist(), mine.item.tolist(), strict=True):
        whats[pair][_moves(graph, item).label] = None
    names: dict[str, int] = {}
    label = np.array([names.setdefault(", ".join(w), len(names)) for w in whats], dtype=np.int32)
    task, owner = pairs.of(crossing)
    order = np.argsort(task, kind="stable")
    owner = owner[order]
    return LinkFlows(task[order].astype(np.int32), amount[owner], label[owner], tuple(names))
