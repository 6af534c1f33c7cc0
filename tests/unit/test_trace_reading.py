"""Reading profiler traces from strangers: whole, in pieces, broken, hostile, large."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
import zlib
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.traces import Written, training

from foretrain.adapters.read import stream
from foretrain.adapters.read.elements import Elements, cut
from foretrain.adapters.read.kineto import KERNEL, MARK, OP, RUNTIME, read_trace
from foretrain.adapters.read.stream import FileChunks
from foretrain.errors import FileError


def small() -> Written:
    trace = Written(rank=3, world=8, host="node7")
    trace.step(0, 0, 100)
    op = trace.op("aten::mm", 10, 20, [[4, 8], [8, 2]])
    trace.kernel("gemm", 40, 30, trace.launch(15), op)
    trace.collective(60, 20, ranks=range(8))
    return trace


def test_everything_told_is_read(tmp_path: Path) -> None:
    found = read_trace(small().save(tmp_path / "t.json"))
    assert found.kind.tolist() == [MARK, OP, RUNTIME, KERNEL, KERNEL]
    np.testing.assert_allclose(found.start, [0, 10e-6, 15e-6, 40e-6, 60e-6], atol=1e-9)
    np.testing.assert_allclose(found.seconds, [100e-6, 20e-6, 4e-6, 30e-6, 20e-6], rtol=1e-12)
    assert found.shapes == (("[[4, 8], [8, 2]]", '["float", "float"]'),)
    assert found.shape.tolist() == [-1, 0, -1, -1, -1]
    assert found.correlation[2] == found.correlation[3] >= 0
    assert found.external[1] == found.external[3] >= 0
    (call,) = found.calls
    assert (call.collective, call.bytes, call.size) == ("all_reduce", 4000.0, 8)
    assert call.ranks == tuple(range(8))
    assert (found.rank, found.world, found.host) == (3, 8, "node7")
    assert len(found.devices) == 8
    assert found.began == pytest.approx(1_790_857_026 + 3_942_838.453)
    assert found.warnings == ()


@pytest.mark.parametrize("members", [1, 3])
def test_gzip_reads_as_plain(tmp_path: Path, members: int) -> None:
    raw = small().text().encode()
    plain, packed = tmp_path / "t.json", tmp_path / "t.json.gz"
    plain.write_bytes(raw)
    cuts = [len(raw) * n // members for n in range(members + 1)]
    packed.write_bytes(b"".join(gzip.compress(raw[a:b]) for a, b in pairwise(cuts)) + b"\0" * 100)
    one, other = read_trace(plain), read_trace(packed)
    assert one.start.tolist() == other.start.tolist()
    assert one.names == other.names
    assert other.warnings == ()


def test_what_stands_around_the_events_may_follow_them(tmp_path: Path) -> None:
    trace = small()
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": trace.events, **trace.frame}))
    assert (read_trace(path).rank, read_trace(path).world) == (3, 8)


@pytest.mark.parametrize("end", ["]", "", ",", "\n"])
def test_a_bare_array_may_stay_open(tmp_path: Path, end: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(small().events)[:-1] + end)
    found = read_trace(path)
    assert len(found.start) == 5
    assert found.warnings == ()


# --- cutting ----------------------------------------------------------------------------------------

TRICKY: list[Any] = [
    {"a": '"}],\\', "b": ["[", {"c": "\\\\"}]}, 1, "x,y", [], {}, {"k": "\\\"", "l": [[1, 2], [3]]}, None,
    {"traceEvents": [1]}, "é\u2028", -1.5e3,
]  # fmt: skip


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 10_000])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_elements_do_not_depend_on_where_pieces_end(piece: int, ascii_only: bool) -> None:
    frame = {"note": '"traceEvents": [ in a string', "deep": {"traceEvents": [0]}, "one": 1}
    text = json.dumps({**frame, "traceEvents": TRICKY, "after": 2}, ensure_ascii=ascii_only)
    raw = text.encode()
    pieces = [raw[at : at + piece] for at in range(0, len(raw), piece)]
    elements = Elements(pieces, "traceEvents", "t")
    found = [json.loads(one) for block in elements if block.strip() for one in cut(block)]
    assert found == TRICKY
    assert not elements.is_cut
    assert [json.loads(text) for text in elements.frame] == [frame, {"after": 2}]


# --- cut off ----------------------------------------------------------------------------------------


def test_a_file_cut_anywhere_gives_what_was_whole(tmp_path: Path) -> None:
    raw = small().text().encode()
    begin, closed = raw.index(b"[", raw.index(b'"traceEvents"')), raw.rindex(b"]")
    path = tmp_path / "t.json"
    seen = set()
    for end in range(begin + 1, len(raw), 17):
        path.write_bytes(raw[:end])
        whole = raw[begin:end].count(b"}}")
        if not whole:
            with pytest.raises(FileError, match="no PyTorch profiler events"):
                read_trace(path)
            continue
        found = read_trace(path)
        assert len(found.start) == whole
        seen.add(whole)
        assert bool(found.warnings) == (end <= closed)
        assert all("is truncated" in line for line in found.warnings)
    assert seen == {1, 2, 3, 4, 5}


def test_a_gzip_file_cut_or_damaged_gives_what_was_whole(tmp_path: Path) -> None:
    raw = training(4, 40).text().encode()
    packed = gzip.compress(raw, 6)
    path = tmp_path / "t.json.gz"
    whole = 4 * (2 + 40 * 3 + 10 * 2 + 4)
    path.write_bytes(packed[: len(packed) // 2])
    found = read_trace(path)
    assert 0 < len(found.start) < whole
    assert "the gzip file is truncated" in found.warnings[0]
    told = set()
    for at in range(200, len(packed) - 40, len(packed) // 25):
        damaged = bytearray(packed)
        damaged[at : at + 40] = b"\xff" * 40
        path.write_bytes(damaged)
        try:
            found = read_trace(path)
        except FileError:  # what came out of the damage is no trace
            told.add("refused")
            continue
        assert 0 < len(found.start) <= whole
        told |= {"damaged" for line in found.warnings if "damaged" in line}
    assert "damaged" in told


def test_a_wrong_checksum_costs_nothing_but_a_warning(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(small().text().encode()))
    packed[-6] ^= 255
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    found = read_trace(path)
    assert len(found.start) == 5
    assert found.rank == 3
    assert "damaged" in found.warnings[0]


# --- hostile ----------------------------------------------------------------------------------------


def refused(path: Path, raw: bytes | str, seconds: float = 20.0) -> str:
    """The message with which a file is refused, soon."""
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    began = time.monotonic()
    with pytest.raises(FileError) as error:
        read_trace(path)
    assert time.monotonic() - began < seconds
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("hello", "not JSON"),
        ("\x00\x01\x02" * 100, "not JSON"),
        ('{"a": 1}', "no list 'traceEvents'"),
        ('{"traceEvents": 3}', "no list 'traceEvents'"),
        ('{"traceEvents": {"a": []}}', "no list 'traceEvents'"),
        ('{"a": {"traceEvents": []}}', "no list 'traceEvents'"),
        ('{"a": "\\"traceEvents\\": ["}', "no list 'traceEvents'"),
        ('{"traceEvents": []}', "no PyTorch profiler events"),
        ('{"traceEvents": [}', "no PyTorch profiler events"),
        ("[1, 2, null, {}, [], [[]]]", "no PyTorch profiler events"),
        ('[{"ph": "X", "cat": "kernel", "ts": NaN, "dur": 1}]', "no PyTorch profiler events"),
        ('[{"ph": "X", "cat": "kernel", "ts": 1e999, "dur": 1}]', "no PyTorch profiler events"),
        ('[{"ph": "X", "cat": "kernel", "ts": -5, "dur": 1}]', "no PyTorch profiler events"),
        ('[{"ph": "X", "cat": "kernel", "ts": 5, "dur": -1}]', "invalid timestamps"),
        ('[{"ph": "X", "cat": "kernel", "ts": 5, "dur": 1e300}]', "invalid timestamps"),
        ('[{"ph": "X", "cat": "kernel", "ts": "5", "dur": 1}]', "are not events"),
        ('[{"ph": "X", "cat": 7, "ts": 5, "dur": 1}]', "are not events"),
        ('[{"ph": "X", "cat": "kernel", "ts": 5, "dur": 1, "args": [1]}]', "are not events"),
    ],
)
def test_what_is_no_trace_is_refused_in_words(tmp_path: Path, raw: str, said: str) -> None:
    assert said in refused(tmp_path / "t.json", raw)


def test_gzip_of_nothing_and_of_rubbish(tmp_path: Path) -> None:
    assert "empty" in refused(tmp_path / "t", gzip.compress(b""))
    assert "empty" in refused(tmp_path / "t", b"\x1f\x8b" + b"\xff" * 50)
    assert "empty" in refused(tmp_path / "t", b"\x1f\x8b")


MILLION = 1_000_000


@pytest.mark.parametrize(
    "raw",
    [
        b"[" * MILLION,
        b'{"a":' * MILLION,
        b'{"traceEvents":' + b"[" * MILLION,
        b'{"traceEvents":[{"args":' + b"[" * MILLION + b"]" * MILLION + b"}]}",
        b'{"traceEvents":[{"args":' + b'{"a":' * MILLION + b"1" + b"}" * MILLION + b"}]}",
        b'{"deep":' + b"[" * MILLION + b"]" * MILLION + b',"traceEvents":[]}',
        b'{"traceEvents":[],"deep":' + b"[" * MILLION + b"]" * MILLION + b"}",
    ],
)
def test_a_million_levels_are_refused(tmp_path: Path, raw: bytes) -> None:
    assert "nested deeper than" in refused(tmp_path / "t.json", raw)
    assert "nested deeper than" in refused(tmp_path / "t.json", gzip.compress(raw))


def test_brackets_in_strings_are_no_levels(tmp_path: Path) -> None:
    trace = small()
    trace.op("[{" * 1000 + '"\\', 50, 1)
    found = read_trace(trace.save(tmp_path / "t.json"))
    assert len(found.start) == 6


def test_a_gzip_bomb_is_refused_before_it_unpacks(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(stream, "FREE_BYTES", 1 << 22)
    pack = zlib.compressobj(9, wbits=31)
    raw = pack.compress(b'{"traceEvents":[') + b"".join(
        pack.compress(b" " * (1 << 20)) for _ in range(64)
    )
    assert "times its size" in refused(tmp_path / "t.json.gz", raw + pack.flush())


def test_nested_gzip_is_not_followed(tmp_path: Path) -> None:
    assert "not JSON" in refused(tmp_path / "t", gzip.compress(gzip.compress(b"[]")))


def test_one_endless_event_is_refused(tmp_path: Path) -> None:
    text = b'{"traceEvents":[{"name":"' + b"x" * (24 << 20)
    assert "longer than" in refused(tmp_path / "t.json", text)
    assert "longer than" in refused(tmp_path / "t.json", text.replace(b"x", b"\\"))


def test_too_much_before_and_after_the_events(tmp_path: Path) -> None:
    blank = b" " * (24 << 20)
    assert "no list" in refused(tmp_path / "t.json", b"{" + blank + b'"traceEvents":[]}')
    path = tmp_path / "t.json"
    path.write_bytes(small().text().encode()[:-1] + b',"x":"' + blank + b'"}')
    found = read_trace(path)
    assert len(found.start) == 5
    assert "too long" in found.warnings[0]


def test_many_false_keys_take_no_long(tmp_path: Path) -> None:
    text = '{"a": [' + '{"traceEvents":[]},' * 300_000 + "0]}"
    assert "no list" in refused(tmp_path / "t.json", text)


@pytest.mark.parametrize(("limit", "value"), [("MAX_NAMES", 10), ("MAX_ROOM", 3000)])
def test_more_than_enough_names_share_one(
    tmp_path: Path, monkeypatch: Any, limit: str, value: int
) -> None:
    from foretrain.adapters.read import kineto

    monkeypatch.setattr(kineto, limit, value)
    trace = small()
    for number in range(50):
        trace.op(f"op{number}" + "x" * 1000, 200 + number, 1, [[number] * 200], tid=number)
    found = read_trace(trace.save(tmp_path / "t.json"))
    assert 10 <= len(found.names) <= 20
    assert found.names[-1] == kineto.OTHER
    assert max(len(name) for name in found.names) == kineto.MAX_NAME
    assert len(found.shapes) <= 10
    assert int(found.shape[-1]) == -1
    assert len(found.start) == 55


def test_too_many_events_are_refused(tmp_path: Path, monkeypatch: Any) -> None:
    from foretrain.adapters.read import kineto

    monkeypatch.setattr(kineto, "MAX_EVENTS", 4)
    assert "more than 4 events" in refused(tmp_path / "t.json", small().text())


def test_events_with_faults_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = small()
    good = json.dumps(trace.events)[1:-1]
    bad = [
        '{"ph": "X", "cat": "kernel", "name": 5, "ts": 1, "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "a", "ts": [1], "dur": 1}',
        '{"ph": "X", "cat": "kernel", "name": "a", "ts": Infinity, "dur": 1}',
        '{"ph": "X" "cat": "kernel"}',
        '"text"',
    ]
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents": [{",".join(bad)}, {good}]}}')
    found = read_trace(path)
    assert len(found.start) == 5
    assert found.warnings == ("5 entries are not events and were skipped",)


def test_duplicate_keys(tmp_path: Path) -> None:
    """Of a key in an event the last counts, as everywhere; of the events the first list."""
    event = '{"ph":"X","ph":"X","cat":"x","cat":"cpu_op","name":"a","ts":1,"ts":2,"dur":1,"tid":1,"pid":1}'
    path = tmp_path / "t.json"
    path.write_text(f'{{"traceEvents":[{event}],"traceEvents":[{event},{event}]}}')
    found = read_trace(path)
    assert len(found.start) == 1
    assert "more than once" in found.warnings[0]


@pytest.mark.parametrize("odd", [None, "x", -1, 1.5, 2**70, True, [], {}])
def test_odd_values_of_ids_and_places_are_unknown(tmp_path: Path, odd: Any) -> None:
    trace = small()
    trace.frame |= {
        "distributedInfo": {"rank": odd, "world_size": odd}, "deviceProperties": odd, "host_name": odd,
        "baseTimeNanoseconds": odd,
    }  # fmt: skip
    for event in trace.events:
        for key in event["args"]:
            if key not in ("Input Dims", "Input type"):
                event["args"][key] = odd
    found = read_trace(trace.save(tmp_path / "t.json"))
    assert len(found.start) == 5
    assert found.rank is None
    assert found.devices == ()
    assert (found.external == -1).all()


def test_folders_pipes_and_missing_files(tmp_path: Path) -> None:
    for path, said in ((tmp_path, "folder"), (tmp_path / "no.json", "does not exist")):
        with pytest.raises(FileError, match=said):
            read_trace(path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileError, match="not a regular file"):
        read_trace(tmp_path / "pipe")


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    path = small().save(tmp_path / "t.json")
    assert b"".join(FileChunks(path, "a trace", lambda *now: told.append(now))) == path.read_bytes()
    assert told[-1] == (path.stat().st_size, path.stat().st_size)


# --- large ------------------------------------------------------------------------------------------

READ = """
import re, sys, time
from pathlib import Path
from foretrain.measurement.traces import analyse, read_traces
began = time.process_time()
report = analyse(read_traces(sys.argv[1:]))
seconds = time.process_time() - began
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(seconds, int(peak[1]) * 1024, report.steps)
"""


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_large_trace_takes_seconds_and_little_memory(tmp_path: Path, suffix: str) -> None:
    """Processor time, since other work may share the machine; 35 MB stand for more: both grow with the events."""
    path = training(40, 1200).save(tmp_path / f"big.{suffix}")
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True
    )
    seconds, resident, steps = (float(word) for word in done.stdout.split())
    assert steps == 40
    assert seconds < 10.0
    assert resident < 300e6
