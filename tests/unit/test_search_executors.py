"""Executors: the same results from one process, several, and with workers that are lost."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from executor_work import (
    be_awkward,
    lambda_out,
    note_own_id,
    print_much,
    run_out_of_memory,
    slow_own_id,
)
from support.searches import Wrapped, small_task, substance

from foretrain.cluster.cluster import Cluster
from foretrain.errors import InputError
from foretrain.planning.executors import InOrder, Processes, RayExecutor
from foretrain.planning.planner import RankedPlans, search
from foretrain.planning.task import Task
from foretrain.testing.executors import check_executor, die_at_three, dying_at, square

WHERE = ("micro<=2", "no offload")


@pytest.fixture(scope="module")
def task() -> Task:
    return small_task()


@pytest.fixture(scope="module")
def expected(task: Task) -> RankedPlans:
    return search(task, where=WHERE)


def test_in_order_keeps_the_contract() -> None:
    check_executor(InOrder, loses_workers=False)


def test_processes_keep_the_contract() -> None:
    check_executor(lambda: Processes(2), loses_workers=True)


def test_processes_find_the_same(task: Task, expected: RankedPlans) -> None:
    found = search(task, where=WHERE, executor=Processes(2))
    assert substance(found) == substance(expected)
    assert found.notes == ()


@pytest.mark.parametrize(
    "spec", ["2 x dgx-a100-80gb", "8xH100", "8 x dgx-h100 on torus(dims=3)", "4 x aws:p4d.24xlarge"]
)
def test_clusters_can_be_sent_after_use(spec: str) -> None:
    cluster = Cluster.of(spec)
    assert cluster.topology is cluster.topology, "kept: it has functions, which cannot be sent"
    sent = pickle.loads(pickle.dumps(cluster))
    assert sent == cluster
    assert (sent.device_kind == cluster.device_kind).all()


def test_a_killed_worker_loses_nothing(task: Task, expected: RankedPlans, tmp_path: Path) -> None:
    executor = Wrapped(Processes(2), partial(dying_at, str(tmp_path), 2))
    found = search(task, where=WHERE, executor=executor)
    assert substance(found) == substance(expected)
    assert len(found.notes) == 1
    assert "killed by SIGKILL" in found.notes[0]


def test_a_part_lost_twice_is_done_alone(tmp_path: Path) -> None:
    executor = Processes(3)
    found = list(executor.run(partial(die_at_three, str(tmp_path), 2), list(range(9))))
    assert sorted(found) == [(n, n**2) for n in range(9)]
    assert found[-1] == (3, 9), "the dangerous one comes last"


def test_closing_ends_workers_in_the_middle_of_an_item(tmp_path: Path) -> None:
    running = Processes(2).run(partial(note_own_id, str(tmp_path)), list(range(9)))
    next(running)
    started = time.monotonic()
    running.close()
    assert time.monotonic() - started < 5
    assert [name for name in os.listdir(tmp_path) if _is_alive(int(name))] == []


def test_workers_do_not_outlive_a_killed_search(tmp_path: Path) -> None:
    script = f"""
from functools import partial
from foretrain.planning.executors import Processes
from executor_work import note_own_id
for _ in Processes(2).run(partial(note_own_id, {str(tmp_path)!r}), list(range(9))):
    print("one done", flush=True)
"""
    process = _script(script, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"one done\n"
        process.kill()
    workers = [int(name) for name in os.listdir(tmp_path)]
    assert len(workers) == 2
    until = time.monotonic() + 20
    while any(map(_is_alive, workers)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(_is_alive, workers))


def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """Workers do not run the script that started them: no `if __name__ == "__main__"` is asked for."""
    path = tmp_path / "script.py"
    path.write_text(
        "from foretrain.planning.executors import Processes\n"
        "from foretrain.testing.executors import square\n"
        "print('started')\n"
        "print(sorted(Processes(2).run(square, [1, 2, 3])))\n"
    )
    done = subprocess.run(
        [sys.executable, path], env=_environment(), capture_output=True, text=True
    )
    assert done.stdout == "started\n[(0, 1), (1, 4), (2, 9)]\n", done.stderr


def test_what_work_prints_does_not_harm(capfd: pytest.CaptureFixture[str]) -> None:
    assert sorted(Processes(2).run(print_much, [5, 6])) == [(0, 5), (1, 6)]
    out, error = capfd.readouterr()
    assert out == ""
    assert error.count("x") == error.count("y") == 200_000


@pytest.mark.parametrize(("work", "word"), [(be_awkward, "the one"), (lambda_out, "lambda")])
def test_errors_that_cannot_be_sent_are_told(work: Any, word: str) -> None:
    with pytest.raises(Exception, match=word):
        list(Processes(2).run(work, [1]))


def test_a_worker_without_memory_counts_as_lost(tmp_path: Path) -> None:
    executor = Processes(2)
    found = sorted(executor.run(partial(run_out_of_memory, str(tmp_path)), [0, 1, 2]))
    assert found == [(0, 0), (1, 1), (2, 2)]
    assert len(executor.notes) == 1
    assert "out of memory" in executor.notes[0]


def test_a_worker_killed_from_outside(tmp_path: Path) -> None:
    """… while it has an item, whichever that is."""
    executor = Processes(2)
    running = executor.run(partial(slow_own_id, str(tmp_path)), list(range(6)))
    found = [next(running)]
    os.kill(int(os.listdir(tmp_path)[0]), signal.SIGKILL)
    found.extend(running)
    assert sorted(found) == [(n, n) for n in range(6)]
    assert len(executor.notes) == 1


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "two"])
def test_how_many_workers_must_make_sense(workers: Any) -> None:
    for executor in (Processes, partial(RayExecutor, None)):
        with pytest.raises(InputError, match="not a positive whole number"):
            executor(workers)


def test_no_worker_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(InputError, match="Search without --workers"):
        list(Processes(2).run(square, [1, 2]))


def test_without_ray_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'foretrain\[ray\]'"):
        list(RayExecutor().run(square, [1]))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    try:  # one that ended but whose parent is gone or has not looked yet
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _script(text: str, **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", text], env=_environment(), **more)
