"""The store of measurements keeps what it is given, and says so when it cannot."""

from __future__ import annotations

import json
import sqlite3
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from foretrain.database import Database, FileForm
from foretrain.errors import FileError, InputError
from foretrain.measurement import records
from foretrain.measurement.machine import Machine
from foretrain.measurement.records import (
    Measurement,
    canonical,
    link_key,
    median_and_spread,
    op_key,
    packed,
    unpacked,
)
from foretrain.measurement.store import FORM, Store, store_path
from foretrain.model.ops.base import Kernel

HERE = Machine(
    cpu="a CPU",
    cores=2,
    memory_gib=8,
    devices=(),
    driver="",
    host="0123456789abcdef",
    system="Linux 6",
    software=(("python", "3.11.1"), ("torch", "2.13.0")),
)
KERNEL = Kernel("gemm", "forward", 2e6, 12e3, "fp32", (1, 100, 100, 100))


def measured(number: int = 0, machine: Machine = HERE) -> Measurement:
    return Measurement.of(
        "link", link_key("all_reduce", 2, 1024 << number), [2.0, 1.0, 4.0], machine
    )


def test_what_was_added_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "store.sqlite"
    one = Measurement.of(
        "op", op_key(KERNEL, threads=1), [0.3, 0.1, 0.2], HERE, about={"note": "x"}
    )
    with Store.open(path) as store:
        store.add(one)
    with Store.open(path) as store:
        assert store.known("op", op_key(KERNEL, threads=1), HERE) == one
        assert store.known("op", op_key(KERNEL, threads=2), HERE) is None
        assert store.known("link", op_key(KERNEL, threads=1), HERE) is None
        assert store.known("op", op_key(KERNEL, threads=1), replace(HERE, cores=4)) is None
        assert store.machines() == {HERE.id: HERE}
        assert store.rows() == (one,)
        assert store.count() == {(HERE.id, "op"): 1}


def test_measured_again_both_stay_and_the_newer_one_counts(tmp_path: Path) -> None:
    old = replace(measured(), at="2026-01-01T00:00:00.000000+00:00")
    new = replace(measured(), at="2026-01-02T00:00:00.000000+00:00", seconds=5.0)
    other = replace(measured(1), at="2026-01-01T12:00:00.000000+00:00")
    with Store.open(tmp_path / "s.sqlite") as store:
        store.add(new)
        store.add(old, other)
        store.add(old)  # the very same: kept once
        assert store.rows() == (old, other, new)
        assert store.rows(newest=True) == (other, new)
        assert store.known("link", old.key, HERE) == new


def test_rows_are_chosen_by_kind_and_machine(tmp_path: Path) -> None:
    there = replace(HERE, host="fedcba9876543210")
    with Store.open(tmp_path / "s.sqlite") as store:
        store.add(measured(0), measured(1, there))
        assert [m.machine for m in store.rows(machine=there)] == [there]
        assert [m.machine for m in store.rows("link", HERE.id)] == [HERE]
        assert store.rows("op") == ()


def test_calibrations_are_kept_in_order(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.sqlite") as store:
        store.add_calibration(HERE, {"b": 2}, "2026-01-02")
        store.add_calibration(HERE, {"a": 1}, "2026-01-01")
        assert store.calibrations(HERE) == ({"a": 1}, {"b": 2})
        assert store.calibrations("nobody") == ()


def test_a_machine_is_told_by_what_decides_its_speed() -> None:
    assert replace(HERE, software=(("python", "3.12"), ("torch", "2.13.0"))).id == HERE.id
    assert replace(HERE, software=(("python", "3.11.1"), ("torch", "2.14.0"))).id != HERE.id
    assert replace(HERE, driver="555").id != HERE.id
    assert Machine.from_dict(json.loads(json.dumps(HERE.to_dict()))) == HERE


def test_this_machine_is_the_same_twice_and_names_no_host() -> None:
    import socket

    here = Machine.here()
    assert here == Machine.here()
    assert here.cores >= 1
    assert here.memory_gib >= 1
    assert socket.gethostname() not in json.dumps(here.to_dict())


def test_the_key_of_a_thing_has_one_text() -> None:
    assert (
        canonical({"b": 2.0, "a": (1, 2)})
        == canonical({"a": [1, 2], "b": 2})
        == '{"a":[1,2],"b":2}'
    )
    for bad in ({"a": float("nan")}, {"a": {1}}, {"a": "x" * 30_000}):
        with pytest.raises(InputError):
            canonical(bad)


def test_median_and_spread_stand_outliers() -> None:
    middle, spread = median_and_spread([1.0, 1.1, 0.9, 1.0, 50.0])
    assert middle == 1.0
    assert spread == pytest.approx(0.1 * 1.4826)


def test_samples_survive_packing_and_bombs_do_not_burst() -> None:
    assert unpacked(packed([1.0, 2.5])) == (1.0, 2.5)
    for bad in (
        b"",
        b"no",
        zlib.compress(b"abc"),
        zlib.compress(bytes(100_000_000)),
        packed([1.0])[:-2],
    ):
        with pytest.raises(ValueError):
            unpacked(bad)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kind": "weather"}, "kind"),
        ({"seconds": float("nan")}, "seconds"),
        ({"spread": -1.0}, "spread"),
        ({"repeats": 0}, "repeats"),
        ({"samples": (float("inf"),)}, "samples"),
    ],
)
def test_impossible_measurements_are_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(InputError) as caught:
        replace(measured(), **change)  # type: ignore[arg-type]
    assert any(fault.startswith(told) for fault in caught.value.faults)


# --- files that are not stores ----------------------------------------------------------------------


