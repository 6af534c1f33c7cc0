"""The store: every measurement of a machine and the calibrations made of them, in one SQLite file.

    with Store.open() as store:                      # FORETRAIN_STORE, else the user's data folder
        here = Machine.here()
        if store.known("op", op_key(kernel), here) is None:
            store.add(Measurement.of("op", op_key(kernel), samples, here))
        rows = store.rows(kind="op", machine=here)

Each measurement is a transaction of its own and on the disk when `add` returns: a run that is killed loses what it
was measuring and nothing else, and goes on from `known`. Several processes may write at once. Nothing is
overwritten: measured again, there are two rows, and `known` and `rows(newest=True)` take the newer one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretrain.database import Database, FileForm
from foretrain.errors import FileError
from foretrain.limits import shown
from foretrain.measurement.machine import Machine
from foretrain.measurement.records import (
    Key,
    Measurement,
    canonical,
    packed,
    unpacked,
)

FORM = FileForm(
    what="measurement store",
    application=0x466F7253,  # "ForS"
    steps=(
        (
            "CREATE TABLE machines (id TEXT PRIMARY KEY, told TEXT NOT NULL, hash TEXT NOT NULL)",
            "CREATE TABLE measurements (digest TEXT PRIMARY KEY, kind TEXT NOT NULL, key TEXT NOT NULL, "
            "about TEXT NOT NULL, seconds REAL NOT NULL, spread REAL NOT NULL, repeats INTEGER NOT NULL, "
            "samples BLOB NOT NULL, at TEXT NOT NULL, machine TEXT NOT NULL REFERENCES machines (id))",
            "CREATE INDEX measured ON measurements (kind, key, machine, at)",
            "CREATE TABLE calibrations (hash TEXT PRIMARY KEY, at TEXT NOT NULL, "
            "machine TEXT NOT NULL REFERENCES machines (id), document TEXT NOT NULL)",
        ),
    ),
    remedy="'foretrain measure' creates one; use --store or FORETRAIN_STORE for another.",
    makes_folder=True,
)
MOST_TOLD = 5  # digests of altered rows
COLUMNS = "digest, kind, key, about, seconds, spread, repeats, samples, at, machine"


def store_path(path: str | Path | None = None) -> Path:
    """Where the store is: as told, else FORETRAIN_STORE, else `store.sqlite` in the user's data folder."""
    named = path or os.environ.get("FORETRAIN_STORE")
    if named:
        return Path(named)
    try:
        home = Path.home()
    except RuntimeError:
        raise FileError(
            "There is no home directory for the measurement store; specify a file with "
            "--store or FORETRAIN_STORE."
        ) from None
    if os.name == "nt":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    return base / "foretrain" / "store.sqlite"


