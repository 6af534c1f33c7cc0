"""What an executor makes of a Ray cluster, whose part a stand-in plays: how much it sends, what it does about losses.

A real cluster is started in `tests/e2e/test_search_ray.py`.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest
from fake_ray import FakeRay, RayError

import foretrain
from foretrain.errors import InputError
from foretrain.planning import executors
from foretrain.planning.executors import RayExecutor
from foretrain.testing.executors import check_executor, square

SQUARES = [(number, number**2) for number in range(6)]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.exceptions", fake.exceptions)
    return fake


@pytest.fixture
def knocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Addresses that are tried before Ray is asked; somebody listens at all of them."""
    tried: list[tuple[str, int]] = []

    def create_connection(address: tuple[str, int], timeout: float) -> socket.socket:
        assert 1 <= timeout <= 60
        tried.append(address)
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", create_connection)
    return tried


def died(times: int) -> list[Exception]:
    return [RayError("The worker died.\nMore of it") for _ in range(times)]


def lost(number: int, how: str) -> str:
    return f"The worker running part {number} of 6 died ({how}); the part was rerun."


def test_the_contract_is_kept(ray: FakeRay) -> None:
    check_executor(RayExecutor, loses_workers=False)
    check_executor(lambda: RayExecutor(workers=2), loses_workers=False)
    assert not ray.is_up


@pytest.mark.parametrize(
    ("workers", "waiting"), [(None, [6, 5, 4, 3, 2, 1]), (2, [2, 2, 2, 2, 2, 1]), (1, [1] * 6)]
)
def test_no_more_is_sent_than_there_are_workers(
    ray: FakeRay, workers: int | None, waiting: list[int]
) -> None:
    """All at once where it is Ray who knows how many there are."""
    found = list(RayExecutor(workers=workers).run(square, range(6)))
    assert sorted(found) == SQUARES
    assert ray.waiting == waiting
    assert {"max_retries": 0} in ray.options, "losses are counted by the executor"


def test_nothing_to_do_needs_no_cluster(ray: FakeRay) -> None:
    assert list(RayExecutor().run(square, [])) == []
    assert ray.asked == []


def test_a_lost_part_is_done_again(ray: FakeRay) -> None:
    ray.failures = {3: died(2), 5: died(1)}
    executor = RayExecutor(workers=2)
    assert sorted(executor.run(square, range(6))) == SQUARES
    how = "The worker died"
    assert sorted(executor.notes) == [lost(4, how), lost(4, how), lost(6, how)]


def test_three_workers_are_enough(ray: FakeRay) -> None:
    ray.failures = {3: died(3)}
    executor = RayExecutor(workers=2)
    says = r"part 4 of 6 was assigned to 3 workers and all of them died \(the last: The worker died\)\. See the logs"
    with pytest.raises(InputError, match=says):
        list(executor.run(square, range(6)))
    assert len(executor.notes) == 2
    assert not ray.is_up


def test_work_without_memory_is_lost_and_other_errors_are_its_own(ray: FakeRay) -> None:
    left = [MemoryError("4 GiB are too much"), MemoryError()]

    def work(item: int) -> int:
        if item == 2 and left:
            raise left.pop(0)
        return 6 // (item - 4)

    executor = RayExecutor(workers=1)
    running = executor.run(work, range(6))
    with pytest.raises(ZeroDivisionError):
        list(running)
    assert executor.notes == [lost(3, "4 GiB are too much")]

    left = [MemoryError()]
    executor = RayExecutor()
    assert sorted(executor.run(work, range(4))) == [(0, -2), (1, -2), (2, -3), (3, -6)]
    assert executor.notes == [
        "The worker running part 3 of 4 died (MemoryError); the part was rerun."
    ]


def test_a_search_that_is_closed_leaves_nothing_running(ray: FakeRay) -> None:
    running = RayExecutor(workers=3).run(square, range(6))
    assert next(running) == (2, 4), "the one that was sent last is done first here"
    running.close()
    assert ray.cancelled == [(0, True), (1, True)], "by force: work does not look for signals"
    assert not ray.is_up


def test_a_cluster_that_is_lost_is_an_error_with_a_remedy(ray: FakeRay) -> None:
    ray.lasts = 2
    running = RayExecutor().run(square, range(6))
    assert [next(running), next(running)] == [(5, 25), (4, 16)]
    with pytest.raises(
        InputError, match=r"lost: the head node is gone\. Run .* --state it resumes"
    ):
        next(running)
    assert len(ray.cancelled) == 4, "all that were left, though nobody answers any more"


# --- which cluster ------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [None, "local"])
def test_a_cluster_of_ones_own_is_small_and_quiet(ray: FakeRay, address: str | None) -> None:
    assert sorted(RayExecutor(address, workers=2).run(square, range(6))) == SQUARES
    assert ray.asked == [
        {
            "address": "local", "num_cpus": 2, "include_dashboard": False, "object_store_memory": 104_857_600,
            "log_to_driver": False, "logging_level": "ERROR",
        }
    ]  # fmt: skip
    assert len(ray.options) == 1, "nobody is asked for a version"
    assert not ray.is_up


@pytest.mark.parametrize(
    ("address", "knocked"),
    [
        ("10.0.0.1:6379", [("10.0.0.1", 6379)]), ("ray://[::1]:10001", [("::1", 10001)]),
        ("auto", []), ("head:gcs", []), (":6379", []),
    ],
)  # fmt: skip
def test_a_cluster_at_an_address_is_asked_whether_it_has_this_version(
    ray: FakeRay, knocks: list[tuple[str, int]], address: str, knocked: list[tuple[str, int]]
) -> None:
    assert sorted(RayExecutor(address).run(square, range(6))) == SQUARES
    assert ray.asked == [{"address": address, "log_to_driver": False, "logging_level": "ERROR"}]
    assert knocks == knocked
    assert len(ray.options) == 2
    assert not ray.is_up


def test_a_cluster_that_the_program_is_connected_to_stays_so(ray: FakeRay) -> None:
    ray.is_up = True
    assert sorted(RayExecutor("10.0.0.1:6379").run(square, range(6))) == SQUARES
    assert ray.asked == []
    assert ray.is_up


@pytest.mark.parametrize(
    ("there", "says"), [(None, "not installed there and 1.0 here"), ("0.9", "version 0.9 there and 1.0 here")]
)  # fmt: skip
def test_other_versions_are_refused(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, there: str | None, says: str
) -> None:
    monkeypatch.setattr(executors, "__version__", "1.0")
    if there is None:
        monkeypatch.setitem(sys.modules, "foretrain", None)
    else:
        monkeypatch.setattr(foretrain, "__version__", there)
    with pytest.raises(InputError, match=f"Foretrain is {says}.*Install foretrain==1.0"):
        list(RayExecutor("auto").run(square, range(6)))
    assert not ray.is_up


@pytest.mark.parametrize(
    ("address", "where"),
    [(None, "on this machine"), ("local", "at local"), ("auto", "at auto")],
)
def test_where_there_is_no_cluster_the_ways_to_one_are_told(
    ray: FakeRay, address: str | None, where: str
) -> None:
    ray.refuses = ConnectionError("nobody is there.\nTry again")
    says = f"cannot connect to a Ray cluster {where}: nobody is there. Specify the address"
    with pytest.raises(InputError, match=says):
        list(RayExecutor(address).run(square, range(6)))


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("a.\nb"), "a"), (ValueError(" \n"), "ValueError"), (ValueError("one"), "one")],
)
def test_errors_are_told_in_a_line(error: Any, line: str) -> None:
    assert executors._first_line(error) == line
