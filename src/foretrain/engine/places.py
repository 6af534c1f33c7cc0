"""Interference: what runs on a place slows the other activities of that place.

A task of an activity is *at work* on the places of its streams: a flow while its data moves, any other
task from start to end. Rates, not stretched durations: the fixed work of a task, and the data of a flow,
proceed at a rate that changes whenever something begins or ends on one of its places. The arithmetic, which
the compiled engine repeats operation by operation:

    factor = the greatest over the task's places of 1 + sensitivity * (product - 1), where
    product = 1, times slowdown[own activity, b] for each activity b of which another task is at work
              on the place, in rising order of b, each b once

    fixed work, when its factor changes (it begins with the factor infinity, hence without progress):
        remaining = max(0, remaining - (now - updated) / factor);  finish = now + remaining * new factor
    a flow moves at (its max-min rate / factor), and keeps all of its share; see `fluid`

Factors are taken when all events of one and the same time are through. A task whose factor comes out the
same keeps its finish to the last bit, and one that nothing ever touches ends at start + duration exactly.
A task too short to move the clock (start + duration == start) touches nothing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from foretrain.engine.program import Program


class Places:
    """Which tasks are at work where, and how much that slows each of them."""

    def __init__(self, program: Program) -> None:
        n = len(program)
        self._places: list[list[int]] = [[] for _ in range(n)]
        self._activity: list[int] = [0] * n
        self._sensitivity: list[float] = [1.0] * n
        self._slowdown: list[list[float]] = []
        self._at_work: dict[int, dict[int, None]] = defaultdict(dict)
        self._counts: dict[int, Counter[int]] = defaultdict(Counter)
        self._changed: dict[int, None] = {}
        if program.activity is None or program.stream_place is None or program.slowdown is None:
            return
        self._activity = program.activity.tolist()
        self._slowdown = program.slowdown.tolist()
        if program.sensitivity is not None:
            self._sensitivity = program.sensitivity.tolist()
        for task in range(n):
            if self._activity[task]:
                streams = program.stream_ids[
                    program.stream_ptr[task] : program.stream_ptr[task + 1]
                ]
                places = program.stream_place[streams].tolist()
                self._places[task] = sorted({place for place in places if place >= 0})

    def concern(self, task: int) -> bool:
        """Whether the task takes part at all."""
        return bool(self._places[task])

    def enter(self, task: int) -> None:
        """The task begins to work on its places."""
        for place in self._places[task]:
            self._at_work[place][task] = None
            self._counts[place][self._activity[task]] += 1
            self._changed[place] = None

    def leave(self, task: int) -> None:
        """The task is done with its places."""
        for place in self._places[task]:
            del self._at_work[place][task]
            self._counts[place][self._activity[task]] -= 1
            self._changed[place] = None

    def factors(self) -> Iterator[tuple[int, float]]:
        """Task and factor, for all tasks at work where something began or ended since the last call."""
        seen = {task: None for place in self._changed for task in self._at_work[place]}
        self._changed = {}
        for task in seen:
            yield task, max(self._factor(task, place) for place in self._places[task])

    def _factor(self, task: int, place: int) -> float:
        activity, product = self._activity[task], 1.0
        for other, factor in enumerate(self._slowdown[activity]):
            if other and self._counts[place][other] > (other == activity):
                product *= factor
        return 1.0 + self._sensitivity[task] * (product - 1.0)


@dataclass(slots=True)
class _Task:
    remaining: float
    factor: float = math.inf
    updated: float = 0.0
    finish: float = math.inf


class Work:
    """The tasks of fixed work under way, and when each finishes if nothing changes."""

    def __init__(self) -> None:
        self._tasks: dict[int, _Task] = {}

    def __contains__(self, task: int) -> bool:
        return task in self._tasks

    def add(self, task: int, seconds: float) -> None:
        """Let a task begin; it makes no progress until `slow` is called."""
        self._tasks[task] = _Task(seconds)

    def remove(self, task: int) -> None:
        """Take away a task that has ended."""
        del self._tasks[task]

    def finish(self, task: int) -> float:
        """When the task ends if nothing changes."""
        return self._tasks[task].finish

    def slow(self, task: int, factor: float, now: float) -> bool:
        """Let the task proceed at 1 / factor from now on; whether that changes its finish."""
        known = self._tasks[task]
        if factor == known.factor:
            return False
        known.remaining = max(0.0, known.remaining - (now - known.updated) / known.factor)
        known.updated = now
        known.factor = factor
        known.finish = now + known.remaining * factor
        return True
