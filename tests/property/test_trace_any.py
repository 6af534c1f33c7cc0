"""Traces of any kind: stalls against counting microseconds one by one, and files that were broken at random."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.traces import Written, training

from foretrain.adapters.read.elements import Elements, cut
from foretrain.adapters.read.kineto import read_trace
from foretrain.adapters.read.nccl_tests import read_nccl_tests
from foretrain.analysis.prediction import STALLS
from foretrain.errors import InputError
from foretrain.measurement.traces import analyse

LENGTH = 60  # microseconds of a drawn trace
interval = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted)
intervals = st.lists(interval, max_size=5)
drawn = st.fixed_dictionaries(
    dict.fromkeys(("work", "update", "network", "inside", "copy", "loading"), intervals)
)
quiet = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def written(parts: dict[str, list[list[int]]]) -> Written:
    trace = Written(world=16, origin=0.0)
    trace.step(0, 0, LENGTH)
    trace.mark("Optimizer.step#SGD.step", 0, 0.5)
    for begin, end in parts["work"]:
        trace.kernel("gemm", begin, end - begin, trace.launch(0.75, 0.1))
    for begin, end in parts["update"]:
        trace.kernel("update", begin, end - begin, trace.launch(0.25, 0.1))
    for begin, end in parts["network"]:
        trace.collective(begin, end - begin, ranks=range(16), launched=trace.launch(0.75, 0.1))
    for begin, end in parts["inside"]:
        trace.collective(begin, end - begin, ranks=range(8), launched=trace.launch(0.75, 0.1))
    for begin, end in parts["copy"]:
        launched = trace.launch(0.75, 0.1)
        trace.kernel("Memcpy HtoD", begin, end - begin, launched, cat="gpu_memcpy")
    for begin, end in parts["loading"]:
        trace.mark("enumerate(DataLoader)#x", begin, end - begin)
    return trace


def counted(parts: dict[str, list[list[int]]]) -> dict[str, float]:
    """The same, one microsecond after another."""
    order = (
        ("work", "compute"), ("update", "optimizer"), ("network", "network"), ("inside", "interconnect"),
        ("copy", "interconnect"), ("loading", "prep"),
    )  # fmt: skip
    found = dict.fromkeys(STALLS, 0.0)
    for moment in range(LENGTH):
        causes = (
            cause
            for name, cause in order
            if any(begin <= moment < end for begin, end in parts[name])
        )
        found[next(causes, "host")] += 1e-6
    return found


@quiet
@given(drawn)
def test_stalls_are_what_counting_says(tmp_path: Path, parts: dict[str, list[list[int]]]) -> None:
    if not any(parts[name] for name in ("work", "update", "network", "inside", "copy")):
        return  # nothing on a device: the CPU's own trace
    found = analyse([read_trace(written(parts).save(tmp_path / "t.json"))])
    expected = counted(parts)
    for name in STALLS:
        assert found.stalls[name] == pytest.approx(expected[name], abs=1e-12), name
    assert sum(found.stalls.values()) == found.step_seconds
    exposed = sum(
        any(begin <= m < end for name in ("network", "inside") for begin, end in parts[name])
        and not any(begin <= m < end for name in ("work", "update") for begin, end in parts[name])
        for m in range(LENGTH)
    )
    assert found.exposed_seconds == pytest.approx(exposed * 1e-6, abs=1e-12)


# --- pieces -----------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(['"', "\\", '\\"', "[{,"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@quiet
@given(
    st.lists(values, max_size=6),
    st.dictionaries(st.text(max_size=5), values, max_size=3),
    st.integers(1, 40),
    st.booleans(),
)
def test_any_array_in_any_pieces(
    array: list[Any], frame: dict[str, Any], size: int, ascii_only: bool
) -> None:
    frame.pop("events", None)
    raw = json.dumps({**frame, "events": array}, ensure_ascii=ascii_only).encode()
    elements = Elements((raw[at : at + size] for at in range(0, len(raw), size)), "events", "t")
    found = [json.loads(one) for block in elements if block.strip() for one in cut(block)]
    assert found == array
    assert not elements.is_cut


# --- broken -----------------------------------------------------------------------------------------

WHOLE = training(2, 8).text().encode()
NCCL = b"""# Collective test starting: all_reduce_perf
# Rank  0 Group  0 Pid 1 on a device  0 [0x01] H100
# Rank  1 Group  0 Pid 1 on a device  1 [0x01] H100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1    41.68    0.02    0.05      0    39.92    0.03    0.05    N/A
        2048           512     float     sum      -1    42.68    0.02    0.05      0    40.92    0.03    0.05    N/A
"""
bits = st.sampled_from(
    [
        b"",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b'"',
        b"\\",
        b"-",
        b"1e400",
        b"NaN",
        b"null",
        b"\xff",
        b"\0",
        b"[" * 100,
    ]
)
edits = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60), bits), min_size=1, max_size=6)


def broken(raw: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    for where, length, instead in changes:
        at = int(where * len(raw))
        raw = raw[:at] + instead + raw[at + length :]
    return raw


@settings(quiet, max_examples=150)
@given(edits, st.booleans())
def test_a_broken_trace_is_used_or_refused(
    tmp_path: Path, changes: list[tuple[float, int, bytes]], packed: bool
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(broken(gzip.compress(WHOLE), changes) if packed else broken(WHOLE, changes))
    try:
        found = analyse([read_trace(path)])
    except InputError:
        return
    assert sum(found.stalls.values()) == found.step_seconds > 0
    assert all(value >= 0 for value in found.stalls.values())
    json.dumps(found.to_dict(), allow_nan=False)


@settings(quiet, max_examples=100)
@given(edits)
def test_broken_results_are_used_or_refused(
    tmp_path: Path, changes: list[tuple[float, int, bytes]]
) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(broken(NCCL, changes))
    try:
        rows = read_nccl_tests(path).rows
    except InputError:
        return
    assert all(row.seconds > 0 and row.bytes >= 0 for row in rows)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10)
numbers = st.integers(0, 10**6) | st.floats(0, 1e6) | scalars
events = st.fixed_dictionaries(
    {
        "ph": st.sampled_from(["X", "X", "X", "i"]) | scalars,
        "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime", "user_annotation", "gpu_memcpy"]) | scalars,
        "name": st.sampled_from(["ProfilerStep#1", "ProfilerStep#2", "nccl", "gloo:all_reduce", "Optimizer.step#"])
        | scalars,
        "ts": numbers,
        "dur": numbers,
    },
    optional={"pid": scalars, "tid": scalars, "args": st.dictionaries(
        st.sampled_from(["External id", "correlation", "Input Dims", "Input type", "Collective name", "Group size",
                         "Process Group Ranks", "dtype", "In msg nelems"]), values | scalars, max_size=5) | scalars},
)  # fmt: skip


@settings(quiet, max_examples=200)
@given(st.lists(events, max_size=12))
def test_any_events_are_used_or_refused(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    try:
        found = analyse([read_trace(path)])
    except InputError:
        return
    assert sum(found.stalls.values()) == found.step_seconds > 0
    assert all(value >= 0 for value in found.stalls.values())
