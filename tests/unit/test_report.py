"""Every renderer against the conformance kit, and what each must say in particular."""

from __future__ import annotations

import gzip
import io
import json
import os
import shlex
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from foretrain.analysis.prediction import Prediction, Remedy, Timeline
from foretrain.errors import FileError, InputError
from foretrain.report import (
    RENDERERS,
    TRACES,
    document_of,
    format_of,
    render,
    save,
    terminal,
    text,
    trace,
    words,
)
from foretrain.report import files as report_files
from foretrain.report.json import dumps
from foretrain.report.timeline import bars
from foretrain.testing.exporters import (
    bare_prediction,
    check_renderer,
    hostile_prediction,
    sample_prediction,
)


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return sample_prediction()


@pytest.mark.parametrize("name", sorted((*RENDERERS, *TRACES)))
def test_conformance(name: str) -> None:
    check_renderer(name)


@pytest.mark.parametrize(
    ("path", "fmt"),
    [
        ("a.json", "json"),
        ("a.trace.json", "trace.json"),
        ("A.TRACE.JSON.GZ", "trace.json.gz"),
        ("x/y.b.html", "html"),
    ],
)
def test_format_is_the_longest_known_extension(path: str, fmt: str) -> None:
    assert format_of(path, has_timeline=True) == fmt


@pytest.mark.parametrize("path", ["report", "report.pdf", "report.gz", "html"])
def test_unknown_extension_lists_the_known_ones(path: str) -> None:
    with pytest.raises(InputError, match=r"\.html, \.json"):
        format_of(path)


def test_near_miss_is_suggested() -> None:
    with pytest.raises(InputError, match="Did you mean 'html'"):
        format_of("x.htm")


def test_unknown_format_is_an_input_error(prediction: Prediction) -> None:
    with pytest.raises(InputError, match="Did you mean 'json'"):
        render(prediction, "jsn")


# --- files --------------------------------------------------------------------------------------


def test_save_through_the_prediction(prediction: Prediction, tmp_path: Path) -> None:
    prediction.save(str(tmp_path / "x.json"))
    document = json.loads((tmp_path / "x.json").read_text("utf-8"))
    assert document["step_seconds"] == prediction.step_seconds
    assert sum(document["stalls"].values()) == pytest.approx(document["step_seconds"])
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_failed_save_leaves_the_old_file_and_no_litter(
    prediction: Prediction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.md"
    target.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report_files.os, "replace", full)
    with pytest.raises(FileError, match="No space left"):
        save(prediction, target)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.md"]


@pytest.mark.parametrize("bad", ["missing/x.json", "folder.json", "nul\0.json"])
def test_unwritable_places_are_explained(prediction: Prediction, tmp_path: Path, bad: str) -> None:
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(FileError):
        save(prediction, tmp_path / bad)


def test_saved_files_have_ordinary_permissions(prediction: Prediction, tmp_path: Path) -> None:
    save(prediction, tmp_path / "x.json")
    (tmp_path / "plain").write_text("")
    modes = [stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("x.json", "plain")]
    assert modes[0] == modes[1]


def test_a_link_stays_a_link(prediction: Prediction, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    save(prediction, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads((tmp_path / "real.json").read_text())["id"] == "sample"


# --- words --------------------------------------------------------------------------------------


def test_headline_says_the_decision(prediction: Prediction) -> None:
    told = replace(
        prediction,
        step_seconds=20.93,
        interval=(18.11, 23.87),
        tokens_per_second=1650.0 * 16,
        memory=replace(prediction.memory, peak_bytes=61.2 * 2**30),
    )
    assert words.headline(told) == (
        "20.9 s per step (18.1–23.9 s), 1,650 tokens/s/device, MFU 44 %, fits: 61.2 of 80.0 GiB usable"
    )


def test_headline_says_no(prediction: Prediction) -> None:
    told = replace(prediction, memory=replace(prediction.memory, peak_bytes=91 * 2**30))
    assert "DOES NOT FIT: 91.0 of 80.0 GiB usable" in words.headline(told)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (20.93, "20.9 s"),
        (0.4123, "412 ms"),
        (1.0, "1.00 s"),
        (0.00001234, "12.3 µs"),
        (0.0, "0 s"),
        (float("inf"), "unknown"),
        (7200, "2.00 h"),
    ],
)
def test_seconds_carry_three_digits(value: float, shown: str) -> None:
    assert words.seconds(value) == shown


def test_devices_fall_back_to_the_timeline(prediction: Prediction) -> None:
    assert words.devices(replace(prediction, question={})) == 16


