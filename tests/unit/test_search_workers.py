"""How worker processes are hired, given work and dismissed, with stand-ins for processes; and both ends of one."""

from __future__ import annotations

import io
import os
import pickle
from collections import Counter
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from foretrain.errors import Bug, InputError
from foretrain.planning import executors, worker
from foretrain.planning.executors import Processes
from foretrain.testing.executors import refuse, square


class Hands:
    """Stand-ins for processes: each is done as soon as it is given something."""

    def __init__(self, dies: dict[int, int]) -> None:
        self.dies = Counter(dies)  # workers that an item costs
        self.log: list[tuple[int, int]] = []  # items as they were given, and workers there were
        self.there: set[Hand] = set()
        self.hired = 0


class Hand:
    def __init__(self, hands: Hands, work: bytes, inbox: SimpleQueue[Any]) -> None:
        self.hands, self.work, self.inbox = hands, pickle.loads(work), inbox
        hands.there.add(self)
        hands.hired += 1

    def give(self, item: Any) -> None:
        assert self in self.hands.there, "a worker that was dismissed is not given anything"
        self.hands.log.append((item, len(self.hands.there)))
        if self.hands.dies[item]:
            self.hands.dies[item] -= 1
            self.inbox.put((self, None))
            return
        try:
            self.inbox.put((self, (True, self.work(item))))
        except Exception as error:
            self.inbox.put((self, (False, error)))

    def how_it_ended(self) -> str:
        self.hands.there.remove(self)
        return "struck by lightning"

    def stop(self) -> None:
        self.hands.there.remove(self)
        self.inbox.put((self, None))  # the end of its pipe


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Hands]:
    def made(**dies: int) -> Hands:
        found = Hands({int(name.removeprefix("item")): times for name, times in dies.items()})
        monkeypatch.setattr(executors, "_Worker", partial(Hand, found))
        return found

    return made


@pytest.mark.parametrize(("workers", "hired"), [(1, 1), (2, 2), (9, 5)])
def test_workers_are_hired_once_and_no_more_than_are_needed(
    hands: Callable[..., Hands], workers: int, hired: int
) -> None:
    crew = hands()
    found = list(Processes(workers).run(square, range(5)))
    assert found == [(number, number**2) for number in range(5)]
    assert crew.hired == hired
    assert not crew.there, "all are dismissed"


def test_what_is_lost_once_is_done_beside_the_rest(hands: Callable[..., Hands]) -> None:
    crew = hands(item0=1)
    executor = Processes(2)
    found = list(executor.run(square, range(4)))
    assert sorted(found) == [(0, 0), (1, 1), (2, 4), (3, 9)]
    assert crew.log == [(0, 1), (1, 2), (2, 2), (3, 2), (0, 2)], (
        "after the others, with as many workers"
    )
    assert crew.hired == 3
    assert executor.notes == [
        "The worker running part 1 of 4 died (struck by lightning); the part was rerun."
    ]


def test_what_is_lost_twice_is_done_last_and_alone(hands: Callable[..., Hands]) -> None:
    crew = hands(item0=2, item1=2)
    found = list(Processes(3).run(square, range(5)))
    assert sorted(found) == [(number, number**2) for number in range(5)]
    assert [item for item, _ in crew.log] == [0, 1, 2, 3, 4, 0, 1, 0, 1]
    assert crew.log[-2:] == [(0, 1), (1, 1)]
    assert all(workers > 1 for _, workers in crew.log[1:-2])


def test_what_is_lost_thrice_is_given_up(hands: Callable[..., Hands]) -> None:
    crew = hands(item1=3)
    executor = Processes(2)
    says = r"part 2 of 3 was assigned to 3 workers and all of them died \(the last: struck by lightning\)\. Use fewer"
    with pytest.raises(InputError, match=says):
        list(executor.run(square, range(3)))
    assert len(executor.notes) == 2
    assert not crew.there


def test_errors_of_work_and_those_who_close_dismiss_everybody(hands: Callable[..., Hands]) -> None:
    crew = hands()
    with pytest.raises(InputError, match="no ones here"):
        list(Processes(2).run(refuse, range(3)))
    assert not crew.there
    running = Processes(2).run(square, range(5))
    assert next(running) == (0, 0)
    running.close()
    assert not crew.there


# --- one process --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (0, "exit code 0"), (1, "exit code 1"), (12, "out of memory"), (-9, "killed by SIGKILL"),
        (-40, "killed by signal 40"),
    ],
)  # fmt: skip
def test_how_a_process_ended_is_told_by_its_code(code: int, says: str) -> None:
    assert executors._ended(code) == says


def test_a_worker_is_in_a_session_of_its_own() -> None:
    """Ctrl-C in a terminal is for the search, which stops its workers."""
    ((_, session),) = Processes(1).run(os.getsid, [0])
    assert session != os.getsid(0)


class Ended(BaseException):
    """Instead of the end of a process."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", end)


def replies(work: Any, *items: Any) -> list[tuple[bool, Any]]:
    """What a worker answers, whole replies only."""
    file = io.BytesIO()
    try:
        worker._serve([pickle.dumps(each) for each in (work, *items)], file)
    finally:
        size = file.tell()
        file.seek(0)
        found = []
        while file.tell() < size:
            found.append(pickle.loads(pickle.load(file)))
    return found


def halve(item: int) -> float:
    if item == 7:
        raise MemoryError
    return 2 / item


def lambda_out(item: int) -> Any:
    return lambda: item


def test_a_worker_goes_on_after_an_error() -> None:
    first, (is_done, error), last = replies(halve, 1, 0, 4)
    assert (first, last) == ((True, 2.0), (True, 0.5))
    assert not is_done
    assert isinstance(error, ZeroDivisionError)
    assert "In a worker process" in error.__notes__[0]
    assert "halve" in error.__notes__[0], "the traceback is kept"


def test_results_that_cannot_be_sent_are_errors() -> None:
    ((is_done, error),) = replies(lambda_out, 1)
    assert not is_done
    assert "lambda" in str(error)


def test_errors_that_cannot_be_sent_are_told_as_text() -> None:
    assert isinstance(worker._sendable(_Stubborn()), Bug)


class _Stubborn(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not me")


def test_a_worker_without_memory_ends_with_a_code_of_its_own(exits: None) -> None:
    with pytest.raises(Ended) as ended:
        replies(halve, 1, 7, 2)
    assert executors._ended(ended.value.args[0]) == "out of memory"


@pytest.mark.parametrize("rest", [b"", b"\x80"], ids=["whole", "cut"])
def test_a_worker_ends_when_nobody_can_give_it_anything(exits: None, rest: bytes) -> None:
    orders: SimpleQueue[bytes] = SimpleQueue()
    with pytest.raises(Ended, match="0"):
        worker._listen(io.BytesIO(pickle.dumps(b"work") + pickle.dumps(b"item") + rest), orders)
    assert [orders.get_nowait(), orders.get_nowait()] == [b"work", b"item"]
    assert orders.empty()
