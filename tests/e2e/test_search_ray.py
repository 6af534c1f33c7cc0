"""Searches on a Ray cluster: one of two workers, started here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

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


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for a node's workers in /proc")
def test_a_node_is_killed_in_the_middle_of_a_search() -> None:
    """Two nodes; one is killed while it works. The document is that of a search on this machine, and alone on stdout."""
    expected = _searched()
    with _two_nodes() as (address, doomed):
        process = _command("--ray", address)
        try:
            _wait_for_work(doomed, process)
            os.kill(doomed, signal.SIGKILL)  # a raylet: its workers end with it
            out, error = process.communicate(timeout=240)
        finally:
            process.kill()
    assert process.returncode == 0, error
    found = json.loads(out)
    assert any("died" in note or "lost" in note for note in found.pop("notes", [])), found
    assert _timeless(found) == expected


def _searched() -> dict[str, Any]:
    out, error = _command().communicate(timeout=240)
    found = dict(json.loads(out or error))
    assert not found.pop("notes", [])
    return _timeless(found)


def _timeless(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "seconds"}


def _command(*more: str) -> subprocess.Popen[str]:
    words = [
        "search",
        "gpt2",
        "--on",
        "2 x dgx-h100",
        "--batch",
        "64",
        "--where",
        "micro<=4",
        "--top",
        "2",
    ]
    command = [sys.executable, "-m", "foretrain", *words, "--json", *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(command, stdout=PIPE, stderr=PIPE, text=True, env=environment)


@contextmanager
def _two_nodes() -> Iterator[tuple[str, int]]:
    """The address of a cluster of two nodes on this machine, and the process that is the second."""
    from ray.cluster_utils import Cluster

    small = {
        "num_cpus": 1,
        "object_store_memory": executors.OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args=small)
    try:
        second = cluster.add_node(num_cpus=1, object_store_memory=executors.OBJECT_STORE_BYTES)
        yield cluster.address, second.all_processes["raylet"][0].process.pid
    finally:
        cluster.shutdown()


def _wait_for_work(raylet: int, process: subprocess.Popen[str]) -> None:
    """Until a worker of this node runs a part of the search."""
    limit = time.monotonic() + 120
    while time.monotonic() < limit and process.poll() is None:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if words.startswith(b"ray::done") and int(parent) == raylet:
                return
        time.sleep(0.01)
    raise AssertionError(f"no part of the search ran on the second node: {process.communicate()}")
