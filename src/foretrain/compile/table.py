"""A table of template rows, of which the tasks of a graph are copies: columns of tasks are looked up in it."""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Ints, Ints32
from foretrain.compile.template import T, Template


class TaskTable:
    """The rows of all templates one after the other."""

    def __init__(self, templates: list[Template]) -> None:
        self.templates = templates
        self.lengths = np.array([t.rows for t in templates], dtype=np.int64)
        self.start = np.cumsum(self.lengths) - self.lengths
        self.is_accompanied = np.repeat([t.is_accompanied for t in templates], self.lengths)

    def column(self, name: str, kind: type[T]) -> NDArray[T]:
        return np.concatenate([template.column(name, kind) for template in self.templates])

    def streams(self, row: Ints) -> tuple[Ints32, Ints32]:
        """The streams of every task, as pointers into a list of them."""
        rows = [streams for template in self.templates for streams in template.streams]
        lengths = np.fromiter(map(len, rows), np.int32, len(rows))
        listed = np.fromiter(chain.from_iterable(rows), np.int32)
        first = np.cumsum(lengths, dtype=np.int32) - lengths
        counts = lengths[row]
        pointers = np.zeros(len(row) + 1, dtype=np.int32)
        np.cumsum(counts, out=pointers[1:])
        return pointers, listed[
            np.arange(pointers[-1]) + np.repeat(first[row] - pointers[:-1], counts)
        ]


def edges_csr(total: int, sources: list[Ints], targets: list[Ints]) -> tuple[Ints32, Ints32]:
    source = np.concatenate(sources) if sources else np.zeros(0, dtype=np.int64)
    target = np.concatenate(targets) if targets else np.zeros(0, dtype=np.int64)
    order = np.argsort(source, kind="stable")
    pointers = np.zeros(total + 1, dtype=np.int32)
    np.cumsum(np.bincount(source, minlength=total), out=pointers[1:])
    return pointers, target[order].astype(np.int32)
