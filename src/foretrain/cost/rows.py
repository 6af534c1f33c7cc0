"""Rows: tasks of a graph that cost the same, and what they are made of; the same whatever anything costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.arrays import Bools, Ints
from foretrain.compile.columns import distinct
from foretrain.compile.execution import (
    BACKWARD,
    CHAIN,
    COLLECTIVE,
    FORWARD,
    KIND_NAMES,
    Communication,
    ExecutionGraph,
)


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """Tasks of one rank class, shape and kind that are all accompanied or not, and a partner or none. Rows of one (rank
    class, shape, partner) share an entry of `classes`, `shapes` and `is_lone`, whose items stand in
    `item[ptr[e]:ptr[e + 1]]`."""

    alike: Ints  # task → its row
    kind: Ints
    is_accompanied: Bools
    entry: Ints
    classes: Ints
    shapes: Ints
    is_lone: Bools
    ptr: Ints
    item: Ints
    owner: Ints  # the entry of each of those items …
    rank_class: Ints  # … and its class
    single: tuple[
        tuple[int, Communication, int], ...
    ]  # (entry, what it is, class) of lone collectives


def rows_of(graph: ExecutionGraph, has_partners: bool) -> Rows:
    """`has_partners`: what a pass exchanges may hide under one in the other direction."""
    shapes = len(graph.shape_ptr) - 1
    key = graph.task_class.astype(np.int64) * shapes + graph.task_shape
    key = key * 2 + (_without_partner(graph) if has_partners else 0)
    key = (key * len(KIND_NAMES) + graph.task_kind) * 2 + graph.task_accompanied
    keys, alike = distinct(key)
    left, accompanied = np.divmod(keys, 2)
    pair, kind = np.divmod(left, len(KIND_NAMES))
    pairs, entry = distinct(pair)
    classes, shape = np.divmod(pairs // 2, shapes)
    low, high = graph.shape_ptr[shape].astype(np.int64), graph.shape_ptr[shape + 1]
    lengths = high - low
    ptr = np.concatenate([[0], np.cumsum(lengths)])
    where = np.arange(ptr[-1]) - np.repeat(ptr[:-1], lengths) + np.repeat(low, lengths)
    return Rows(
        alike=alike,
        kind=kind,
        is_accompanied=accompanied > 0,
        entry=entry,
        classes=classes,
        shapes=shape,
        is_lone=pairs % 2 > 0,
        ptr=ptr,
        item=graph.shape_items[where].astype(np.int64),
        owner=np.repeat(np.arange(len(shape)), lengths),
        rank_class=np.repeat(classes, lengths),
        single=tuple(_single(graph, classes, low, np.flatnonzero(lengths == 1))),
    )


def _without_partner(graph: ExecutionGraph) -> Bools:
    """[tasks] passes beside which none goes the other way: forward before the first backward pass of a device,
    backward after its last forward pass. Exchanges of experts hide under a partner (DeepSeek-V3, arXiv 2412.19437,
    section 3.2.1; Megatron Core, overlap_moe_expert_parallel_comm), so these wait for theirs."""
    number, owner = np.arange(graph.tasks), graph.task_class
    works = (graph.task_kind == CHAIN) | (graph.task_kind == COLLECTIVE)
    ahead = works & (graph.task_phase == FORWARD)
    back = works & (graph.task_phase == BACKWARD)
    first = np.full(graph.fold.classes, graph.tasks)
    last = np.full(graph.fold.classes, -1)
    np.minimum.at(first, owner[back], number[back])
    np.maximum.at(last, owner[ahead], number[ahead])
    found = (ahead & (number < first[owner])) | (back & (number > last[owner]))
    return np.asarray(found, dtype=np.bool_)


def _single(
    graph: ExecutionGraph, classes: Ints, low: Ints, entries: Ints
) -> list[tuple[int, Communication, int]]:
    found = []
    for entry in entries.tolist():
        work = graph.items[int(graph.shape_items[low[entry]])].work
        if isinstance(work, Communication):
            found.append((entry, work, int(classes[entry])))
    return found
