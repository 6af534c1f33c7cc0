"""The journal: what a search has found so far, in a file that outlives the process.

One SQLite file, one row per finished part of the space and per simulated plan, each in a transaction of its own:
a search that is killed at any moment goes on where it was. The file belongs to one search: it holds a hash of
everything that decides the answer, and any other search is refused. Rows carry a hash too, so that a damaged file
is an error and never a wrong answer. Several processes may write to one journal.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from foretrain.database import Database, FileForm
from foretrain.errors import FileError
from foretrain.planning.inputs import Key
from foretrain.planning.partial_result import PartialResult
from foretrain.planning.planner import Score

FORM = FileForm(
    what="search journal",
    application=0x466F7265,  # "Fore"
    steps=(
        (
            "CREATE TABLE search (digest TEXT NOT NULL, told TEXT NOT NULL)",
            "CREATE TABLE parts (number INTEGER PRIMARY KEY, found TEXT NOT NULL, hash TEXT NOT NULL)",
            "CREATE TABLE plans (plan TEXT PRIMARY KEY, score TEXT NOT NULL, hash TEXT NOT NULL)",
        ),
    ),
)
PARTS = "SELECT number, found, hash FROM parts ORDER BY number"
PLANS = "SELECT plan, score, hash FROM plans ORDER BY rowid"


class Journal:
    """Open while a search runs; `close` it or use it in a `with`."""

    def __init__(self, path: str | Path, key: Key, *, restart: bool = False) -> None:
        """`restart` forgets what the file holds, also of another search; files that are no journals are left alone."""
        self.path, self.key = Path(path), key
        self._file = Database(self.path, FORM)
        try:
            self._check(restart)
            self._file.at_once(self._forget if restart else self._claim)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    def known(self) -> dict[int, PartialResult]:
        """Surveys of finished parts by number."""
        rows = self._rows(PARTS)
        with self._file.explained():
            return {number: PartialResult.from_dict(found) for number, found in rows}

    def add(self, number: int, found: PartialResult) -> None:
        """Keep a finished part. If another process was first, its row stays: it says the same."""
        self._insert("parts", number, json.dumps(found.to_dict()))

    def simulated(self) -> dict[str, Score]:
        """Scores of simulated plans by their short form."""
        rows = self._rows(PLANS)
        with self._file.explained():
            return {plan: Score(**score) for plan, score in rows}

    def add_simulated(self, plan: str, score: Score) -> None:
        self._insert("plans", plan, json.dumps(score.to_dict()))

    # --- whose it is ----------------------------------------------------------------------------

    def _check(self, is_other_fine: bool) -> None:
        """Refuse a journal of another search, or a damaged one, before anything is written to it."""
        for digest, told in self._file.rows("SELECT digest, told FROM search"):
            if digest != self.key.digest and not is_other_fine:
                with self._file.explained():
                    raise self._of_another(json.loads(told))
        for query in (PARTS, PLANS):
            self._rows(query)

    def _claim(self, file: sqlite3.Connection) -> None:
        """Say whose it is. Another search may have been first since it was looked at."""
        rows = file.execute("SELECT digest, told FROM search").fetchall()
        if not rows:
            self._write_key(file)
        elif len(rows) > 1:
            raise self._file.damaged(f"it contains {len(rows)} searches")
        elif rows[0][0] != self.key.digest:
            raise self._of_another(json.loads(rows[0][1]))

    def _forget(self, file: sqlite3.Connection) -> None:
        for table in ("search", "parts", "plans"):
            file.execute(f"DELETE FROM {table}")
        self._write_key(file)

    def _write_key(self, file: sqlite3.Connection) -> None:
        told = json.dumps(dict(self.key.told))
        file.execute("INSERT INTO search VALUES (?, ?)", (self.key.digest, told))

    def _of_another(self, told: Mapping[str, Any]) -> FileError:
        here = self.key.told
        names = [name for name in dict.fromkeys((*told, *here)) if told.get(name) != here.get(name)]
        faults = [f"{name}: {told.get(name)} there, {here.get(name)} now" for name in names]
        return FileError(
            f"search journal {self.path} belongs to another search. It was not modified; "
            "specify another file, or use --restart to overwrite it.",
            faults=faults or ["they differ in details of the model, the cluster or the runtime"],
        )

    # --- rows -----------------------------------------------------------------------------------

    def _rows(self, query: str) -> list[tuple[Any, Any]]:
        rows = self._file.rows(query)
        for name, text, told in rows:
            if _hash(name, text) != told:
                raise self._file.damaged(f"the record of {name!r} does not match its hash")
        with self._file.explained():
            return [(name, json.loads(text)) for name, text, _ in rows]

    def _insert(self, table: str, name: Any, text: str) -> None:
        row = (name, text, _hash(name, text))
        self._file.write((f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)", row))


def _hash(name: Any, text: str) -> str:
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()
