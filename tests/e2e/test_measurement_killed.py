"""A process that measures may be killed at any moment, and several may write at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import foretrain
from foretrain.measurement.store import Store

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kill -9 is POSIX")

HERE = Path(__file__).parent
KILLS = 50
COUNT = 100_000  # more than can be measured before the last kill

sys.path.insert(0, str(HERE))
from measuring import MACHINE, key  # noqa: E402


def started(path: Path, first: int, count: int) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(foretrain.__file__).parents[1])}
    command = [sys.executable, str(HERE / "measuring.py"), str(path), str(first), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)


def killed(path: Path, after: float) -> tuple[set[int], set[int]]:
    """Numbers begun and kept by a process that is killed so many seconds after it was ready to open the store."""
    process = started(path, 0, COUNT)
    assert process.stdout is not None
    assert process.stdout.readline() == "start\n"
    time.sleep(after)
    process.send_signal(signal.SIGKILL)
    # The kill may cut the last line off.
    lines = [
        line.split()
        for line in process.stdout.read().splitlines(keepends=True)
        if line[-1:] == "\n"
    ]
    assert process.wait() == -signal.SIGKILL
    begun = {int(line[1]) for line in lines if line[0] == "begin"}
    kept = {int(line[1]) for line in lines if line[0] == "kept"}
    process.stdout.close()
    return begun, kept


def test_fifty_kills_lose_at_most_what_was_being_measured(tmp_path: Path) -> None:
    path, draw = tmp_path / "store.sqlite", random.Random(20260101)
    told: set[int] = set()
    amid = 0
    for _ in range(KILLS):
        begun, kept = killed(path, draw.choice((0.0, 0.01, 0.05, 0.2)) * draw.random())
        assert not begun & told  # it went on where it was
        told |= kept
        with Store.open(path) as store:
            found = {row.key["bytes"] - 1 for row in store.rows()}
            assert all(row.seconds == 1e-3 * row.key["bytes"] for row in store.rows())
        assert told <= found
        assert len(found - told) <= 1  # kept, but killed before it could say so
        assert found - told <= begun
        amid += bool(begun - kept)
        told = found
    assert told == set(range(len(told)))
    assert amid > KILLS // 5  # else the kills came at harmless moments


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    path, each = tmp_path / "store.sqlite", 60
    writers = [started(path, number * each, each) for number in range(3)]
    for writer in writers:
        out, _ = writer.communicate(timeout=120)
        assert writer.returncode == 0
        assert out.endswith("done\n")
    with Store.open(path) as store:
        assert sorted(row.key["bytes"] - 1 for row in store.rows()) == list(range(3 * each))


def test_a_reader_is_served_while_another_writes(tmp_path: Path) -> None:
    path = tmp_path / "store.sqlite"
    Store.open(path).close()
    writer = started(path, 0, 60)
    seen = [0]
    with Store.open(path) as store:
        while writer.poll() is None:
            seen.append(len(store.rows()))
        assert len(store.rows()) == 60
        assert store.known("link", key(59), MACHINE) is not None
    assert seen == sorted(seen)
    assert writer.stdout is not None
    writer.stdout.close()
