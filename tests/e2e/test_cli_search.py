"""`foretrain search` as a user runs it."""

from __future__ import annotations

import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import foretrain
from foretrain.cli import run
from foretrain.cli.progress import SearchProgress, line
from foretrain.planning import planner
from foretrain.planning.partial_result import EstimatedPlan
from foretrain.planning.planner import SearchStatus

FEW = "vpp=1, cp=1, no offload, schedule=1f1b, zero<=1"
ASK = ["search", "gpt2", "--on", "1 x dgx-a100-80gb", "--batch", "32", "--where", FEW]
TOO_LARGE = [
    "search", "llama3-70b", "--on", "1 x dgx-a100-80gb", "--batch", "16",
    "--where", "tp=8, vpp=1, cp=1, no offload", "--where", "micro=1, schedule=1f1b",
]  # fmt: skip


def answered(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code = run([*args, "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, json.loads(captured.out)


def test_the_best_plans(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    names = [str(tmp_path / f"plans.{kind}") for kind in ("html", "json", "md", "csv", "txt")]
    assert run([*ASK, "--top", "3", *(word for name in names for word in ("-o", name))]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Best of ")
    assert "Why other choices are slower" in captured.out
    assert "\x1b" not in captured.out
    assert captured.err.splitlines() == [f"wrote {name}" for name in names]
    assert len(json.loads(Path(names[1]).read_text())["best"]) == 3


def test_json_is_the_same_every_time_and_with_more_workers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [answered(capsys, *ASK, "--top", "2", *more) for more in ([], [], ["--workers", "2"])]
    for code, document in found:
        assert code == 0
        document.pop("seconds")
    assert found[0] == found[1] == found[2]


def test_quiet_is_the_headline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run([*ASK, "-q", "--top", "1"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert captured.err == ""


def test_nothing_fits_is_an_answer_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TOO_LARGE) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "exceeds device memory by" in text
    assert "GiB; with 2x the nodes" in text
    code, document = answered(capsys, *TOO_LARGE)
    assert code == 1
    assert document["best"] == []
    assert document["nearest"]["lacks_bytes"] > 0
    assert document["with_more_nodes"]["factor"] == 2


def test_why_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ASK, "--top", "1", "--why", "tp=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    place = lines.index("Why not tp=2")
    assert lines[place + 1].startswith("  tp=2: at best tp2 ")
    assert place < next(i for i, text in enumerate(lines) if text.startswith("Best plans"))


def test_launch_files_are_written(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    args = ["--top", "1", "--export", str(folder), "--to", "megatron"]
    code, document = answered(capsys, *ASK, *args)
    assert code == 0
    exported = document["exported"]
    assert exported["target"] == "megatron"
    assert sorted(exported["files"]) == sorted(path.name for path in folder.iterdir())


def test_nothing_is_exported_where_nothing_fits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run([*TOO_LARGE, "-q", "--export", str(tmp_path / "x"), "--to", "megatron"]) == 1
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["search"], ["MODEL: missing", "--on: missing"]),
        (ASK[:4], ["--batch: missing"]),
        ([*ASK, "--plan", "tp4"], ["--plan"]),
        ([*ASK, "--objective", "speed"], ["Known: time, cost, memory, pareto"]),
        ([*ASK, "--top", "0"], ["top 0"]),
        ([*ASK, "--where", "tpp=4"], ["Did you mean 'tp'"]),
        ([*ASK, "--why", "tpp=4"], ["Did you mean 'tp'"]),
        ([*ASK, "--workers", "0"], ["0"]),
        ([*ASK, "-o", "x.pdf"], [".html"]),
        ([*ASK, "-o", "nowhere/x.html"], ["does not exist"]),
        ([*ASK, "--state", "nowhere/x.db"], ["nowhere"]),
        ([*ASK, "--export", "x"], ["--to", "megatron"]),
        ([*ASK, "--to", "megatron"], ["--export DIR"]),
        ([*ASK, "--export", "x", "--to", "megatorn"], ["Did you mean 'megatron'"]),
        ([*ASK, "--export", "nowhere/x/y", "--to", "megatron"], ["does not exist"]),
    ],
)
def test_bad_input_is_explained_before_any_plan_is_looked_at(
    args: list[str],
    said: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def looked(*_: Any) -> Any:
        raise AssertionError("a plan was looked at")

    monkeypatch.setattr(planner, "survey", looked)
    assert run(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    for words in said:
        assert words in captured.err


# --- interrupted --------------------------------------------------------------------------------------


def stopped_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of a part."""
    survey, calls = planner.survey, []

    def some(*args: Any, **more: Any) -> Any:
        calls.append(1)
        if len(calls) > count:
            raise KeyboardInterrupt
        return survey(*args, **more)

    monkeypatch.setattr(planner, "survey", some)


def test_ctrl_c_says_that_nothing_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(1, monkeypatch)
    assert run(ASK) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "in 1 of 4 parts of the search; no progress was saved" in captured.err
    assert "--state FILE" in captured.err


def test_ctrl_c_says_what_is_kept_and_the_search_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = str(tmp_path / "state.db")
    with monkeypatch.context() as patch:
        stopped_after(2, patch)
        assert run([*ASK, "--state", file]) == 130
    said = capsys.readouterr().err
    assert f"in 2 of 4 parts of the search; progress is saved in {file}." in said
    assert "Run the same command again" in said
    with monkeypatch.context() as patch:
        stopped_after(2, patch)  # no more than the two parts that are left
        assert run([*ASK, "--state", file, "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    assert run([*ASK, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    resumed.pop("seconds")
    whole.pop("seconds")
    assert resumed == whole


def test_ctrl_c_before_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(0, monkeypatch)
    assert run(ASK) == 130
    assert "interrupted before any plan was evaluated" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a terminal to press Ctrl-C in")
def test_a_terminal_shows_progress_and_takes_ctrl_c(tmp_path: Path) -> None:
    """A search of many plans in a terminal of its own; Ctrl-C once a line of progress is there."""
    import pty

    command = [
        sys.executable, "-m", "foretrain.cli", "search", "llama3-8b", "--on", "4 x dgx-h100", "--batch", "256",
        "--state", str(tmp_path / "state.db"),
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(Path(foretrain.__file__).parents[1])}
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command, stdout=follower, stderr=follower, stdin=follower, env=env, start_new_session=True
    )
    os.close(follower)
    text, end, is_stopped = b"", time.monotonic() + 90, False
    while time.monotonic() < end:
        if select.select([leader], [], [], 0.2)[0]:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            text += piece
        if b" left" in text and not is_stopped:
            is_stopped = True
            process.send_signal(signal.SIGINT)
        if process.poll() is not None and not select.select([leader], [], [], 0)[0]:
            break
    assert process.wait(timeout=30) == 130
    os.close(leader)
    said = text.decode()
    assert "plans " in said
    assert "best " in said
    assert "progress is saved in" in said
    assert "Traceback" not in said


# --- progress -----------------------------------------------------------------------------------------

SEEN = EstimatedPlan("dp8 zero1", 0.0306, 5e9, 8e10, 0.02, 0.0, 0.005, 0.005)


def test_the_line_of_progress() -> None:
    assert line(SearchStatus(5, 8, 21_570, SEEN, 10.0)) == (
        "plans 21,570, part 5 of 8, 6 s left, best 30.60 ms (dp8 zero1)"
    )
    assert line(SearchStatus(1, 8, 0, None, 2.0)) == "plans 0, part 1 of 8, 14 s left"
    assert line(SearchStatus(0, 0, 99, SEEN, 2.0, 3, 16)) == "plans 99, simulating 3 of 16"


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, quiet, is_there in (
        (Terminal(), False, True),
        (Terminal(), True, False),
        (io.StringIO(), False, False),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr("foretrain.cli.progress.QUIET_SECONDS", 0.0)
        with SearchProgress(quiet=quiet) as shown:
            shown(SearchStatus(5, 8, 21_570, SEEN, 10.0))
        assert ("plans 21,570" in stream.getvalue()) == is_there
        assert shown.reached() == "21,570 plans in 5 of 8 parts of the search"
