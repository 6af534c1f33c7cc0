"""Files whose last writer was killed amid a transaction that only a writer can undo."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import pytest

from foretrain import database
from foretrain.database import Database, FileForm
from foretrain.errors import FileError

FORM = FileForm("thing", 77, (("CREATE TABLE a (x)",),))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "UNDONE_BY_ITSELF", 0.05)


def killed(path: Path, before: Iterable[str]) -> dict[Path, bytes]:
    """A file as a kill leaves it with half of a transaction in it, and what lies beside it to undo that."""
    alive = path.with_name("alive")
    file = sqlite3.connect(alive, isolation_level=None)
    for statement in before:
        file.execute(statement)
    file.execute("PRAGMA cache_size=1")  # so that pages reach the file before the end
    file.execute("BEGIN IMMEDIATE")
    file.execute("CREATE TABLE half (x)")
    for _ in range(50):
        file.execute("INSERT INTO half VALUES (zeroblob(5000))")
    found = {}
    for rest in ("", "-journal"):
        copy = Path(f"{path}{rest}")
        shutil.copyfile(f"{alive}{rest}", copy)
        found[copy] = copy.read_bytes()
    file.close()
    with pytest.raises(sqlite3.OperationalError):
        _read_only(path)
    return found


def _read_only(path: Path) -> None:
    file = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        file.execute("SELECT * FROM sqlite_schema").fetchall()
    finally:
        file.close()


def test_ours_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ours"
    made = ("CREATE TABLE a (x)", "INSERT INTO a VALUES (5)")
    killed(path, (*made, "PRAGMA application_id=77", "PRAGMA user_version=1"))
    file = Database(path, FORM)
    assert file.rows("SELECT x FROM a") == [(5,)]
    file.write(("INSERT INTO a VALUES (?)", (6,)))
    file.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["alive", "ours"]


def test_killed_before_it_had_tables(tmp_path: Path) -> None:
    path = tmp_path / "new"
    killed(path, ())
    Database(path, FORM).close()


def test_another_programs_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "theirs"
    before = killed(path, ("CREATE TABLE mine (x)",))
    with pytest.raises(FileError, match="another program"):
        Database(path, FORM)
    assert {one: one.read_bytes() for one in before} == before
