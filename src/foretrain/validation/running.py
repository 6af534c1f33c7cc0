"""Many independent questions on all cores, answers in the order asked."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")
Progress = Callable[[int, int], None]

WORTH_A_PROCESS = 24
"""tasks; fewer take less time than another interpreter needs to start"""


def cores() -> int:
    """What this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def run_all(
    function: Callable[[A], B],
    tasks: Sequence[A],
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[B]:
    """`function` of every task; with `jobs` > 1 in that many processes, for which it must be importable."""
    done: list[B] = []

    def note(answer: B) -> None:
        done.append(answer)
        if progress is not None:
            progress(len(done), len(tasks))

    jobs = min(jobs, len(tasks) // WORTH_A_PROCESS)
    if jobs <= 1:
        for task in tasks:
            note(function(task))
        return done
    # started afresh, not forked: threads of the caller cannot be left behind holding locks
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for answer in pool.imap(function, tasks, chunksize=4):
            note(answer)
    return done
