"""What a renderer must hold, and sample predictions to hold it against.

from foretrain.testing.exporters import check_renderer
check_renderer("html")
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np

from foretrain.analysis.prediction import (
    STALLS,
    Lane,
    LinkFlows,
    LinkUse,
    Memory,
    Money,
    PathStep,
    Prediction,
    Remedy,
    StageMemory,
    Timeline,
)
from foretrain.compile.execution import BACKWARD, CHAIN, COLLECTIVE, FORWARD, TRANSFER, UPDATE
from foretrain.plan.schedules import schedule
from foretrain.report import render

GIB = 2.0**30
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>",
    "\"><svg/onload=alert(3)> & ' ` ${7*7} {{7*7}} {% raw %}",
    "=cmd|'/c calc'!A1",
    "\x1b[31mred\x1b[0m \x00 \r\n\t [bold]markup[/bold] | pipe",
    "half \ud800 surrogate, \u202e override, 日本語 🙂",
    "[a](javascript:alert(4)) @someone https://example.org <!-- -->",
)


# --- samples ------------------------------------------------------------------------------------


def sample_prediction(stages: int = 4, micro_batches: int = 8, ranks: int = 16) -> Prediction:
    """A plausible answer: a 1F1B pipeline of equal stages with sends and a gradient all-reduce."""
    timeline = _pipeline(stages, micro_batches, ranks // stages or 1)
    step = float(timeline.end.max())
    by_stage = tuple(_stage_stalls(timeline, stage, step) for stage in range(stages))
    stalls = by_stage[-1]
    memory = tuple(_stage_memory(stage, stages) for stage in range(stages))
    fullest = max(memory, key=lambda m: m.peak_bytes)
    tokens = 256 * 8192 / step
    return Prediction(
        id="sample",
        step_seconds=step,
        interval=(step * 0.87, step * 1.14),
        samples_per_second=256 / step,
        tokens_per_second=tokens,
        mfu=0.44,
        hfu=0.47,
        memory=Memory(
            fullest.peak_bytes, 80 * GIB, fullest.by_kind, memory, fullest.stage, fullest.moment
        ),
        stalls=stalls,
        stalls_by_stage=by_stage,
        bottleneck="compute",
        what_would_help=(
            Remedy(
                "cuda_graphs=true",
                step * 0.94,
                1 / 0.94,
                "option",
                "--set cuda_graphs=true",
                fullest.peak_bytes,
            ),
            Remedy("network bandwidth x2", step * 0.99, 1 / 0.99),
        ),
        cost=Money(196.8, 196.8 * step / 3600, "2025-11-01"),
        measured_share=0.82,
        assumptions=("recompute: none (the runtime's default)", "data loading is not a limit"),
        warnings=("the last stage is 3 % slower than the others",),
        provenance={
            "version": "0.1.0",
            "calibration": "distilled",
            "inputs_sha256": "ab" * 32,
            "engine": "reference",
        },
        question={
            "model": "llama3-8b",
            "cluster": "2 x dgx-h100",
            "plan": f"tp4 pp{stages} zero1",
            "global_batch": 256,
            "micro_batch": 1,
            "seq_len": 8192,
            "precision": "bf16",
            "optimizer": "adam",
            "runtime": "megatron",
            "devices": ranks,
            "nodes": stages,
        },
        timeline=timeline,
        critical_path=tuple(
            PathStep(
                float(timeline.start[i]), float(timeline.end[i]), int(timeline.stage[i]), "layer 0"
            )
            for i in range(0, len(timeline), 7)
        ),
        links=_links(timeline, stages, step),
        operators=(("layers.mlp.up", step * 0.2), ("layers.attention", step * 0.1)),
    )


def _links(timeline: Timeline, stages: int, step: float) -> tuple[LinkUse, ...]:
    """Each stage is a node: its kernels talk over a switch, sends and gradients leave by its network cards."""
    links = []
    for stage in range(stages):
        for kind, rate, moved in (("device->switch", 3e11, 6e9), ("nic->fabric", 2.5e10, 2e8)):
            is_network = kind == "nic->fabric"
            lanes = (3 * stage + 1, 3 * stage + 2) if is_network else (3 * stage,)
            task = np.flatnonzero(np.isin(timeline.lane, lanes)).astype(np.int32)
            label = (timeline.kind[task] == COLLECTIVE).astype(np.int32)
            names = ("pipeline send", "data all-reduce") if is_network else ("tensor all-reduce",)
            name = f"network.nic{stage}->fabric" if is_network else f"domain{stage}.device0->switch"
            flows = LinkFlows(task, np.full(len(task), moved), label, names)
            total, traffic = moved * len(task), ((names[0].split()[0], moved * len(task)),)
            links.append(LinkUse(
                name, is_network, total, rate, total / rate / step, kind, 4, traffic, (stage,), (stage,), flows,
            ))  # fmt: skip
    return tuple(sorted(links, key=lambda link: -link.share))


def _pipeline(stages: int, micro_batches: int, ranks: int) -> Timeline:
    forward, backward, send = 0.1, 0.2, 0.004
    rows: list[tuple[float, float, int, int, int, int, int, int, int]] = []
    ends: dict[tuple[int, int, int], tuple[float, int]] = {}  # (phase, stage, micro) -> end, task
    order = schedule("1f1b").order
    orders = [order(stage, stages, micro_batches, 1).tolist() for stage in range(stages)]
    free = [0.0] * stages
    next_up = [0] * stages
    while any(at < len(order) for at, order in zip(next_up, orders, strict=True)):
        for stage in range(stages):
            if next_up[stage] == len(orders[stage]):
                continue
            phase, _, micro = orders[stage][next_up[stage]]
            source = stage - 1 if phase == FORWARD else stage + 1
            ready, waited = 0.0, -1
            if 0 <= source < stages:
                if (phase, source, micro) not in ends:
                    continue
                ready, waited = ends[phase, source, micro]
            start = max(free[stage], ready)
            end = start + (forward if phase == FORWARD else backward)
            rows.append((start, end, 3 * stage, phase, stage, micro, phase, CHAIN, waited))
            target = stage + 1 if phase == FORWARD else stage - 1
            ends[phase, stage, micro] = (end, len(rows) - 1)
            if 0 <= target < stages:
                sent = (end, end + send, 3 * stage + 1, 2, stage, micro, phase, TRANSFER)
                rows.append((*sent, len(rows) - 1))
                ends[phase, stage, micro] = (end + send, len(rows) - 1)
            free[stage] = end
            next_up[stage] += 1
    for stage in range(stages):
        end = free[stage]
        rows.append((end, end + 0.05, 3 * stage + 2, 3, stage, -1, BACKWARD, COLLECTIVE, -1))
        rows.append((end + 0.05, end + 0.08, 3 * stage, 4, stage, -1, UPDATE, CHAIN, len(rows) - 1))
    # what holds no stream is part of a timeline, but of no lane
    rows.append((0.0, 0.0, -1, 0, 0, -1, FORWARD, CHAIN, 0))
    rows.append((0.1, 0.2, -1, 0, 0, -1, FORWARD, CHAIN, len(rows) - 1))
    lanes = tuple(
        Lane(stage, stage, stream, ranks)
        for stage in range(stages)
        for stream in ("compute", "pipeline", "data")
    )
    columns = list(zip(*rows, strict=True))
    ints = [np.array(column, dtype=np.int32) for column in columns[2:]]
    lane, label, stage_column, micro_column, phase_column, kind, waited_for = ints
    return Timeline(
        np.array(columns[0]), np.array(columns[1]), lane, label, stage_column,
        np.zeros(len(rows), dtype=np.int32), micro_column, phase_column.astype(np.int8),
        kind.astype(np.int8), waited_for, lanes,
        ("forward", "backward", "send activations", "all-reduce gradients", "adam"),
    )  # fmt: skip


def _stage_stalls(timeline: Timeline, stage: int, step: float) -> dict[str, float]:
    length = timeline.end - timeline.start
    here = timeline.stage == stage
    stalls = dict.fromkeys(STALLS, 0.0)
    chain = here & (timeline.kind == CHAIN)
    stalls["optimizer"] = float(length[chain & (timeline.phase == UPDATE)].sum())
    compute = float(length[chain].sum()) - stalls["optimizer"]
    stalls["interconnect"] = compute * 0.08
    stalls["host"] = compute * 0.02
    stalls["compute"] = compute * 0.90
    stalls["network"] = float(length[here & (timeline.kind == COLLECTIVE)].sum())
    stalls["bubble"] = step - sum(stalls.values())
    return stalls


def _stage_memory(stage: int, stages: int) -> StageMemory:
    by_kind = {
        "weights": 4.0 * GIB,
        "gradients": 8.0 * GIB,
        "optimizer": 12.0 * GIB,
        "activations": (stages - stage) * 8.0 * GIB,
        "buffers": 2.5 * GIB,
    }
    return StageMemory(stage, sum(by_kind.values()), by_kind, "backward of micro-batch 0")


def hostile_prediction() -> Prediction:
    """Every text a user can choose, chosen with bad intent."""
    good = sample_prediction(2, 2, 2)
    one, two, three, four, five, six = HOSTILE
    return replace(
        good,
        id=one,
        bottleneck=two,
        question={**good.question, "model": one, "cluster": five, "plan": four, one: six},
        warnings=HOSTILE,
        assumptions=HOSTILE,
        provenance={**good.provenance, "calibration": one, two: three},
        what_would_help=tuple(Remedy(text, 1.0, 1.1) for text in HOSTILE),
        operators=tuple((text, 1.0) for text in HOSTILE),
        critical_path=tuple(PathStep(0.0, 1.0, 0, text) for text in HOSTILE),
        links=tuple(
            _hostile_link(link, text)
            for link, text in zip((*good.links, *good.links), HOSTILE, strict=False)
        ),
        memory=replace(good.memory, moment=one, by_kind={**good.memory.by_kind, two: 1.0}),
        timeline=replace(
            good.timeline,
            labels=(one, two, four, five, six),
            lanes=tuple(replace(lane, stream=one) for lane in good.timeline.lanes),
        ),
    )


def _hostile_link(link: LinkUse, text: str) -> LinkUse:
    number = np.zeros(1, dtype=np.int32)
    flows = LinkFlows(number, np.ones(1), number, (text,))
    return replace(link, name=f"domain0.{text}->x", kind=text, traffic=((text, 1.0),), flows=flows)


def bare_prediction() -> Prediction:
    """As little as an answer can hold: no tokens, prices, remedies, tasks or stages; nothing finite to divide by."""
    good = sample_prediction(1, 1, 1)
    none = np.zeros(0, dtype=np.int32)
    small = none.astype(np.int8)
    empty = Timeline(
        np.zeros(0), np.zeros(0), none, none, none, none, none, small, small, none, (), ()
    )
    return replace(
        good, tokens_per_second=None, mfu=None, hfu=None, interval=(0.0, float("inf")), measured_share=float("nan"),
        memory=Memory(0.0, 0.0, {}, (), 0, ""), stalls=dict.fromkeys(STALLS, 0.0), stalls_by_stage=(),
        what_would_help=(), cost=Money(None, None, None), assumptions=(), warnings=(), provenance={}, question={},
        timeline=empty, critical_path=(), links=(), operators=(),
    )  # fmt: skip


def sample_predictions() -> Iterator[Prediction]:
    """What every renderer must be able to show."""
    yield sample_prediction()
    yield sample_prediction(1, 1, 1)
    yield sample_prediction(
        24, 48, 192
    )  # more stages than a terminal shows, activations that do not fit
    yield hostile_prediction()
    yield bare_prediction()


# --- checks -------------------------------------------------------------------------------------


def check_renderer(name: str) -> None:
    """Raise AssertionError unless renderer `name` accepts any prediction, gives the same bytes each time,
    gives a valid file of its format, and lets no hostile name do harm."""
    check = _FORMATS[name.split(".")[-1] if not name.endswith(".gz") else "gz"]
    for prediction in sample_predictions():
        content = render(prediction, name)
        assert content, f"{name}: an empty report of {prediction.id!r}"
        assert content == render(prediction, name), f"{name}: two renderings differ"
        raw = content.encode("utf-8") if isinstance(content, str) else content
        check(raw)


def _check_json(raw: bytes) -> None:
    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads(raw, parse_constant=refuse)
    assert isinstance(document, dict)
    if "traceEvents" in document:
        _check_trace(document["traceEvents"])


def _check_trace(events: list[dict[str, Any]]) -> None:
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    for event in events:
        assert event["ph"] in "XMsf", f"unknown event {event}"
        if event["ph"] == "X":
            assert isinstance(event["dur"], float | int)
            assert event["dur"] >= 0, f"ends before it starts: {event}"
            assert (event["pid"], event["tid"]) in named, f"on an unnamed thread: {event}"
    _check_threads([event for event in events if event["ph"] == "X"])


def _check_threads(events: list[dict[str, Any]]) -> None:
    """Viewers misread events of one thread that overlap."""
    ends: dict[tuple[int, int], float] = {}
    for event in sorted(events, key=lambda e: (e["ts"], e["dur"])):
        thread = (event["pid"], event["tid"])
        assert event["ts"] >= ends.get(thread, 0.0) - 1e-3, f"overlaps the one before: {event}"
        ends[thread] = event["ts"] + event["dur"]


def _check_gz(raw: bytes) -> None:
    assert raw[4:8] == b"\0\0\0\0", "the header carries a time stamp"
    _check_json(gzip.decompress(raw))


def _check_lines(raw: bytes) -> None:
    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 1, "a document must be one line"
    _check_json(raw)


def _check_text(raw: bytes) -> None:
    text = raw.decode("utf-8")
    bad = sorted(
        {c for c in text if ord(c) < 32 and c != "\n"} | {c for c in text if c == "\u202e"}
    )
    assert not bad, f"control characters reach the screen: {bad!r}"


def _check_markdown(raw: bytes) -> None:
    _check_text(raw)
    text = raw.decode("utf-8")
    live = re.search(r"<[a-z!/]|(?<!\\)\]\(|://|@", text)
    assert live is None, f"{text[live.start() :][:40]!r} is live in Markdown" if live else ""


def _check_csv(raw: bytes) -> None:
    _check_text(raw)
    rows = list(csv.reader(io.StringIO(raw.decode("utf-8"))))
    assert all(len(row) == 2 for row in rows)
    assert rows[0] == ["path", "value"]
    for row in rows:
        for cell in row:
            assert cell[:1] not in ("=", "@", "+"), f"a spreadsheet would run {cell!r}"


class _Page(HTMLParser):
    """Collects what a browser would run or fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.faults: list[str] = []
        self.drawings = self.tips = 0
        self.last = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.drawings += tag == "svg" and ("class", "drawing") in attrs
        self.tips, self.last = self.tips + (tag == "title" and self.last == "path"), tag
        for name, value in attrs:
            if name.startswith("on"):
                self.faults.append(f"<{tag}> runs {name}={value!r}")
            if name in ("src", "href") and not (value or "").startswith("data:"):
                self.faults.append(f"<{tag}> fetches {value!r}")


def _check_html(raw: bytes) -> None:
    page = _Page()
    page.feed(raw.decode("utf-8"))
    assert not page.faults, page.faults
    assert page.tags.get("script") == 3, "a script element was opened or closed by a name"
    assert "img" not in page.tags
    assert page.tags.get("svg", 0) == page.drawings, "a name drew something"
    assert page.tags.get("title") == 1 + page.tips, "a name has a title of its own"
    for tag in ("h1", "main"):
        assert page.tags.get(tag) == 1, f"{tag}: {page.tags.get(tag, 0)} times"


_FORMATS: dict[str, Callable[[bytes], None]] = {
    "html": _check_html,
    "json": _check_json,
    "jsonl": _check_lines,
    "md": _check_markdown,
    "txt": _check_text,
    "csv": _check_csv,
    "gz": _check_gz,
}
