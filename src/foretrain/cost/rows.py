"""Rows: tasks of a graph that cost the same, and what they are made of; the same whatever anything costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foretrain.compile.columns import distinct
from foretrain.compile.execution import KIND_NAMES, Communication, ExecutionGraph

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """Tasks of one rank class, shape and kind that all have company or none. Rows of one (rank class, shape) share an
    entry of `classes` and `shapes`, whose items stand in `item[ptr[e]:ptr[e + 1]]`."""

    alike: Ints  # task → its row
    kind: Ints
    is_accompanied: NDArray[np.bool_]
    entry: Ints
    classes: Ints
    shapes: Ints
    ptr: Ints
    item: Ints
    owner: Ints  # the entry of each of those items …
    rank_class: Ints  # … and its class
    single: tuple[
        tuple[int, Communication, int], ...
    ]  # (entry, what it is, class) of lone collectives


def rows_of(graph: ExecutionGraph) -> Rows:
    shapes = len(graph.shape_ptr) - 1
    key = graph.task_class.astype(np.int64) * shapes + graph.task_shape
    key = (key * len(KIND_NAMES) + graph.task_kind) * 2 + graph.task_accompanied
    keys, alike = distinct(key)
    left, accompanied = np.divmod(keys, 2)
    pair, kind = np.divmod(left, len(KIND_NAMES))
    pairs, entry = distinct(pair)
    classes, shape = np.divmod(pairs, shapes)
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
        ptr=ptr,
        item=graph.shape_items[where].astype(np.int64),
        owner=np.repeat(np.arange(len(shape)), lengths),
        rank_class=np.repeat(classes, lengths),
        single=tuple(_single(graph, classes, low, np.flatnonzero(lengths == 1))),
    )


def _single(
    graph: ExecutionGraph, classes: Ints, low: Ints, entries: Ints
) -> list[tuple[int, Communication, int]]:
    found = []
    for entry in entries.tolist():
        work = graph.items[int(graph.shape_items[low[entry]])].work
        if isinstance(work, Communication):
            found.append((entry, work, int(classes[entry])))
    return found
