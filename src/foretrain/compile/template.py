"""Templates: the rows (tasks to be) of a segment, and the distinct runs of items they stand for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from foretrain.arrays import Ints32

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
