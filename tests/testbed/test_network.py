"""The testbed on real namespaces. Skips, with the reason, where they are not permitted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed import hosts, report
from testbed.jobs import Job, per_step
from testbed.launching import CHECKOUT, run
from testbed.topologies import TOPOLOGIES, Cable, Graph

REASON = hosts.why_not()
pytestmark = pytest.mark.skipif(REASON is not None, reason=f"no testbed: {REASON}")
TESTBED = [sys.executable, "-m", "testbed.main"]


def left_by(process: int) -> list[str]:
    found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return [line for line in found.stdout.splitlines() if line.startswith(f"ft{process}-")]


def wait_for(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def test_a_message_takes_as_long_as_its_cables_allow() -> None:
    """Two hops at 40 Mbit/s. Others may share the processor, so it may take longer, but never less."""
    pytest.importorskip("torch")
    line = Graph("line", 2, (Cable(0, "between"), Cable("between", 1)))
    job = Job("transfer", batch=1 << 20, steps=2)
    with hosts.standing(line, 40e6) as there:
        (times,) = run(there, 2, [job])
    each = min(per_step(job, times)) / 2
    wire = (1 << 20) * 8 / 40e6
    assert 0.9 * wire < each < 2.0 * wire
    assert left_by(os.getpid()) == []


def test_hosts_go_when_something_fails() -> None:
    def failing() -> None:
        with hosts.standing(TOPOLOGIES["ring"](3), 1e8):
            assert len(left_by(os.getpid())) == 3
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert left_by(os.getpid()) == []


def test_a_worker_that_fails_says_why() -> None:
    pytest.importorskip("torch")
    with (
        hosts.standing(TOPOLOGIES["star"](2), 1e8) as there,
        pytest.raises(RuntimeError, match="no-such-kind"),
    ):
        run(there, 2, [Job("no-such-kind")])


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_run_that_is_ended(how: signal.Signals, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    words = [*TESTBED, "--subset", "--json", str(tmp_path / "rows.json")]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL, cwd=CHECKOUT) as process:
        wait_for(lambda: len(left_by(process.pid)) >= 2)
        process.send_signal(how)
    if how == signal.SIGKILL:
        hosts.sweep()  # as the next run does
    assert left_by(process.pid) == []
    assert not (tmp_path / "rows.json").exists()


def test_a_short_experiment(tmp_path: Path) -> None:
    """Other tests run beside it, so the bounds are wide; `make testbed` holds the real ones."""
    pytest.importorskip("torch")
    there = tmp_path / "rows.json"
    words = [*TESTBED, "--subset", "--json", str(there), "--page", str(tmp_path / "page.md")]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=600, cwd=CHECKOUT
    )
    assert done.returncode in (0, 1), done.stderr
    rows = report.from_json(there)
    assert len(rows) == 4
    found = report.summary(rows)
    assert found.exchange_error < 0.4, done.stdout
    assert found.step_error < 0.6, done.stdout
    assert (tmp_path / "page.svg").exists()