class Store:
    """Open while measuring; use it in a `with` or `close` it. Open it anew after a fork."""

    def __init__(self, database: Database) -> None:
        self._file = database
        self._machines: dict[str, Machine] = {}

    @classmethod
    def open(cls, path: str | Path | None = None, *, must_exist: bool = False) -> Store:
        """The store at `path` (see `store_path`), made if it is not there. Foreign, newer or damaged files are a
        `FileError` and left as they are."""
        return cls(Database(store_path(path), FORM, must_exist=must_exist))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

    @property
    def path(self) -> Path:
        return self._file.path

    # --- measurements ---------------------------------------------------------------------------

    def add(self, *measurements: Measurement) -> None:
        """Keep measurements, all or none; the very same one twice is kept once."""
        statements: list[tuple[str, tuple[Any, ...]]] = []
        for machine in dict.fromkeys(m.machine for m in measurements):
            statements.append(_machine_row(machine))
        statements += [_measurement_row(m) for m in measurements]
        if statements:
            self._file.write(*statements)

    def known(self, kind: str, key: Key, machine: Machine | str) -> Measurement | None:
        """The newest measurement of exactly this on this machine, None if there is none yet."""
        rows = self._file.rows(
            f"SELECT {COLUMNS} FROM measurements WHERE kind=? AND key=? AND machine=? "
            "ORDER BY at DESC, digest LIMIT 1",
            (kind, canonical(key), _id(machine)),
        )
        return self._measurements(rows)[0] if rows else None

    def rows(
        self,
        kind: str | None = None,
        machine: Machine | str | None = None,
        *,
        newest: bool = False,
    ) -> tuple[Measurement, ...]:
        """Measurements from the oldest to the newest; with `newest` only the last one of each key and machine."""
        query = f"SELECT {COLUMNS} FROM measurements WHERE (?1 IS NULL OR kind=?1) "
        query += "AND (?2 IS NULL OR machine=?2) ORDER BY at, digest"
        rows = self._file.rows(query, (kind, None if machine is None else _id(machine)))
        if newest:
            last = {(row[1], row[2], row[9]): row for row in rows}
            rows = [row for row in rows if last[row[1], row[2], row[9]] is row]
        return self._measurements(rows)

    def count(self) -> Mapping[tuple[str, str], int]:
        """How many measurements there are by (machine id, kind)."""
        rows = self._file.rows(
            "SELECT machine, kind, count(*) FROM measurements GROUP BY machine, kind ORDER BY machine, kind"
        )
        return {(machine, kind): number for machine, kind, number in rows}

    def machines(self) -> Mapping[str, Machine]:
        """Every machine by its id."""
        for name, document, written in self._file.rows(
            "SELECT id, told, hash FROM machines ORDER BY id"
        ):
            if name not in self._machines:
                self._machines[name] = self._machine(name, document, written)
        return dict(self._machines)

    # --- calibrations ---------------------------------------------------------------------------

    def add_calibration(self, machine: Machine, document: Mapping[str, Any], at: str) -> None:
        """Keep a calibration's document (`Calibration.to_dict`)."""
        text = json.dumps(document, sort_keys=True, allow_nan=False)
        row = (_hash(machine.id, at, text), at, machine.id, text)
        self._file.write(
            _machine_row(machine), ("INSERT OR IGNORE INTO calibrations VALUES (?, ?, ?, ?)", row)
        )

    def calibrations(self, machine: Machine | str | None = None) -> tuple[dict[str, Any], ...]:
        """Documents of calibrations, the newest last."""
        rows = self._file.rows(
            "SELECT hash, at, machine, document FROM calibrations WHERE (?1 IS NULL OR machine=?1) "
            "ORDER BY at, hash",
            (None if machine is None else _id(machine),),
        )
        for written, at, name, text in rows:
            if _hash(name, at, text) != written:
                raise self._file.damaged(f"its calibration of {at} does not match its checksum")
        with self._file.explained():
            return tuple(json.loads(row[3]) for row in rows)

    # --- rows -----------------------------------------------------------------------------------

    def _measurements(self, rows: list[tuple[Any, ...]]) -> tuple[Measurement, ...]:
        """Every row is checked against its own digest; those that were altered since are named, all at once."""
        pairs = [(row, self._measurement(row)) for row in rows]
        altered = [row for row, measurement in pairs if measurement is None]
        if altered:
            digests = ", ".join(f"'{row[0]}'" for row in altered[:MOST_TOLD])
            raise FileError(
                f"{self._file.form.what} {self.path}: {len(altered):,} of {len(rows):,} rows "
                "do not match their checksum. Delete them (DELETE FROM measurements WHERE "
                f"digest IN ({digests})) and measure again, or use another store with --store.",
                faults=[f"{row[1]} {shown(row[2], 120)} of {row[8]}" for row in altered],
            )
        return tuple(measurement for _, measurement in pairs if measurement is not None)

    def _measurement(self, row: tuple[Any, ...]) -> Measurement | None:
        """The measurement of a row; None where the row is not what was written."""
        digest, kind, key, about, seconds, spread, repeats, samples, at, machine = row
        with self._file.explained():
            measurement = Measurement(
                kind,
                json.loads(key),
                seconds,
                spread,
                repeats,
                self._known_machine(machine),
                at,
                unpacked(samples),
                json.loads(about),
            )
            return measurement if measurement.digest == digest else None

    def _known_machine(self, name: str) -> Machine:
        if name not in self._machines:
            self.machines()
        return self._machines[name]

    def _machine(self, name: str, document: str, written: str) -> Machine:
        if _hash(name, document) != written:
            raise self._file.damaged(f"the record of machine {name} does not match its checksum")
        with self._file.explained():
            return Machine.from_dict(json.loads(document))


def _id(machine: Machine | str) -> str:
    return machine if isinstance(machine, str) else machine.id


def _machine_row(machine: Machine) -> tuple[str, tuple[Any, ...]]:
    document = json.dumps(machine.to_dict(), sort_keys=True)
    row = (machine.id, document, _hash(machine.id, document))
    return "INSERT OR IGNORE INTO machines VALUES (?, ?, ?)", row


def _measurement_row(m: Measurement) -> tuple[str, tuple[Any, ...]]:
    row = (
        m.digest, m.kind, m.key_text, canonical(m.about), float(m.seconds), float(m.spread), m.repeats,
        packed(m.samples), m.at, m.machine.id,
    )  # fmt: skip
    return "INSERT OR IGNORE INTO measurements VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row


def _hash(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()
