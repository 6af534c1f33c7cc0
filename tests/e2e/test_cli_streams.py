"""Standard streams that are closed, full or without a reader end a command quietly, whichever it is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import foretrain

ASK = ["gpt2", "--on", "1 x dgx-a100-80gb", "--plan", "dp8", "--batch", "64", "--seq", "128"]
CASE = {
    "id": "a",
    "group": "g",
    "quality": "high",
    "model": {"zoo": "gpt2"},
    "seq_len": 128,
    "cluster": {"device": "a100-sxm4-80gb", "nodes": 1, "devices_per_node": 8},
    "batch": {"global": 64, "micro": 1},
    "measured": {"step_time_s": 0.1},
}
BAD = {**CASE, "model": {"zoo": "no-such-model"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prediction and case files."""
    found = tmp_path_factory.mktemp("streams")
    (found / "cases.jsonl").write_text(json.dumps(CASE) + "\n")
    (found / "bad.jsonl").write_text(json.dumps(BAD) + "\n" + json.dumps(BAD) + "\n")
    (found / "some.jsonl").write_text(json.dumps(BAD) + "\n" + json.dumps(CASE) + "\n")
    assert _run(["predict", *ASK, "-o", str(found / "p.json")], folder=found).returncode == 0
    return found


def _run(
    args: list[str], *, folder: Path, shell: str = "", text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The command; `shell` are redirections behind it."""
    source = str(Path(foretrain.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source, "FORETRAIN_STORE": str(folder / "store.sqlite")}
    command = [sys.executable, "-m", "foretrain.cli", *args]
    behind = ["bash", "-c", f'set -o pipefail; "$@" {shell}', "bash"]
    return subprocess.run(
        [*behind, *command],
        capture_output=True,
        text=True,
        env=env,
        cwd=folder,
        timeout=120,
        check=False,
        input=text,
    )


COMMANDS = {
    "predict": ["predict", *ASK],
    "json": ["predict", *ASK, "--json"],
    "cases": ["predict", "--cases", "cases.jsonl"],
    "fit": ["fit", *ASK],
    "explain": ["explain", "p.json"],
    "compare": ["compare", "p.json", "p.json"],
    "whatif": ["whatif", *ASK, "--set", "network.bandwidth=2x"],
    "sweep": ["sweep", *ASK, "--vary", "micro_batch=1,2"],
    "search": ["search", "gpt2", "--on", "4 x a100", "--batch", "64", "--where", "pp=1,tp=1"],
    "validate": ["validate", "cases.jsonl"],
    "compile": ["compile", *ASK],
    "catalog": ["catalog", "list", "models"],
    "schema": ["schema", "prediction"],
    "doctor": ["doctor"],
    "help": ["--help"],
    "command help": ["predict", "--help"],
    "version": ["--version"],
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    ("shell", "codes"),
    [
        ("| true", {0, 141}),  # ours may be written before the reader leaves
        ("> /dev/full", {2}),
        (">&-", {0}),
        ("2>&-", {0}),
        ("2> /dev/full", {0}),
    ],
)
def test_a_stream_that_cannot_be_written_ends_quietly(
    folder: Path, name: str, shell: str, codes: set[int]
) -> None:
    run = _run(COMMANDS[name], folder=folder, shell=shell)
    assert run.returncode in codes, run.stderr
    assert "internal error" not in run.stderr
    assert "Exception ignored" not in run.stderr
    assert "Traceback" not in run.stderr
    if shell == "> /dev/full":
        told = [line for line in run.stderr.splitlines() if line.startswith("foretrain")]
        assert told == ["foretrain: cannot write to standard output (No space left on device)."]
    if shell.startswith("2>"):
        assert run.stdout


@pytest.mark.parametrize("args", [["predict", "--cases"], ["validate"]])
def test_what_is_no_file_of_cases_is_refused(tmp_path: Path, args: list[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        for path in ("pipe", "socket", "/dev/null", "/dev/zero", ".", "no-such"):
            run = _run([*args, path], folder=tmp_path)
            assert run.returncode == 2, (path, run.stderr)
            assert path in run.stderr
            assert not run.stdout


def test_a_dash_is_standard_input(folder: Path) -> None:
    text = (folder / "cases.jsonl").read_text()
    run = _run(["predict", "--cases", "-"], folder=folder, text=text)
    assert (run.returncode, len(run.stdout.splitlines())) == (0, 1)
    run = _run(["validate", "-", "--json"], folder=folder, text=text)
    assert run.returncode == 0
    assert json.loads(run.stdout)["total"]["n"] == 1


@pytest.mark.parametrize("args", [["predict", "--cases"], ["validate"]])
def test_the_exit_code_tells_whether_any_case_was_answered(folder: Path, args: list[str]) -> None:
    assert _run([*args, "bad.jsonl"], folder=folder).returncode == 1
    assert _run([*args, "some.jsonl"], folder=folder).returncode == 0


NOISY = """
import os, sys
import foretrain
from foretrain.cli import main
quiet = foretrain.predict

def noisy(*given, **more):
    print("a library says hello")
    os.write(1, b"a library in C says hello\\n")
    os.system("echo a process says hello")
    return quiet(*given, **more)

foretrain.predict = noisy
main(sys.argv[1:])
"""


def test_json_is_one_document_whatever_else_is_printed(folder: Path) -> None:
    source = str(Path(foretrain.__file__).parents[1])
    run = subprocess.run(
        [sys.executable, "-c", NOISY, "predict", *ASK, "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        timeout=120,
        check=False,
    )
    assert run.returncode == 0
    assert json.loads(run.stdout)["step_seconds"] > 0
    assert run.stderr.count("says hello") == 3
