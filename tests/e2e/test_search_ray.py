"""Searches on a Ray cluster: one of two workers, started here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from support.searches import Wrapped, small_task, substance

from foretrain.planning import executors
from foretrain.planning.executors import RayExecutor
from foretrain.planning.planner import search
from foretrain.testing.executors import check_executor, dying_at

WHERE = ("micro<=2", "no offload")

pytest.importorskip("ray", reason="Ray is not installed: pip install 'foretrain[ray]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The cluster that an executor without an address starts, kept for all tests here; its address."""
    ray = executors._ray()
    with executors._connected(ray, None, 2):
        assert ray.cluster_resources()["CPU"] == 2
        yield ray.get_runtime_context().gcs_address
    assert not ray.is_initialized()


def test_ray_keeps_the_contract(cluster: str) -> None:
    check_executor(lambda: RayExecutor(workers=2), loses_workers=True)


def test_a_lost_worker_changes_nothing(cluster: str, tmp_path: Path) -> None:
    """The same ranking, to the last bit, though a worker is killed in the middle of the search."""
    task = small_task()
    expected = substance(search(task, where=WHERE))
    executor = Wrapped(RayExecutor(), partial(dying_at, str(tmp_path), 2))
    found = search(task, where=WHERE, executor=executor)
    assert (tmp_path / "died").exists()
    assert substance(found) == expected
    assert len(found.notes) == 1
    assert "died" in found.notes[0]


def test_a_cluster_at_an_address(cluster: str) -> None:
    done = _script(f"print(sorted(RayExecutor({cluster!r}).run(square, [1, 2, 3])))")
    assert done.stdout == "[(0, 1), (1, 4), (2, 9)]\n", done.stderr


def test_another_version_on_the_cluster_is_refused(cluster: str) -> None:
    done = _script(
        f"executors.__version__ = '0.0.0'; list(RayExecutor({cluster!r}).run(square, [1]))"
    )
    assert "0.0.0 here. Install foretrain==0.0.0 on its nodes" in done.stderr
    assert "InputError" in done.stderr


@pytest.mark.parametrize(
    "address", ["no such place", "127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1"]
)
def test_an_address_that_is_none(address: str) -> None:
    done = _script(f"list(RayExecutor({address!r}).run(square, [1]))")
    assert f"InputError: cannot connect to a Ray cluster at {address}" in done.stderr


def test_what_ray_says_of_a_dead_worker_is_not_on_stdout(tmp_path: Path) -> None:
    """Ray's own lines go to stdout unless they are kept from it."""
    done = _script(
        "from functools import partial\n"
        "from foretrain.cli.streams import answer_alone, write_answer\n"
        "from foretrain.testing.executors import die_at_three\n"
        "with answer_alone():\n"
        f"    work = partial(die_at_three, {str(tmp_path)!r}, 1)\n"
        "    write_answer(repr(sorted(RayExecutor(workers=1).run(work, [1, 2, 3]))))\n"
    )
    assert (tmp_path / "death0").exists(), done.stderr
    assert done.stdout == "[(0, 1), (1, 4), (2, 9)]"


def _script(text: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: Ray connects a process to one cluster."""
    head = (
        "from foretrain.planning import executors\n"
        "from foretrain.planning.executors import RayExecutor\n"
        "from foretrain.testing.executors import square\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", head + text]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
