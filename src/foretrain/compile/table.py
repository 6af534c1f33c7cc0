"""A table of template rows, of which the tasks of a graph are copies: columns of tasks are looked up in it."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Ints, Ints32
from foretrain.compile.template import Template

T = TypeVar("T", bound=np.generic)


class TaskTable:
    """The rows of all templates one after the other."""

    def __init__(self, templates: list[Template]) -> None:
        self.templates = templates
        self.lengths = np.array([t.rows for t in templates], dtype=np.int64)
        self.start = np.cumsum(self.lengths) - self.lengths
        self.has_company = np.repeat([t.has_company for t in templates], self.lengths)

    def column(self, name: str, kind: type[T]) -> NDArray[T]:
        values = [value for template in self.templates for value in getattr(template, name)]
        return np.array(values, dtype=kind)

    def streams(self, row: Ints) -> tuple[Ints32, Ints32]:
        """The streams of every task, as pointers into a list of them."""
        found = [streams for template in self.templates for streams in template.streams]
        counts = np.array([len(streams) for streams in found], dtype=np.int32)
        pointers = np.zeros(len(row) + 1, dtype=np.int32)
        np.cumsum(counts[row], out=pointers[1:])
        ids = np.zeros(int(pointers[-1]), dtype=np.int32)
        for place in range(int(counts.max(initial=0))):
            number = np.array([s[place] if len(s) > place else -1 for s in found], dtype=np.int32)
            if place == 0 and counts.min(initial=1) > 0:
                ids[pointers[:-1]] = number[row]
                continue
            tasks = np.flatnonzero(counts[row] > place)
            ids[pointers[tasks] + place] = number[row[tasks]]
        return pointers, ids