def test_json_is_strict() -> None:
    value = {
        "a": np.float64("nan"),
        1: (np.int32(3), np.array([1.0, np.inf])),
        "s": "\ud800",
        "b": True,
    }
    assert json.loads(dumps(value)) == {"a": None, "1": [3, [1.0, None]], "s": "?", "b": True}


# --- terminal -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 200])
def test_terminal_never_runs_over(prediction: Prediction, width: int) -> None:
    for sample in (prediction, hostile_prediction(), bare_prediction()):
        lines = text.render(document_of(sample), width).splitlines()
        if sample is prediction:
            assert max(len(line) for line in lines) <= width


def test_terminal_opens_with_the_headline(prediction: Prediction) -> None:
    lines = text.render(document_of(prediction)).splitlines()
    assert lines[0] == words.headline(prediction)
    shown = "\n".join(lines)
    for needed in (
        "Where the time goes",
        "bubble",
        "Memory by stage",
        "What would help",
        "Assumptions",
    ):
        assert needed in shown


@pytest.mark.parametrize("width", [36, 60, 100])
def test_options_in_several_lines_are_the_same_to_a_shell(
    prediction: Prediction, width: int
) -> None:
    plan = '"tp8 pp16 dp8 zero1 sp recompute=selective"'
    paste = f"--plan {plan} --micro-batch 4 --batch 2048 --set tp_comm_overlap=true"
    one = replace(prediction, what_would_help=(Remedy("", 1.0, 1.1, "plan", paste),))
    shown = text.render(document_of(one), width).partition("What would help\n")[2]
    told = shown.partition("1.00 s")[0]
    assert shlex.split(told.replace("\\\n", "")) == shlex.split(paste)
    assert "\n" not in told.rstrip("\n ").replace("\\\n", "")
    assert plan in told
    assert max(map(len, told.splitlines())) <= max(width, len(plan) + 4)


def test_terminal_numbers_survive_a_narrow_screen(prediction: Prediction) -> None:
    shown = text.render(document_of(prediction), 40)
    for _, value, _ in words.stall_rows(prediction.stalls, prediction.step_seconds):
        assert words.seconds(value) in shown


def test_many_stages_are_shortened_and_said() -> None:
    shown = text.render(document_of(sample_prediction(24, 24, 24)))
    assert "Showing the 16 of 24 stages with the highest peak" in shown


def test_markup_in_names_is_shown_not_obeyed() -> None:
    assert "[bold]markup[/bold]" in text.render(document_of(hostile_prediction()), 400)


def test_quiet_is_one_line(prediction: Prediction) -> None:
    assert text.laid_out(text.sheet(document_of(prediction), -1), 200).count("\n") == 1


@pytest.mark.parametrize("width", [1, 10, 36, 72, 100, 400])
def test_a_terminal_shows_what_a_pipe_gets(prediction: Prediction, width: int) -> None:
    for sample in (prediction, sample_prediction(24, 24, 24), hostile_prediction()):
        out = Console(file=io.StringIO(), width=width, color_system=None, _environ={})
        shown = text.sheet(document_of(sample), 1)
        terminal.show(shown, out)
        lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert [line.rstrip() for line in lines] == text.laid_out(shown, width).splitlines()