def refused(path: Path) -> str:
    """The message of a file that must be refused, and left as it is."""
    before = path.read_bytes()
    with pytest.raises(FileError) as caught, Store.open(path) as store:
        store.rows()
    assert path.read_bytes() == before
    return str(caught.value)


def test_files_of_others_are_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("dear diary " * 1000)
    assert "not a database" in refused(text)
    text.write_text("short")
    assert "too small" in refused(text)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as file:
        file.execute("CREATE TABLE mine (x)")
    file.close()
    assert "another program" in refused(other)
    with pytest.raises(FileError, match="regular file"):
        Store.open(tmp_path)


def test_a_store_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    Store.open(path).close()
    with sqlite3.connect(path) as file:
        file.execute(f"PRAGMA user_version={FORM.version + 1}")
    file.close()
    assert f"its format version is {FORM.version + 1}" in refused(path)


@pytest.mark.parametrize(
    "trap",
    [
        "DROP TABLE calibrations; CREATE VIEW calibrations AS "
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS hash FROM n",
        "CREATE TRIGGER t AFTER INSERT ON measurements BEGIN DELETE FROM measurements; END",
        "CREATE TABLE more (x)",
        "ALTER TABLE measurements ADD COLUMN more",
        "DROP INDEX measured",
    ],
)
def test_a_store_with_other_tables_is_refused(tmp_path: Path, trap: str) -> None:
    path = tmp_path / "s.sqlite"
    Store.open(path).close()
    file = sqlite3.connect(path)
    file.executescript(trap)
    file.close()
    assert "tables do not match" in refused(path)


def test_a_missing_store_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        Store.open(tmp_path / "no.sqlite", must_exist=True)
    assert not (tmp_path / "no.sqlite").exists()


def test_an_unwritable_place_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="Specify another file"):
        Store.open(tmp_path / "file" / "s.sqlite")


def test_cut_off_stores_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    with Store.open(path) as store:
        store.add(*(measured(n) for n in range(20)))
    path.write_bytes(path.read_bytes()[:9000])
    assert "corrupted" in refused(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE measurements SET seconds = seconds * 2",
        "UPDATE measurements SET key = '{}'",
        "UPDATE measurements SET samples = x'00'",
        "UPDATE measurements SET at = 'never'",
        "UPDATE measurements SET about = '['",
        "UPDATE measurements SET kind = 'weather'",
        "UPDATE machines SET told = '{}'",
        "UPDATE machines SET id = 'x'",
        "DELETE FROM machines",
    ],
)
def test_changed_rows_are_found_out(tmp_path: Path, change: str) -> None:
    path = tmp_path / "s.sqlite"
    with Store.open(path) as store:
        store.add(measured())
    with sqlite3.connect(path) as file:
        file.execute(change)
    file.close()
    with pytest.raises((FileError, InputError)), Store.open(path) as store:
        store.rows()


def test_altered_rows_are_named_all_at_once_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    wanted = [measured(n) for n in range(4)]
    with Store.open(path) as store:
        store.add(*wanted)
    digests = [wanted[1].digest, wanted[2].digest]
    with sqlite3.connect(path) as file:
        file.execute(
            "UPDATE measurements SET seconds = seconds * 2 WHERE digest IN (?, ?)", digests
        )
    file.close()
    with pytest.raises(FileError) as told, Store.open(path) as store:
        store.rows()
    assert "2 of 4 rows do not match their checksum" in str(told.value)
    assert len(told.value.faults) == 2
    remedy = str(told.value).partition("(DELETE")[2].partition("))")[0]
    with sqlite3.connect(path) as file:  # as the message says
        file.execute(f"DELETE{remedy})")
    file.close()
    with Store.open(path) as store:
        assert {row.digest for row in store.rows()} == {wanted[0].digest, wanted[3].digest}


def test_flipped_bytes_never_give_another_answer(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    wanted = [measured(n) for n in range(8)]
    with Store.open(path) as store:
        store.add(*wanted)
    raw = path.read_bytes()
    for place in range(0, len(raw), 211):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 0x55]) + raw[place + 1 :])
        try:
            with Store.open(path) as store:
                found = store.rows()
        except InputError:
            continue
        assert {m.digest for m in found} <= {m.digest for m in wanted}


def test_older_forms_are_brought_up_to_date(tmp_path: Path) -> None:
    first = FileForm("thing", 77, (("CREATE TABLE a (x)",),))
    second = replace(first, steps=(*first.steps, ("ALTER TABLE a ADD y DEFAULT 5",)))
    path = tmp_path / "f.sqlite"
    old = Database(path, first)
    old.write(("INSERT INTO a VALUES (?)", (1,)))
    old.close()
    new = Database(path, second)
    assert new.rows("SELECT x, y FROM a") == [(1, 5)]
    new.close()
    with pytest.raises(FileError, match="its format version is 2"):
        Database(path, first)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    first = FileForm("thing", 77, (("CREATE TABLE a (x)",),))
    broken = replace(first, steps=(*first.steps, ("CREATE TABLE b (x)", "NONSENSE")))
    path = tmp_path / "f.sqlite"
    Database(path, first).close()
    with pytest.raises(FileError):
        Database(path, broken)
    same = Database(path, first)
    assert same.rows("SELECT name FROM sqlite_schema") == [("a",)]
    same.close()


def test_where_the_store_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("FORETRAIN_STORE", raising=False)
    assert store_path().name == "store.sqlite"
    monkeypatch.setenv("FORETRAIN_STORE", str(tmp_path / "mine"))
    assert store_path() == tmp_path / "mine"
    assert store_path("other") == Path("other")


def test_kinds_are_those_of_the_documentation() -> None:
    assert records.KINDS == ("op", "link", "data", "train", "host")
