"""What every executor of a search must hold, whoever does the work."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from foretrain.errors import InputError
from foretrain.planning.executors import MOST_LOSSES, Executor, Work
from foretrain.planning.space import SpacePart


def check_executor(make: Callable[[], Executor], *, loses_workers: bool) -> None:
    """Every item's result once, errors as they were raised, and no item lost with the worker that had it."""
    _check_results(make())
    _check_errors(make())
    _check_closing(make())
    if loses_workers:
        _check_loss(make(), deaths=1)
        _check_loss(make(), deaths=MOST_LOSSES - 1)
        _check_giving_up(make())


def _check_results(executor: Executor) -> None:
    assert list(executor.run(square, [])) == []
    results = list(executor.run(square, list(range(7))))
    assert sorted(results) == [(number, number**2) for number in range(7)], results
    assert sorted(executor.run(square, [3, 3])) == [(0, 9), (1, 9)], "equal items are two items"
    assert not executor.notes, executor.notes


def _check_errors(executor: Executor) -> None:
    error = _refusal(executor, refuse, 3)
    assert str(error) == "no ones here\n  - 1 is one", error
    assert error.faults == ("1 is one",)


def _refusal(executor: Executor, work: Work, items: int) -> InputError:
    try:
        results = list(executor.run(work, list(range(items))))
    except InputError as error:
        return error
    raise AssertionError(f"the error of an item was lost: {results}")


def _check_closing(executor: Executor) -> None:
    with TemporaryDirectory() as folder:
        running = executor.run(partial(write_and_wait, folder), list(range(40)))
        assert hasattr(running, "close")
        next(running)
        running.close()
        written = len(list(Path(folder).iterdir()))
        assert written < 40, "work went on after nobody wanted it"


def _check_loss(executor: Executor, deaths: int) -> None:
    with TemporaryDirectory() as folder:
        results = sorted(executor.run(partial(die_at_three, folder, deaths), list(range(6))))
    assert results == [(number, number**2) for number in range(6)], results
    assert len(executor.notes) == deaths, executor.notes
    assert all("part 4 of 6" in note for note in executor.notes), executor.notes


def _check_giving_up(executor: Executor) -> None:
    """An item that every worker dies of is an error."""
    with TemporaryDirectory() as folder:
        error = _refusal(executor, partial(die_at_three, folder, MOST_LOSSES), 6)
    assert "part 4 of 6" in str(error), error


def square(item: int) -> int:
    return item**2


def refuse(item: int) -> int:
    if item == 1:
        raise InputError("no ones here", faults=["1 is one"])
    return item


def write_and_wait(folder: str, item: int) -> int:
    time.sleep(0.05)
    Path(folder, str(item)).touch()
    return item


def die_at_three(folder: str, deaths: int, item: int) -> int:
    """The square; but the first workers that are given 3 are killed."""
    if item == 3:
        for death in range(deaths):
            mark = Path(folder, f"death{death}")
            if not mark.exists():
                mark.touch()
                die()
    return item**2


def dying_at(folder: str, tp: int, work: Work, item: SpacePart | tuple[SpacePart, Any]) -> Any:
    """The first worker that has done a part with this degree is killed before it can say so."""
    result = work(item)
    part = item if isinstance(item, SpacePart) else item[0]  # refined, it comes with what to beat
    mark = Path(folder, "died")
    if part.tp == tp and not mark.exists():
        mark.touch()
        die()
    return result


def die() -> None:
    """As if out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
