"""Ctrl-C ends whatever runs, soon and with exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import foretrain
from foretrain.engine import native_available

GENEROUS = 5.0  # seconds; a machine that is not busy needs a tenth of one

# Flows on one link with unequal volumes: every end gives all others a new rate, so that time grows with the square.
LONG_RUN = """
import numpy as np
from foretrain.engine import Program, simulate

n = 30_000
ints = lambda *values: np.array(values, dtype=np.int32)
program = Program(
    duration=np.zeros(n), volume=np.linspace(1.0, 2.0, n), route=np.zeros(n, dtype=np.int32),
    stream_ptr=np.arange(n + 1, dtype=np.int32), stream_ids=np.arange(n, dtype=np.int32),
    succ_ptr=np.zeros(n + 1, dtype=np.int32), succ=ints(), route_ptr=ints(0, 1), route_link=ints(0),
    route_weight=np.ones(1), route_cap=np.full(1, np.inf), capacity=np.ones(1), streams=n,
)
print("ready", flush=True)
simulate(program, "native")
print("done", flush=True)
"""


@pytest.mark.skipif(not native_available(), reason="no compiled engine")
def test_ctrl_c_ends_a_native_simulation() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", LONG_RUN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "ready\n"
        time.sleep(0.3)  # into the simulation
        run.send_signal(signal.SIGINT)
        began = time.monotonic()
        try:
            out, err = run.communicate(timeout=2 * GENEROUS)
        finally:
            run.kill()
        took = time.monotonic() - began
    assert "done" not in out
    assert "KeyboardInterrupt" in err
    assert took < GENEROUS, f"{took:.2f} s from the signal to the end"
    print(f"{took:.3f} s from the signal to the end")


LONG = ["--on", "64 x dgx-h100", "--batch", "4096"]
COMMANDS = {
    "search": ["search", "gpt3-175b", *LONG, "--state", "state.sqlite", "-o", "out.json"],
    "processes": ["search", "gpt3-175b", *LONG, "--workers", "2", "-o", "out.json"],
    "sweep": ["sweep", "gpt3-175b", "--on", "64 x dgx-h100", "--plan", "tp8 pp8 zero1", "-o", "out.json",
              "--vary", "batch=" + ",".join(str(512 * n) for n in range(1, 400))],
    "cases": ["predict", "--cases", "cases.jsonl", "-o", "out.jsonl"],
    "ops": ["measure", "ops", "gpt2", "--batch", "1", "-o", "out.json"],
    "links": ["measure", "links", "-o", "out.json"],
    "recommend": ["recommend", "llama3-70b", "--tokens", "1e12", "-o", "out.json"],
}  # fmt: skip
CASE = (
    '{"id": "a", "model": {"zoo": "gpt3-175b"}, "seq_len": 2048, "batch": {"global": 1024}, "plan": {"tp": 8, "pp": 8},'
    ' "cluster": {"device": "h100", "devices_per_node": 8, "nodes": 64}}\n'
)


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_a_command_with_130_and_leaves_nothing_half_written(
    name: str, tmp_path: Path
) -> None:
    if COMMANDS[name][0] == "measure":
        pytest.importorskip("torch")
    (tmp_path / "cases.jsonl").write_text(CASE * 5000)
    source = str(Path(foretrain.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source, "FORETRAIN_STORE": str(tmp_path / "store.sqlite")}
    command = [sys.executable, "-m", "foretrain.cli", *COMMANDS[name]]
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        try:
            run.wait(timeout=8.0 if name in ("ops", "links") else 4.0)  # into its work
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGINT)
        began = time.monotonic()
        try:
            out, err = run.communicate(timeout=4 * GENEROUS)
        finally:
            run.kill()
        took = time.monotonic() - began
    assert run.returncode == 130, err
    assert "interrupted" in err
    assert "Traceback" not in err
    assert took < GENEROUS, f"{took:.2f} s from the signal to the end"
    print(f"{name}: {took:.3f} s from the signal to the end")
    left = {path.name.split("-")[0] for path in tmp_path.iterdir()}
    assert left <= {"cases.jsonl", "state.sqlite", "store.sqlite"}
    assert out == ""


EARLY = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *rest):
        if name == "foretrain.cli.app":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from foretrain.cli import main
main(["--version"])
"""


def test_ctrl_c_while_a_command_is_imported_ends_with_130() -> None:
    env = {**os.environ, "PYTHONPATH": str(Path(foretrain.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, "-c", EARLY], env=env, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 130, run.stderr
    assert run.stderr == "foretrain: interrupted.\n"
    assert run.stdout == ""


def test_little_is_imported_before_ctrl_c_ends_quietly() -> None:
    """Until `main` runs Python answers Ctrl-C with a traceback, so nothing slow is loaded before."""
    code = (
        f"import os, sys; sys.path.insert(0, {str(Path(foretrain.__file__).parents[1])!r}); before = set(sys.modules);"
        " import foretrain.cli; print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    assert set(run.stdout.split()) <= {
        "__future__", "errno", "foretrain", "foretrain.cli", "foretrain.cli.process", "gc",
    }  # fmt: skip
