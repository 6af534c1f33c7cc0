"""Measurements as JSON and CSV files, both ways: to look at, to send, and to bring into another store."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from foretrain.errors import FileError, InputError
from foretrain.loading import load_json, no_constant, read_text, whole_number
from foretrain.measurement.machine import Machine
from foretrain.measurement.records import MOST_SAMPLES, Measurement, canonical

SCHEMA = 1
WHAT = "measurements (create them with 'foretrain measure export FILE')"
COLUMNS = ("kind", "seconds", "spread", "repeats", "at", "key", "about", "samples", "machine")
MOST_FAULTS = 20
LONGEST_FIELD = 30 * MOST_SAMPLES


# --- writing ----------------------------------------------------------------------------------------


def to_document(rows: Iterable[Measurement]) -> dict[str, Any]:
    """Plain data; machines are told once."""
    measurements = list(rows)
    machines = {row.machine.id: row.machine.to_dict() for row in measurements}
    return {
        "schema_version": SCHEMA,
        "machines": {name: machines[name] for name in sorted(machines)},
        "measurements": [{**plain(row), "samples": list(row.samples)} for row in measurements],
    }


def plain(row: Measurement) -> dict[str, Any]:
    """One measurement without its samples."""
    names = ("kind", "key", "seconds", "spread", "repeats", "at", "machine", "about")
    about = {"key": dict(row.key), "machine": row.machine.id, "about": dict(row.about)}
    return {name: getattr(row, name) for name in names} | about


def to_json(rows: Iterable[Measurement]) -> str:
    """One measurement on a line."""
    document = to_document(rows)
    lines = ",\n    ".join(json.dumps(one, allow_nan=False) for one in document["measurements"])
    machines = json.dumps(document["machines"], allow_nan=False)
    return (
        f'{{\n  "schema_version": {SCHEMA},\n  "machines": {machines},\n'
        f'  "measurements": [\n    {lines}\n  ]\n}}\n'
    )


def to_csv(rows: Iterable[Measurement]) -> str:
    """A table; what is not a number or a word is JSON within its cell."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n")
    write.writerow(COLUMNS)
    for row in rows:
        cells = (canonical(row.key), canonical(row.about), json.dumps(list(row.samples)))
        machine = json.dumps(row.machine.to_dict(), sort_keys=True)
        write.writerow((row.kind, row.seconds, row.spread, row.repeats, row.at, *cells, machine))
    return out.getvalue()


# --- reading ----------------------------------------------------------------------------------------


def read_measurements(path: str | Path) -> tuple[Measurement, ...]:
    """Measurements of a `.json` or `.csv` file; every fault at once, each with its place."""
    file = Path(path)
    reader = READERS.get(file.suffix.lower())
    if reader is None:
        raise FileError(f"{file}: expected {WHAT}, a {' or '.join(READERS)} file.")
    measurements: list[Measurement] = []
    faults: list[str] = []
    for place, make in reader(file):
        try:
            measurements.append(make())
        except InputError as error:
            faults += [f"{place}: {fault}" for fault in error.faults or (str(error),)]
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            faults.append(f"{place}: {_message(error)}.")
        if len(faults) >= MOST_FAULTS:
            break
    if faults:
        raise FileError(f"{file} is invalid; expected {WHAT}:", faults=faults[:MOST_FAULTS])
    return tuple(measurements)


Make = Callable[[], Measurement]


