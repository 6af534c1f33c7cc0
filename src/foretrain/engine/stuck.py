"""Says why a program cannot finish: who waits for whom, and round which circle."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter

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
    circle = _circle(waits)
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


def _circle(waits: dict[int, list[tuple[int, str]]]) -> list[int]:
    """Tasks of which each waits for the next, from the first of them round to itself."""
    try:
        TopologicalSorter({t: [other for other, _ in ways] for t, ways in waits.items()}).prepare()
    except CycleError as error:
        circle: list[int] = error.args[1][:0:-1]  # there, each is waited for by the next
        first = circle.index(min(circle))
        return [*circle[first:], *circle[: first + 1]]
    return []


def _shortened(circle: list[int]) -> str:
    steps = [str(task) for task in circle]
    if len(steps) > 2 * SHOWN:
        steps[SHOWN:-SHOWN] = [f"... {len(steps) - 2 * SHOWN} more ..."]
    return " -> ".join(steps)
