"""Segments: what a rank runs in one step of the schedule, before it is cut into tasks.

A segment is a chain of items plus work that runs beside it: each `Async` starts once `after` items of the
chain are done and must end before item `before` starts (or, without `before`, before the weights are updated).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from foretrain.arrays import Ints32
from foretrain.compile.execution import Item

T = TypeVar("T")
R = TypeVar("R")


def of_each(objects: Sequence[T], make: Callable[[T], R]) -> list[R]:
    """What is made of each: once for each object, for layers that are alike share theirs."""
    made = {key: make(one) for key, one in {id(one): one for one in objects}.items()}
    return [made[id(one)] for one in objects]


class Interner:
    """Distinct items in order of first use; equal items share a number."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._numbers: dict[Item, int] = {}
        self._runs: dict[int, tuple[tuple[Item, ...], Ints32]] = {}

    def copy(self) -> Interner:
        """The same items, to which others may be added."""
        other = Interner()
        other.items, other._numbers = self.items.copy(), self._numbers.copy()
        return other

    def number(self, item: Item) -> int:
        found = self._numbers.get(item)
        if found is None:
            found = self._numbers[item] = len(self.items)
            self.items.append(item)
        return found

    def run(self, items: tuple[Item, ...]) -> Ints32:
        """Numbers of a tuple of items; the same tuple object is looked up once."""
        known = self._runs.get(id(items))
        if known is None:
            numbers = np.array([self.number(item) for item in items], dtype=np.int32)
            known = self._runs[id(items)] = (
                items,
                numbers,
            )  # keeps the tuple alive, so ids stay unique
        return known[1]


class Async(NamedTuple):
    """`stream` names the queue it stands in; queues are first in, first out."""

    item: int
    stream: str
    after: int
    before: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Segment:
    """One step of the schedule on one stage. `memory` is kept (+) or freed (-) when it ends."""

    chain: Ints32
    asyncs: tuple[Async, ...] = ()
    memory: float = 0.0
    workspace: float = 0.0
    send: int | None = None  # item that passes the result on


def strung(parts: Iterable[Ints32]) -> tuple[Ints32, list[int]]:
    """Parts in a row, and where each starts."""
    arrays = list(parts)
    starts = np.concatenate([[0], np.cumsum([len(a) for a in arrays])]).astype(int).tolist()
    chain = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32)
    return chain.astype(np.int32), starts
