"""A SQLite file that outlives kills and other writers, and says clearly when it is not ours or damaged.

Writes are transactions that are on the disk when they return (WAL, synchronous FULL). The form of the tables has a
number; older files are brought up to date when they are opened, newer ones are refused and left as they are.
What a killed process left half-done SQLite undoes at the next opening; a file that may be another program's is
looked at in a copy then, since undoing is writing.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from foretrain.errors import FileError

PATIENCE = 60.0  # seconds to wait for another process that writes
UNDONE_BY_ITSELF = 1.0  # seconds in which a process that lives is done with making a file
SMALLEST_PAGE = 512  # bytes; a database is never smaller
LONGEST = 64_000_000  # bytes of a value; a file with more is not ours

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileForm:
    """Whose file it is and how its tables came about."""

    what: str  # as messages call it
    application: int  # SQLite's header says whose file it is
    steps: tuple[tuple[str, ...], ...]  # statements of each migration; their number is the version
    remedy: str = ""  # for a file that should be there
    makes_folder: bool = False  # of a file that is not there

    @property
    def version(self) -> int:
        return len(self.steps)

    def schema(self, version: int) -> list[tuple[Any, ...]]:
        """What a file of that version has in it, and nothing else: no view or trigger that would run unasked."""
        with closing(sqlite3.connect(":memory:")) as empty:
            for step in self.steps[:version]:
                for statement in step:
                    empty.execute(statement)
            return _schema(empty)


class Database:
    """An open file of one form; `close` it. One thread at a time."""

    def __init__(self, path: Path, form: FileForm, *, must_exist: bool = False) -> None:
        self.path, self.form = path, form
        with self.explained():
            self._look(must_exist)
            self._file = self._opened()
            try:
                patiently(self._bring_up_to_date)
            except BaseException:
                self._file.close()
                raise

    def close(self) -> None:
        self._file.close()

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.explained():
            return patiently(lambda: self._file.execute(query, values).fetchall())

    def write(self, *statements: tuple[str, Sequence[Any]]) -> None:
        """All statements or none; when this returns they are on the disk."""

        def every(file: sqlite3.Connection) -> None:
            for statement, values in statements:
                file.execute(statement, values)

        self.at_once(every)

    def at_once(self, work: Callable[[sqlite3.Connection], None]) -> None:
        """What reads and writes as one: no other process comes between, and all of it is kept or nothing."""

        def once() -> None:
            with self._transaction():
                work(self._file)

        with self.explained():
            patiently(once)

    # --- opening --------------------------------------------------------------------------------

    def _look(self, must_exist: bool) -> None:
        """Refuse a file that is not ours before anything can be written to it."""
        if not self.path.exists():
            if must_exist:
                raise FileError(f"{self.form.what} {self.path} does not exist. {self.form.remedy}")
            if self.form.makes_folder:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            return
        if not self.path.is_file():
            raise self.foreign("it is not a regular file")
        size = self.path.stat().st_size
        if not size:
            return
        if size < SMALLEST_PAGE:
            raise self.foreign(f"it is too small for a database ({size} B)")
        until = time.monotonic() + UNDONE_BY_ITSELF
        while True:
            try:
                return self._look_at(self.path, "ro")
            except sqlite3.OperationalError:
                if time.monotonic() > until:
                    return self._look_at_a_copy()
                time.sleep(0.02)

    def _look_at(self, path: Path, mode: str) -> None:
        uri = f"{path.resolve().as_uri()}?mode={mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE)) as file:
            _guard(file)
            patiently(lambda: self._check(file))

    def _look_at_a_copy(self) -> None:
        """With what its last writer left beside it, which only who may write can undo."""
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            for rest in ("", "-journal", "-wal"):
                if Path(f"{self.path}{rest}").exists():
                    shutil.copyfile(f"{self.path}{rest}", f"{copy}{rest}")
            self._look_at(copy, "rw")

    def _opened(self) -> sqlite3.Connection:
        # Transactions are begun and ended by name: isolation_level None leaves them to us.
        file = sqlite3.connect(
            self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
        )
        try:
            _guard(file)
            # Where the file system cannot share memory, SQLite stays with its rollback journal: as safe, slower.
            patiently(lambda: file.execute("PRAGMA journal_mode=WAL").fetchall())
            file.execute("PRAGMA synchronous=FULL")
            file.execute("PRAGMA foreign_keys=ON")
        except BaseException:
            file.close()
            raise
        return file

    def _check(self, file: sqlite3.Connection) -> None:
        if _is_empty(file):
            return
        if _pragma(file, "application_id") != self.form.application:
            raise self.foreign("it is the database of another program")
        version = _pragma(file, "user_version")
        if not 1 <= version <= self.form.version:
            raise self.foreign(
                f"its format version is {version}; this version of Foretrain supports 1 to "
                f"{self.form.version}"
            )
        if _schema(file) != self.form.schema(version):
            raise self.foreign(f"its tables do not match format version {version}")
        faults = [row[0] for row in file.execute("PRAGMA quick_check(3)")]
        if faults != ["ok"]:
            raise self.damaged("; ".join(" ".join(str(fault).split()) for fault in faults))

    def _bring_up_to_date(self) -> None:
        """Make the tables or change them: in one transaction, so that no other process sees half of it."""
        if _pragma(self._file, "user_version") == self.form.version:
            return
        with self._transaction():
            self._check(self._file)
            for step in self.form.steps[_pragma(self._file, "user_version") :]:
                for statement in step:
                    self._file.execute(statement)
            self._file.execute(f"PRAGMA application_id={self.form.application}")
            self._file.execute(f"PRAGMA user_version={self.form.version}")

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
    def explained(self) -> Iterator[None]:
        """SQLite's errors, and rows that cannot be read, as errors a user can act on."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise FileError(
                f"{self.form.what} {self.path}: {error}. Its contents are intact; check that "
                "the directory exists and is writable and that the disk is not full."
            ) from error
        except sqlite3.DatabaseError as error:
            if "not a database" in str(error):
                raise self.foreign("it is not a database") from error
            raise self.damaged(str(error)) from error
        except OSError as error:
            raise FileError(
                f"{self.form.what} {self.path}: {error.strerror or error}. Specify another file."
            ) from error
        except (ValueError, TypeError, KeyError) as error:
            raise self.damaged(f"a row cannot be read ({error!r})") from error

    def foreign(self, why: str) -> FileError:
        return FileError(
            f"{self.path} is not a valid {self.form.what}: {why}. It was not modified; "
            "specify another file."
        )

    def damaged(self, why: str) -> FileError:
        return FileError(
            f"{self.form.what} {self.path} is corrupted: {why}. It was not modified; move "
            "it away or specify another file."
        )


def _guard(file: sqlite3.Connection) -> None:
    """The file may be a stranger's: nothing in it runs, and no value of it fills the memory."""
    file.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    file.execute("PRAGMA trusted_schema=OFF")


def _schema(file: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return file.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' "
        "ORDER BY type, name"
    ).fetchall()


def _is_empty(file: sqlite3.Connection) -> bool:
    """A new database, or one whose maker was killed before it had tables."""
    tables = file.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return not tables and not _pragma(file, "application_id")


def _pragma(file: sqlite3.Connection, name: str) -> int:
    return int(file.execute(f"PRAGMA {name}").fetchone()[0])


def patiently(call: Callable[[], T]) -> T:
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
