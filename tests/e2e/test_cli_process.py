"""The command as a user runs it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import foretrain

ASK = [
    "llama3-8b",
    "--on",
    "2 x dgx-h100",
    "--plan",
    "tp4 pp2 dp2 zero1",
    "--batch",
    "64",
    "--seq",
    "4k",
]


def _run(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(foretrain.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source, **more}
    command = [sys.executable, "-m", "foretrain.cli", *args]
    return subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=120, check=False
    )


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    heavy = ("numpy", "scipy", "pydantic", "torch", "rich", "yaml")
    code = (
        "import sys; from foretrain.cli import run; run(['--help']); run(['predict', '--help'])\n"
        f"print([m for m in {heavy!r} if m in sys.modules], file=sys.stderr)"
    )
    source = str(Path(foretrain.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": source}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True
    )
    assert ran.stderr.strip() == "[]"
    assert "predict" in ran.stdout


BARE = """
import dataclasses, sys, typing, typer
app = typer.Typer(rich_markup_mode=None)
app.command()(lambda: None)
app(["--help"])
"""


@pytest.mark.parametrize(
    ("args", "times"), [(["--help"], 3.0), (["predict", "--help"], 2.0)], ids=["all", "predict"]
)
def test_help_takes_little_more_than_the_library_behind_it(args: list[str], times: float) -> None:
    """Processor time beside that of an empty command of the same library, the best of several taken in turn: what a
    machine's speed and other work on it do, they do to both."""
    resource = pytest.importorskip("resource")

    def taken(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return float(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)

    ours = bare = float("inf")
    for _ in range(8):
        bare = min(bare, taken("-c", BARE))
        ours = min(ours, taken("-m", "foretrain.cli", *args))
    assert ours < times * bare


def test_version() -> None:
    ran = _run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"foretrain {foretrain.__version__}\n")


def test_no_command_is_a_usage_error_with_help() -> None:
    ran = _run()
    assert ran.returncode == 2
    assert "Commands:" in ran.stdout + ran.stderr


def test_a_reader_that_leaves_is_no_error() -> None:
    source = str(Path(foretrain.__file__).parents[1])
    command = f'"{sys.executable}" -m foretrain.cli catalog list nodes --json | head -c 10'
    ran = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": source}, check=False,
    )  # fmt: skip
    assert ran.stderr == ""
    assert ran.returncode in (0, 141)


def test_a_full_disk_behind_stdout_is_explained() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    source = str(Path(foretrain.__file__).parents[1])
    command = f'"{sys.executable}" -m foretrain.cli catalog list links --json > /dev/full'
    ran = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
        check=False,
    )
    assert ran.returncode == 2
    assert "No space left" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_narrow_encoding_does_not_stop_the_answer() -> None:
    ran = _run("catalog", "list", "links", PYTHONIOENCODING="ascii")
    assert ran.returncode == 0
    assert ran.stderr == ""


def test_colour_only_where_wanted() -> None:
    assert "\x1b" in _run("doctor", FORCE_COLOR="1").stdout
    assert "\x1b" not in _run("doctor").stdout


def test_predict_writes_every_report(tmp_path: Path) -> None:
    files = [
        str(tmp_path / f"x.{ext}") for ext in ("html", "json", "md", "txt", "csv", "trace.json.gz")
    ]
    ran = _run("predict", *ASK, *(word for file in files for word in ("-o", file)), "--json")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert sum(document["stalls"].values()) == pytest.approx(document["step_seconds"])
    assert json.loads((tmp_path / "x.json").read_text()) == document
    assert sorted(str(p) for p in tmp_path.iterdir()) == sorted(files)


def test_cases_answer_line_by_line(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "bad", "model": 7}\nnonsense\n')
    ran = _run("predict", "--cases", str(tmp_path / "c.jsonl"))
    assert ran.returncode == 1, ran.stderr
    assert "2 of 2 cases" in ran.stderr
    documents = [json.loads(line) for line in ran.stdout.splitlines()]
    assert [d["id"] for d in documents] == ["bad", "line-2"]
    assert all("error" in d for d in documents)


@pytest.mark.parametrize(
    "args",
    [
        ["fit", *ASK],
        ["whatif", *ASK, "--set", "network.bandwidth=2x"],
        ["sweep", *ASK, "--vary", "network.bandwidth=1x,2x"],
        ["compile", *ASK, "--dump"],
        ["schema", "case"],
    ],
    ids=lambda args: args[0],
)
def test_every_command_answers_json(args: list[str]) -> None:
    ran = _run(*args, "--json")
    assert ran.returncode in (0, 1), ran.stderr
    assert isinstance(json.loads(ran.stdout), dict)


def test_explain_and_compare(tmp_path: Path) -> None:
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    assert _run("predict", *ASK, "-q", "-o", a).returncode == 0
    assert _run("predict", *ASK, "--micro-batch", "2", "-q", "-o", b).returncode in (0, 1)
    for args in (["explain", a], ["compare", a, b]):
        ran = _run(*args)
        assert ran.returncode == 0, ran.stderr
        assert ran.stdout.strip()
