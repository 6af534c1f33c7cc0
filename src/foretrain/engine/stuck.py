"""Says why a program cannot finish: who waits for whom, and round which circle."""

from __future__ import annotations

from collections import deque

import numpy as np

from foretrain.arrays import Floats
from foretrain.engine.program import Program

SHOWN = 5


def describe(program: Program, end: Floats) -> str:
    """Name a few tasks that never start, what each waits for, and one circle of waiting."""
    stuck = np.flatnonzero(np.isnan(end))
    waits = _waits(program, end)
    lines = [f"{len(stuck)} of {len(end)} tasks can never start:"]
    for task in stuck[:SHOWN].tolist():
        reasons = ", ".join(f"{other} ({why})" for other, why in waits[task])
        lines.append(f"  task {task} waits for {reasons}")
    if len(stuck) > SHOWN:
        lines.append(f"  ... and {len(stuck) - SHOWN} more")
    circle = _circle(int(stuck[0]), waits)
    lines.append(f"dependency cycle: {_shortened(circle)}")
    return "\n".join(lines)


def _waits(program: Program, end: Floats) -> dict[int, list[tuple[int, str]]]:
    """For each stuck task the stuck tasks it waits for, with the reason."""
    stuck = np.isnan(end)
    waits: dict[int, list[tuple[int, str]]] = {int(t): [] for t in np.flatnonzero(stuck)}
    for task in waits:
        for waiting in program.succ[program.succ_ptr[task] : program.succ_ptr[task + 1]].tolist():
            waits[waiting].append((task, "its predecessor"))
    last: dict[int, int] = {}
    for task in waits:
        held = program.stream_ids[program.stream_ptr[task] : program.stream_ptr[task + 1]].tolist()
        for stream in held:
            if last.get(stream, task) != task:
                waits[task].append((last[stream], f"ahead of it on stream {stream}"))
            last[stream] = task
    return waits


def _circle(task: int, waits: dict[int, list[tuple[int, str]]]) -> list[int]:
    """A shortest circle of waiting through some task that waits, in the end, for itself."""
    seen: set[int] = set()
    while task not in seen:
        seen.add(task)
        task = waits[task][0][0]
    came_from: dict[int, int] = {}
    frontier = deque([task])
    while task not in came_from:
        waiting = frontier.popleft()
        for other, _ in waits[waiting]:
            if other not in came_from:
                came_from[other] = waiting
                frontier.append(other)
    path = [task, came_from[task]]
    while path[-1] != task:
        path.append(came_from[path[-1]])
    return path[::-1]


def _shortened(circle: list[int]) -> str:
    steps = [str(task) for task in circle]
    if len(steps) > 2 * SHOWN:
        steps[SHOWN:-SHOWN] = [f"... {len(steps) - 2 * SHOWN} more ..."]
    return " -> ".join(steps)
