"""Measurements as files: what goes out comes in again, and what is no measurement is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import measured_machine as known
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretrain.errors import FileError, InputError
from foretrain.measurement.exchange import WRITERS, read_measurements, to_csv, to_document
from foretrain.measurement.store import Store


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_both_ways(tmp_path: Path, suffix: str) -> None:
    rows = tuple(known.measurements())
    file = tmp_path / f"rows{suffix}"
    file.write_text(WRITERS[suffix](rows))
    assert read_measurements(file) == rows
    with Store.open(tmp_path / "s.sqlite") as store:
        store.add(*read_measurements(file))
        store.add(*read_measurements(file))  # twice is once
        assert len(store.rows()) == len(rows)


@pytest.mark.parametrize("suffix", list(WRITERS))
def test_nothing_is_a_file_too(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"none{suffix}").write_text(WRITERS[suffix]([]))
    assert read_measurements(tmp_path / f"none{suffix}") == ()


def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(to_document(known.measurements()[:2])))
    return found


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("seconds", "fast", "seconds"),
        ("seconds", -1, "seconds"),
        ("seconds", None, "seconds"),
        ("spread", True, "spread"),
        ("kind", "weather", "kind"),
        ("kind", 5, "kind"),
        ("repeats", 0, "repeats"),
        ("repeats", "x", "repeats"),
        ("key", [], "key"),
        ("samples", ["a"], "samples"),
        ("samples", "aaa", "samples"),
        ("machine", "unknown", "machine"),
        ("machine", {}, ""),
        ("at", 5, "at"),
    ],
)
def test_faults_have_a_place(tmp_path: Path, key: str, value: object, told: str) -> None:
    rows = document()
    rows["measurements"][1][key] = value
    (tmp_path / "r.json").write_text(json.dumps(rows))
    with pytest.raises(FileError) as caught:
        read_measurements(tmp_path / "r.json")
    assert caught.value.faults
    assert all(fault.startswith("measurements[1]: ") for fault in caught.value.faults)
    assert told in caught.value.faults[0]


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 7},
        {"machines": []},
        {"measurements": {}},
        {"machines": {"x": 5}},
        {"machines": {"x": {"cpu": "y"}}},
    ],
)
def test_other_documents_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "r.json").write_text(json.dumps({**document(), **change}))
    with pytest.raises(FileError):
        read_measurements(tmp_path / "r.json")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("r.json", ""),
        ("r.json", "[" * 10**6),
        ("r.json", '{"a": NaN}'),
        ("r.csv", ""),
        ("r.csv", "a,b,c\n1,2,3\n"),
        ("r.csv", "kind,seconds,spread,repeats,at,key,about,samples,machine\n" + "x" * 4_000_000),
        ("r.csv", "kind,seconds,spread,repeats,at,key,about,samples,machine\nop,1,2\n"),
        (
            "r.csv",
            "kind,seconds,spread,repeats,at,key,about,samples,machine\nop,x,0,1,t,{},{},[],{}\n",
        ),
        ("r.txt", "what"),
        ("r.json", "\x00\x01"),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(FileError):
        read_measurements(tmp_path / name)


def test_deep_cells_are_refused(tmp_path: Path) -> None:
    text = to_csv(known.measurements()[:1]).replace('"{', '"' + "[" * 200_000 + "{", 1)
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(FileError):
        read_measurements(tmp_path / "r.csv")


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_files_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    suffix = data.draw(st.sampled_from(list(WRITERS)))
    raw = bytearray(WRITERS[suffix](known.measurements()[:3]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(("flip", "cut", "repeat"))):
            case "flip":
                raw[place] = data.draw(st.integers(0, 255))
            case "cut":
                del raw[place : place + data.draw(st.integers(1, 40))]
            case "repeat":
                raw[place:place] = raw[place : place + 40]
        if not raw:
            break
    (tmp_path / f"r{suffix}").write_bytes(raw)
    try:
        rows = read_measurements(tmp_path / f"r{suffix}")
    except InputError:
        return
    with Store.open(tmp_path / "s.sqlite") as store:
        store.add(*rows)
        assert {row.digest for row in rows} <= {row.digest for row in store.rows()}
