"""Searches and journals under `kill -9` at any moment, and with company."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.searches import small_task, substance

from foretrain.planning import inputs
from foretrain.planning.journal import Journal
from foretrain.planning.planner import search, search_key

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kill -9 is POSIX")
WHERE = ("micro<=2", "no offload")

SEARCH = """
import json, sys
from functools import partial
from foretrain.planning import inputs
from foretrain.planning.executors import InOrder, Processes
from foretrain.planning.journal import Journal
from foretrain.planning.planner import search, search_key
from support.searches import Wrapped, slowed, small_task, substance

inputs.sources = lambda: "as they are"
path, workers = sys.argv[1], int(sys.argv[2])
where = ("micro<=2", "no offload")
task = small_task()
executor = Wrapped(Processes(workers) if workers else InOrder(), partial(slowed, 0.1))
print("started", flush=True)
with Journal(path, search_key(task, where=where)) as journal:
    found = search(task, where=where, executor=executor, journal=journal,
                   progress=lambda progress: print("step", flush=True))
print(json.dumps(substance(found)))
"""

JOURNALS = """
import os, random, signal, sqlite3, sys, time
from pathlib import Path
from foretrain.planning.inputs import Key
from foretrain.planning.journal import Journal
from foretrain.planning.planner import Score
from foretrain.planning.partial_result import PartialResult

folder = Path(sys.argv[1])
KEY = Key("d" * 64, {"model": "gpt2"})
connect = sqlite3.connect

def survey(number):
    return PartialResult(number, number, {"x" * 3000: number})

def write(path, parts):
    with Journal(path, KEY) as journal:
        for number in parts:
            journal.add(number, survey(number))
            journal.add_simulated(f"tp{number}", Score(number / 3, number / 7, True))

def check(path, parts):
    '''A beginning of the parts is there, and the rest can be added.'''
    with Journal(path, KEY) as journal:
        known, plans = journal.known(), journal.simulated()
        assert known == {n: survey(n) for n in list(parts)[:len(known)]}, list(known)
        assert len(known) - len(plans) in (0, 1), (len(known), len(plans))
    write(path, parts)
    with Journal(path, KEY) as journal:
        assert journal.known() == {n: survey(n) for n in parts}
        assert len(journal.simulated()) == len(parts)
    return len(known)

def forked(work):
    child = os.fork()
    if not child:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
    return child
"""

AT_EVERY_STATEMENT = """
def killed_at(path, statement):
    left = [statement]
    def count(text):
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
    def counted(*given, **more):
        file = connect(*given, **more)
        file.set_trace_callback(count)
        return file
    sqlite3.connect = counted
    write(path, range(3))

for statement in range(1, 1000):
    path = folder / f"state{statement}"
    status = os.waitpid(forked(lambda: killed_at(path, statement)), 0)[1]
    found = check(path, range(3))
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
print(statement)
"""

AT_ANY_TIME = """
started = time.monotonic()
write(folder / "alone", range(60))
whole = time.monotonic() - started
draw, found = random.Random(int(sys.argv[2])), []
for number in range(30):
    path = folder / f"state{number}"
    child = forked(lambda: write(path, range(60)))
    time.sleep(draw.random() * whole)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found.append(check(path, range(60)))
print(len(set(found)))
"""

TOGETHER = """
path = folder / "state"
children = [forked(lambda: write(path, range(k, 60) if k % 2 else range(60))) for k in range(6)]
time.sleep(0.1)
os.kill(children[0], signal.SIGKILL)
ends = [os.waitpid(child, 0)[1] for child in children]
assert ends[1:] == [0] * 5, ends
print(check(path, range(60)))
"""


def ran(script: str, *given: Any) -> str:
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_killed_at_every_statement(tmp_path: Path) -> None:
    assert int(ran(JOURNALS + AT_EVERY_STATEMENT, tmp_path)) > 20


def test_killed_at_any_time(tmp_path: Path) -> None:
    assert int(ran(JOURNALS + AT_ANY_TIME, tmp_path, 1)) > 5, "killed at different moments"


def test_many_write_to_one_journal(tmp_path: Path) -> None:
    assert ran(JOURNALS + TOGETHER, tmp_path) == "60"


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    found = substance(search(small_task(), where=WHERE))
    return dict(json.loads(json.dumps(found)))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_killed_search_goes_on(workers: int, expected: dict[str, Any], tmp_path: Path) -> None:
    """Killed again and again, it comes to the end, and to the same end."""
    path, draw = tmp_path / "state", random.Random(workers)
    kills, steps = 0, 0
    for most in (0, 1, 2, 3, 4, 5, 1000):
        with _started(path, workers) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            said = ["started\n"]
            for _ in range(most):
                said.append(process.stdout.readline())
                if said[-1] != "step\n":
                    break
            if said[-1] in ("started\n", "step\n"):
                time.sleep(draw.random() * 0.3)
                process.send_signal(signal.SIGKILL)
                said += process.stdout.readlines()
            said += process.stdout.readlines()
            kills += process.wait() == -signal.SIGKILL
            steps += said.count("step\n")
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert kills >= 3
    assert json.loads(said[-1]) == expected
    assert steps < 2 * (2 * 8 + 20), "what was done is not done again and again"


def test_two_searches_share_a_journal(
    expected: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    with _started(path, 0) as first, _started(path, 0) as second:
        outputs = [process.communicate(timeout=120)[0] for process in (first, second)]
    for output in outputs:
        assert json.loads(output.splitlines()[-1]) == expected
    monkeypatch.setattr(inputs, "sources", lambda: "as they are")
    with Journal(path, search_key(small_task(), where=WHERE)) as journal:
        assert len(journal.known()) == 2 * 8  # every part, and what its plans become


def _started(path: Path, workers: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SEARCH, str(path), str(workers)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=_environment())


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