def _from_json(file: Path) -> Iterator[tuple[str, Make]]:
    document = load_json(file, WHAT)
    if not isinstance(document, Mapping) or not {
        "schema_version",
        "machines",
        "measurements",
    } <= set(document):
        raise FileError(f"{file} is not {WHAT}: schema_version, machines or measurements missing.")
    if document["schema_version"] != SCHEMA:
        version = str(document["schema_version"])[:20]
        raise FileError(
            f"{file} has schema_version {version}; this version of Foretrain reads {SCHEMA}."
        )
    if not isinstance(document["machines"], Mapping) or not isinstance(
        document["measurements"], list
    ):
        raise FileError(f"{file} is not {WHAT}: machines must be a mapping, measurements a list.")
    machines = {
        name: _machine(row, f"{file}: machines.{name}")
        for name, row in document["machines"].items()
    }
    for number, row in enumerate(document["measurements"]):

        def make(row: Any = row) -> Measurement:
            if not isinstance(row, Mapping):
                raise ValueError("expected a mapping")
            if row["machine"] not in machines:
                raise ValueError(f"machine {str(row['machine'])[:40]!r} is not listed in machines")
            return _measurement(row, machines[row["machine"]])

        yield f"measurements[{number}]", make


def _from_csv(file: Path) -> Iterator[tuple[str, Make]]:
    lines = csv.reader(io.StringIO(read_text(file, what=WHAT), newline=""))
    csv.field_size_limit(LONGEST_FIELD)
    try:
        head = next(lines, [])
        missing = [name for name in COLUMNS if name not in head]
        if missing:
            raise FileError(f"{file} is not {WHAT}: columns {', '.join(missing)} missing.")
        machines: dict[str, Machine] = {}
        for cells in lines:
            if not cells:
                continue

            def make(cells: list[str] = cells) -> Measurement:
                if len(cells) != len(head):
                    raise ValueError(f"{len(cells)} cells; the header has {len(head)}")
                row: dict[str, Any] = dict(zip(head, cells, strict=True))
                machine = row["machine"]
                if machine not in machines:
                    machines[machine] = Machine.from_dict(json.loads(machine))
                for name in ("key", "about", "samples"):
                    row[name] = json.loads(
                        row[name], parse_constant=no_constant, parse_int=whole_number
                    )
                for name in ("seconds", "spread"):
                    row[name] = float(row[name])
                row["repeats"] = int(row["repeats"])
                return _measurement(row, machines[machine])

            yield f"line {lines.line_num}", make
    except csv.Error as error:
        raise FileError(f"{file}: line {lines.line_num}: {error}; expected {WHAT}.") from None


READERS: Mapping[str, Callable[[Path], Iterator[tuple[str, Make]]]] = {
    ".json": _from_json,
    ".csv": _from_csv,
}
WRITERS: Mapping[str, Callable[[Iterable[Measurement]], str]] = {".json": to_json, ".csv": to_csv}


def _measurement(row: Mapping[str, Any], machine: Machine) -> Measurement:
    key, about, samples = row["key"], row.get("about") or {}, row.get("samples") or []
    if not isinstance(key, Mapping) or not isinstance(about, Mapping):
        raise ValueError("key and about must be mappings")
    if not isinstance(samples, list) or any(
        isinstance(s, bool) or not isinstance(s, int | float) for s in samples
    ):
        raise ValueError("samples must be a list of numbers")
    for name in ("seconds", "spread"):
        if isinstance(row[name], bool) or not isinstance(row[name], int | float):
            raise ValueError(f"{name} must be a number")
    if not isinstance(row["kind"], str) or not isinstance(row["at"], str) or len(row["at"]) > 60:
        raise ValueError("kind and at must be short strings")
    measurement = Measurement(
        row["kind"],
        dict(key),
        float(row["seconds"]),
        float(row["spread"]),
        row["repeats"],
        machine,
        row["at"],
        tuple(float(s) for s in samples),
        dict(about),
    )
    canonical(measurement.key)
    canonical(measurement.about)
    return measurement


def _machine(row: Any, where: str) -> Machine:
    try:
        return Machine.from_dict(row)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise FileError(f"{where[:200]} is invalid: {_message(error)}.") from None


def _message(error: Exception) -> str:
    text = f"{error.args[0]} missing" if isinstance(error, KeyError) and error.args else str(error)
    return " ".join(text.split())[:160] or type(error).__name__
