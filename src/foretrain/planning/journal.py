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
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from foretrain.errors import FileError
from foretrain.planning.inputs import Key
from foretrain.planning.planner import Score
from foretrain.planning.survey import Survey

APPLICATION = 0x466F7265  # "Fore": says in SQLite's header whose file it is
FORM = 1  # of the tables
PATIENCE = 30.0  # seconds to wait for another process that writes
SMALLEST_PAGE = 512  # bytes; a database is never smaller
TABLES = (
    "CREATE TABLE search (digest TEXT NOT NULL, told TEXT NOT NULL)",
    "CREATE TABLE parts (number INTEGER PRIMARY KEY, found TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE plans (plan TEXT PRIMARY KEY, score TEXT NOT NULL, hash TEXT NOT NULL)",
)
PARTS = "SELECT number, found, hash FROM parts ORDER BY number"
PLANS = "SELECT plan, score, hash FROM plans ORDER BY rowid"

T = TypeVar("T")


class Journal:
    """Open while a search runs; `close` it or use it in a `with`."""

    def __init__(self, path: str | Path, key: Key, *, restart: bool = False) -> None:
        """`restart` forgets what the file holds, also of another search; files that are no journals are left alone."""
        self.path, self.key = Path(path), key
        with self._explained():
            self._look(is_other_fine=restart)
            self._file = self._opened()
            try:
                _patiently(lambda: self._claim(restart))
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

    def known(self) -> dict[int, Survey]:
        """Surveys of finished parts by number."""
        rows = self._rows(PARTS)
        with self._explained():
            return {number: Survey.from_dict(found) for number, found in rows}

    def add(self, number: int, found: Survey) -> None:
        """Keep a finished part. If another process was first, its row stays: it says the same."""
        self._insert("parts", number, json.dumps(found.to_dict()))

    def simulated(self) -> dict[str, Score]:
        """Scores of simulated plans by their short form."""
        rows = self._rows(PLANS)
        with self._explained():
            return {plan: Score(**score) for plan, score in rows}

    def add_simulated(self, plan: str, score: Score) -> None:
        self._insert("plans", plan, json.dumps(score.to_dict()))

    # --- opening --------------------------------------------------------------------------------

    def _look(self, *, is_other_fine: bool) -> None:
        """Refuse a file that is not ours before anything can be written to it."""
        if not self.path.exists():
            return
        size = self.path.stat().st_size
        if not size:
            return
        if size < SMALLEST_PAGE:
            raise self._damaged(f"{size} bytes are too few")
        uri = f"{self.path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE)) as file:
            if not self._is_empty(file):
                self._check(file, is_other_fine=is_other_fine)

    def _opened(self) -> sqlite3.Connection:
        # Transactions are begun and ended by name: isolation_level None leaves them to us. A search may run in
        # another thread than the one that opened its journal, one at a time.
        file = sqlite3.connect(
            self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )
        try:
            # Where the file system cannot share memory, SQLite stays with its rollback journal: as safe, slower.
            _patiently(lambda: file.execute("PRAGMA journal_mode=WAL").fetchall())
            file.execute("PRAGMA synchronous=FULL")
        except BaseException:
            file.close()
            raise
        return file

    def _claim(self, restart: bool) -> None:
        """Make the tables, or make sure that they are of this search: at once, so that no other comes between."""
        with self._transaction():
            if self._is_empty(self._file):
                for table in TABLES:
                    self._file.execute(table)
                self._file.execute(f"PRAGMA application_id={APPLICATION}")
                self._file.execute(f"PRAGMA user_version={FORM}")
                self._write_key()
                return
            self._check(self._file, is_other_fine=restart)
            if restart:
                for table in ("search", "parts", "plans"):
                    self._file.execute(f"DELETE FROM {table}")
                self._write_key()

    def _write_key(self) -> None:
        told = json.dumps(dict(self.key.told))
        self._file.execute("INSERT INTO search VALUES (?, ?)", (self.key.digest, told))

    @staticmethod
    def _is_empty(file: sqlite3.Connection) -> bool:
        """A new database, or one whose maker was killed before it had tables."""
        tables = file.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        return not tables and not _pragma(file, "application_id")

    def _check(self, file: sqlite3.Connection, *, is_other_fine: bool) -> None:
        if _pragma(file, "application_id") != APPLICATION:
            raise self._foreign("it is a database of another program")
        form = _pragma(file, "user_version")
        if form != FORM:
            raise self._foreign(f"its form is {form}; this version of Foretrain writes {FORM}")
        faults = [row[0] for row in file.execute("PRAGMA quick_check(3)")]
        if faults != ["ok"]:
            raise self._damaged("; ".join(" ".join(str(fault).split()) for fault in faults))
        rows = file.execute("SELECT digest, told FROM search").fetchall()
        if len(rows) != 1:
            raise self._damaged(f"it is of {len(rows)} searches at once")
        digest, told = rows[0]
        if digest != self.key.digest and not is_other_fine:
            raise self._of_another(json.loads(told))
        for query in (PARTS, PLANS):
            self._sound(file.execute(query).fetchall())

    # --- rows -----------------------------------------------------------------------------------

    def _rows(self, query: str) -> list[tuple[Any, Any]]:
        with self._explained():
            rows = _patiently(lambda: self._file.execute(query).fetchall())
            return [(name, json.loads(text)) for name, text in self._sound(rows)]

    def _sound(self, rows: list[tuple[Any, str, str]]) -> list[tuple[Any, str]]:
        for name, text, told in rows:
            if _hash(name, text) != told:
                raise self._damaged(f"what it says of {name!r} is not what was written")
        return [(name, text) for name, text, _ in rows]

    def _insert(self, table: str, name: Any, text: str) -> None:
        def insert() -> None:
            with self._transaction():
                self._file.execute(
                    f"INSERT OR IGNORE INTO {table} VALUES (?, ?, ?)",
                    (name, text, _hash(name, text)),
                )

        with self._explained():
            _patiently(insert)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._file.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._file.execute("COMMIT")
        except BaseException:
            if self._file.in_transaction:
                self._file.execute("ROLLBACK")
            raise

    # --- what goes wrong ------------------------------------------------------------------------

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise FileError(
                f"search journal {self.path}: {error}. What was in it is still there; see that its folder "
                "exists and can be written, that the disk is not full, and search again."
            ) from error
        except sqlite3.DatabaseError as error:
            if "not a database" in str(error):
                raise self._foreign("it is not a database") from error
            raise self._damaged(str(error)) from error
        except OSError as error:
            raise FileError(f"search journal {self.path}: {error.strerror or error}.") from error
        except (ValueError, TypeError, KeyError) as error:
            raise self._damaged(f"a row cannot be read ({error!r})") from error

    def _foreign(self, why: str) -> FileError:
        return FileError(
            f"{self.path} is not a search journal that can be used: {why}. It is left as it is; name another file."
        )

    def _damaged(self, why: str) -> FileError:
        return FileError(
            f"search journal {self.path} is damaged: {why}. It is left as it is; move it away or name another file, "
            "and the search starts anew."
        )

    def _of_another(self, told: Mapping[str, Any]) -> FileError:
        here = self.key.told
        names = [name for name in dict.fromkeys((*told, *here)) if told.get(name) != here.get(name)]
        faults = [f"{name}: {told.get(name)} there, {here.get(name)} now" for name in names]
        return FileError(
            f"search journal {self.path} is of another search. It is left as it is; name another file, or restart "
            "to overwrite it.",
            faults=faults or ["they differ in details of the model, the cluster or the runtime"],
        )


def _hash(name: Any, text: str) -> str:
    return hashlib.sha256(f"{name}\n{text}".encode()).hexdigest()


def _pragma(file: sqlite3.Connection, name: str) -> int:
    return int(file.execute(f"PRAGMA {name}").fetchone()[0])


def _patiently(call: Callable[[], T]) -> T:
    """SQLite waits for other writers by itself, except where waiting could be a deadlock: there we try again."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except sqlite3.OperationalError as error:
            is_busy = "locked" in str(error) or "busy" in str(error)
            if not is_busy or time.monotonic() > until:
                raise
            time.sleep(0.02)