@pytest.mark.parametrize("wish", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_colour_is_left_to_rich(wish: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "77")
    assert text.plain_width(io.StringIO()) == (77 if os.name == "posix" else None)
    monkeypatch.setenv(wish, "1")
    assert text.plain_width(io.StringIO()) is None


# --- trace --------------------------------------------------------------------------------------


def test_trace_holds_every_task(prediction: Prediction) -> None:
    document = json.loads(gzip.decompress(trace.render_gz(document_of(prediction))))
    tasks = [e for e in document["traceEvents"] if e["ph"] == "X" and e["cat"] != "flow"]
    assert len(tasks) == (prediction.timeline.lane >= 0).sum() == len(prediction.timeline) - 2
    assert max(e["ts"] + e["dur"] for e in tasks) == pytest.approx(prediction.step_seconds * 1e6)
    names = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert names == [*(f"stage {s} (x4 ranks)" for s in range(4)), "links"]
    assert min(e["pid"] for e in tasks) == min(e["tid"] for e in tasks) == 1
    assert document["otherData"]["arrows_left_out"] == 0
    assert tasks[0]["cat"] == "chain"
    assert tasks[0]["args"]["phase"] == "forward"


def test_trace_bars_of_a_stream_do_not_overlap(prediction: Prediction) -> None:
    document = json.loads(trace.render(document_of(prediction)))
    ends: dict[int, float] = {}
    tasks = [e for e in document["traceEvents"] if e["ph"] == "X"]
    for event in sorted(tasks, key=lambda e: e["ts"]):
        assert event["ts"] >= ends.get(event["tid"], 0.0) - 1e-3
        ends[event["tid"]] = event["ts"] + event["dur"]


def test_trace_says_how_many_arrows_it_left_out(
    prediction: Prediction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MAX_ARROWS", 5)
    document = json.loads(trace.render(document_of(prediction)))
    assert sum(e["ph"] == "s" for e in document["traceEvents"]) == 5
    assert document["otherData"]["arrows_left_out"] > 0


def test_trace_arrows_come_in_pairs_and_point_forward(prediction: Prediction) -> None:
    events = json.loads(trace.render(document_of(prediction)))["traceEvents"]
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    arrives = {e["id"]: e for e in events if e["ph"] == "f"}
    assert begins.keys() == arrives.keys()
    assert begins
    assert all(begins[i]["ts"] <= arrives[i]["ts"] for i in begins)


# --- timeline bars ------------------------------------------------------------------------------


def test_small_timelines_are_drawn_whole(prediction: Prediction) -> None:
    drawn = bars(prediction.timeline)
    assert len(drawn.start) == len(prediction.timeline) - 2  # those without a lane
    assert drawn.shortest_drawn_alone == 0.0


def _random_timeline(tasks: int, lanes: int) -> Timeline:
    draw = np.random.default_rng(7)
    lane = np.sort(draw.integers(0, lanes, tasks)).astype(np.int32)
    length = draw.exponential(1.0, tasks) ** 3
    start = np.zeros(tasks)
    for one in range(lanes):
        mine = np.flatnonzero(lane == one)
        gaps = draw.exponential(0.1, len(mine))
        start[mine] = np.cumsum(gaps) + np.concatenate(([0.0], np.cumsum(length[mine])[:-1]))
    zero = np.zeros(tasks, dtype=np.int32)
    small = zero.astype(np.int8)
    sample = sample_prediction().timeline
    return Timeline(
        start,
        start + length,
        lane,
        zero,
        zero,
        zero,
        zero,
        small,
        small,
        zero - 1,
        sample.lanes[:lanes],
        ("t",),
    )


@pytest.mark.parametrize("lanes", [1, 7])
def test_merged_bars_keep_counts_and_busy_time(lanes: int) -> None:
    timeline = _random_timeline(30_000, lanes)
    drawn = bars(timeline, limit=2_000)
    assert len(drawn.start) <= 2_000
    assert drawn.count.sum() == len(timeline)
    length = timeline.end - timeline.start
    assert drawn.busy.sum() == pytest.approx(length.sum())
    assert drawn.end.max() == timeline.end.max()
    alone = length >= drawn.shortest_drawn_alone
    assert (drawn.count[np.isin(drawn.task, np.flatnonzero(alone))] == 1).all()
    assert alone.sum() == np.isin(drawn.task, np.flatnonzero(alone)).sum()
    for one in range(lanes):  # still in order, still apart
        mine = timeline.lane[drawn.task] == one
        assert (drawn.start[mine][1:] >= drawn.end[mine][:-1] - 1e-9).all()


# --- html ---------------------------------------------------------------------------------------


def test_html_says_when_bars_were_merged(prediction: Prediction) -> None:
    page = render(replace(prediction, timeline=_random_timeline(30_000, 3)), "html")
    assert isinstance(page, str)
    drawn = json.loads(page.split('id="timeline">')[1].split("</script>")[0])
    assert drawn["tasks"] == 30_000
    assert len(drawn["start"]) <= 20_000
    assert drawn["merged"] > 0
    assert sum(drawn["count"]) == 30_000


def test_html_holds_the_numbers_without_scripts(prediction: Prediction) -> None:
    page = str(render(prediction, "html"))
    body = page.split('<script type="application/json"')[0]
    for name, value, _ in words.stall_rows(prediction.stalls, prediction.step_seconds):
        assert f"<td>{name}</td>" in body
        assert words.seconds(value) in body


def test_html_does_not_run_template_code_from_names() -> None:
    assert "{{7*7}}" in str(render(hostile_prediction(), "html"))


@pytest.mark.parametrize(
    ("factor", "text"), [(1.306, "1.31×"), (0.81, "0.81×"), (0.005, "0.01×"), (0.0031, "<0.01×")]
)
def test_what_is_far_slower_is_not_no_speed_at_all(factor: float, text: str) -> None:
    assert words.times(factor) == text
