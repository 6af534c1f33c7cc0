"""The readable engine: the oracle of the compiled one, and the fallback where that is absent.

Tasks without volume never wait in an event queue. As soon as all they wait for (predecessors, and the
previous task of each of their streams) has a known end, their own times follow:

    start = the latest of those ends (0 if there is none);  end = start + duration

Only flows need a clock, because their rates depend on who else flows at that moment. The queue holds
(time, task) pairs: a flow's data begins to move (at start + duration), or a flow ends. That is sound
because whatever an event at time t sets free starts at t or later, so no event can be added to the past.
Events of one and the same time are all taken before bandwidth is shared anew (see `fluid`).

Tasks of an activity on a place need the clock too, because they slow each other (see `places`): their work
begins, and ends, by way of the queue. Here all of them go that way; the compiled engine, which must come to
the same times, leaves out those that nothing on their places can touch and that touch nothing.
"""

from __future__ import annotations

import heapq
import itertools
import math

import numpy as np

from foretrain.arrays import Ints32
from foretrain.engine.fluid import Fluid, Route
from foretrain.engine.places import Places, Work
from foretrain.engine.program import Program, Run


def simulate(program: Program) -> Run:
    """Run the program; tasks that could never start have NaN as their end."""
    simulation = _Simulation(program)
    simulation.run()
    return Run(
        np.array(simulation.start, dtype=np.float64),
        np.array(simulation.end, dtype=np.float64),
        np.array(simulation.waited_for, dtype=np.int32),
    )


class _Simulation:
    def __init__(self, program: Program) -> None:
        n = len(program)
        self.duration: list[float] = program.duration.tolist()
        self.volume: list[float] = program.volume.tolist()
        self.route: list[int] = program.route.tolist()
        self.routes = _routes(program)
        self.caps: list[float] = program.route_cap.tolist()
        self.followers = followers(program)
        self.missing = [0] * n
        for waiting in self.followers:
            for task in waiting:
                self.missing[task] += 1
        self.start = [0.0] * n
        self.end = [math.nan] * n
        self.waited_for = [-1] * n
        self.events: list[tuple[float, int]] = []
        self.fluid = Fluid(program.capacity.tolist())
        self.places = Places(program)
        self.work = Work()

    def run(self) -> None:
        self._begin([task for task, missing in enumerate(self.missing) if missing == 0])
        while self.events:
            self._advance()

    def _begin(self, ready: list[int]) -> None:
        """Settle every task whose times are now known; those that need the clock go to the queue."""
        while ready:
            task = ready.pop()
            start = self.start[task]
            settled = start + self.duration[task]
            if self.volume[task] > 0.0:
                heapq.heappush(self.events, (settled, task))
            elif self.places.concern(task) and settled > start:
                heapq.heappush(self.events, (start, task))
            else:
                ready.extend(self._finish(task, settled))

    def _finish(self, task: int, end: float) -> list[int]:
        """Note a task's end; returns the tasks that waited for nothing else."""
        self.end[task] = end
        freed = []
        start, waited_for, missing = self.start, self.waited_for, self.missing
        for waiting in self.followers[task]:
            known = waited_for[waiting]
            if known < 0 or end > start[waiting] or (end == start[waiting] and task < known):
                start[waiting] = end
                waited_for[waiting] = task
            missing[waiting] -= 1
            if missing[waiting] == 0:
                freed.append(waiting)
        return freed

    def _advance(self) -> None:
        """Take all events of the earliest time, then slow what interferes and share bandwidth anew."""
        now = self.events[0][0]
        while self.events and self.events[0][0] == now:
            _, task = heapq.heappop(self.events)
            moving: Fluid | Work = self.fluid if self.volume[task] > 0.0 else self.work
            if task in moving:
                # what was rated anew leaves its former finish behind in the queue
                if moving.finish(task) == now:
                    moving.remove(task)
                    self.places.leave(task)
                    self._begin(self._finish(task, now))
            elif math.isnan(self.end[task]):
                self._move(task)
        for task, factor in self.places.factors():
            if task in self.fluid:
                self.fluid.slow(task, factor)
            elif self.work.slow(task, factor, now):
                heapq.heappush(self.events, (self.work.finish(task), task))
        for event in self.fluid.share(now):
            heapq.heappush(self.events, event)

    def _move(self, task: int) -> None:
        """The work of a task begins, or the data of a flow begins to move."""
        if self.volume[task] > 0.0:
            route = self.route[task]
            self.fluid.add(task, self.routes[route], self.caps[route], self.volume[task])
        else:
            self.work.add(task, self.duration[task])
        self.places.enter(task)


def followers(program: Program) -> list[list[int]]:
    """For each task those that wait for it: successors, and the next task of each of its streams."""
    after = _rows(program.succ_ptr, program.succ)
    next_on: list[int] = [-1] * program.streams
    held = _rows(program.stream_ptr, program.stream_ids)
    for task in range(len(program) - 1, -1, -1):
        for stream in held[task]:
            if next_on[stream] not in (-1, task):
                after[task].append(next_on[stream])
            next_on[stream] = task
    return after


def _rows(ptr: Ints32, items: Ints32) -> list[list[int]]:
    bounds, flat = ptr.tolist(), items.tolist()
    return [flat[low:high] for low, high in itertools.pairwise(bounds)]


def _routes(program: Program) -> list[Route]:
    hops = list(zip(program.route_link.tolist(), program.route_weight.tolist(), strict=True))
    bounds = program.route_ptr.tolist()
    return [hops[low:high] for low, high in itertools.pairwise(bounds)]
