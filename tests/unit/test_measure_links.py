"""`measure links`: groups, sizes, agreement between ranks, and two real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from foretrain.errors import InputError
from foretrain.measurement.link_curves import fitted, link_curves
from foretrain.measurement.links import (
    COLLECTIVES,
    SIZES,
    Shape,
    is_joined,
    measure_links,
    shapes,
    spawned,
    wanted,
)
from foretrain.measurement.machine import Machine
from foretrain.measurement.store import Store
from foretrain.measurement.timing import Effort
from foretrain.report.measured import links_document

HERE = Machine("cpu", 2, 8, (), "", "host", "Linux", (("torch", "2"),))
LATENCY, RATE = 50e-6, 2e9


class Wire:
    """A group whose messages take a latency and a rate; broadcast is not to be had."""

    rank, backend, device = 0, "gloo", "cpu"

    def __init__(self, world: int = 2, per_node: int = 2) -> None:
        self.world, self.per_node = world, per_node
        self.timed: list[tuple[str, int, Shape]] = []

    def call(self, collective: str, size: int, shape: Shape) -> Callable[[int], object] | None:
        if collective == "broadcast":
            return None
        self.timed.append((collective, size, shape))
        self.each = LATENCY + size / RATE
        return lambda _: None

    def slowest(self, call: Callable[[int], object] | None, calls: int) -> float:
        return calls * self.each

    def largest(self, value: float) -> float:
        return value

    def mean(self, value: float) -> float:
        return value

    def work(self, calls: int) -> float:
        return calls * 1e-3


def test_groups_lie_side_by_side_and_across_nodes() -> None:
    assert [s.ranks for s in shapes(2, 2)] == [(0, 1)]
    found = {(len(s.ranks), s.nodes): s.ranks for s in shapes(16, 4)}
    assert found[2, 1] == (0, 1)
    assert found[2, 2] == (0, 4)
    assert found[4, 4] == (0, 4, 8, 12)
    assert found[16, 4] == tuple(range(16))
    assert all(ranks % nodes == 0 for ranks, nodes in found)


def test_every_size_is_timed_once_and_then_known(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        first = measure_links(Wire(), store, machine=HERE)
        again = Wire()
        second = measure_links(again, store, machine=HERE)
        rows = store.rows("link")
    names = [name for name in COLLECTIVES if name != "broadcast"]
    assert len(first.rows) == len(rows) == len(names) * len(SIZES)
    assert first.unable == ("broadcast",)
    assert not again.timed
    assert all(row.was_known for row in second.rows)
    assert {row.key["collective"] for row in rows} == set(names)


def test_the_fitted_curve_is_the_wire(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        report = measure_links(Wire(), store, collectives=["send"], machine=HERE)
        (curve,) = link_curves(store.rows("link"))
    assert (curve.collective, curve.ranks, curve.nodes) == ("send", 2, 1)
    assert curve.seconds[-1] == pytest.approx(LATENCY + SIZES[-1] / RATE)
    (law,) = fitted(report)
    assert law["latency_seconds"] == pytest.approx(LATENCY, rel=0.01)
    assert law["bytes_per_second"] == pytest.approx(RATE, rel=0.01)
    document = links_document(report).data
    assert len(document["links"]) == len(SIZES)


def test_a_rank_without_the_store_follows_the_first() -> None:
    """It is told that the time is known by the largest number that anyone has."""
    other = Wire()
    other.rank = 1
    other.largest = lambda value: 3.0  # type: ignore[method-assign]
    report = measure_links(other, None, collectives=["send"], machine=HERE)
    assert not other.timed
    assert {row.seconds for row in report.rows} == {3.0}


def test_bad_questions_are_answered() -> None:
    with pytest.raises(InputError, match="Did you mean 'all_reduce'"):
        wanted(["all_reduse"])
    with pytest.raises(InputError, match="two processes"):
        measure_links(Wire(world=1), None, machine=HERE)


def test_launchers_are_seen_by_what_they_tell() -> None:
    assert not is_joined({})
    assert is_joined({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"})


def test_one_process_that_fails_ends_all() -> None:
    code = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '1' else time.sleep(60)"
    assert spawned(["-c", code], 2, 30.0) == 3
    assert spawned(["-c", "pass"], 2, 30.0) == 0


def test_processes_that_hang_are_ended() -> None:
    with pytest.raises(InputError, match="did not finish"):
        spawned(["-c", "import time; time.sleep(60)"], 2, 0.5)


def test_two_real_processes(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    words = ["measure", "links", "--collectives", "all_reduce,send", "--sizes", "1KiB,256KiB"]
    store = tmp_path / "store"
    done = subprocess.run(
        [sys.executable, "-m", "foretrain", *words, "--budget", "2s", "--threads", "1", "--json",
         "--store", str(store)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with Store.open(store) as opened:
        rows = opened.rows("link")
    assert rows
    assert all(row.seconds > 0 for row in rows)


def test_effort_is_shared(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store") as store:
        report = measure_links(Wire(), store, machine=HERE, budget=0.0, effort=Effort())
    assert report.unmeasured == len(COLLECTIVES) * len(SIZES)
