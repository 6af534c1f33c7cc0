"""Rows of presets before they are used: known names, values in the ranges of their fields; and the file of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from foretrain.conformity import Schema, array_schema, object_schema, schema_faults
from foretrain.errors import InputError, RuntimePresetError, hint, refuse
from foretrain.limits import shown
from foretrain.named import named
from foretrain.registering import expect_name, is_name
from foretrain.runtime.features.option import Read, readers_of
from foretrain.runtime.presets import (
    LABELS,
    RECORDS,
    add,
    fitted_file,
    folded,
    names,
    preset_file,
    runtime,
)
from foretrain.runtime.runtime import option_table

_TEXT: Schema = {"type": "string"}
_TEXTS = array_schema(dict(_TEXT))
_LABELS: Mapping[str, Schema] = {**dict.fromkeys((*LABELS, "like"), _TEXT), "aliases": _TEXTS}
_KEYS = {*_LABELS, "releases", *RECORDS}


def register(name: str, row: Mapping[str, Any]) -> Callable[[], None]:
    """Add a preset of one's own, written like a row of `presets.yaml`, for this process; what comes back takes it out
    again."""
    if folded(str(name)) in names():
        raise RuntimePresetError(f"runtime {name!r} is in the table already. Use another name.")
    expect_name(name, "a runtime", RuntimePresetError)
    undo = add(name, checked_row(name, row))
    try:
        named("foretrain.plan.supported:rules_of")(runtime(name))  # rules that cannot be read
    except InputError:
        undo()
        raise
    return undo


def checked_row(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a preset with its values as fields hold them; all that is wrong with it is told at once."""
    if not isinstance(row, Mapping):
        raise RuntimePresetError(
            f"runtime {name!r}: {shown(row)} is not a row of presets.yaml, a mapping of its features."
        )
    faults = [*row_faults(row), *_taken(row)]
    refuse(f"runtime {name!r} cannot be used:", faults, RuntimePresetError)
    return {key: _read_feature(key, value) for key, value in row.items()}


def _taken(row: Mapping[str, Any]) -> Iterator[str]:
    """Names in it that stand for another preset, and the one it is like that is none."""
    known = set(names().values())
    if "like" in row and row["like"] not in known:
        yield f"like: no preset {row['like']!r}.{hint(row['like'], known)}"
    aliases = row.get("aliases")
    for alias in aliases if isinstance(aliases, list | tuple) else ():
        if folded(str(alias)) in names():
            yield f"aliases: {alias!r} stands for {names()[folded(str(alias))]!r} already."
        elif not is_name(folded(str(alias))):
            yield f"aliases: {shown(alias)} is not a name: use letters, digits, '-', '_' and '.'."


def _read_feature(key: str, value: Any) -> Any:
    if key not in RECORDS or value is None:
        return value
    readers = readers_of(RECORDS[key])
    return {field: readers[field](one) for field, one in value.items()}


def row_faults(row: Mapping[str, Any]) -> Iterator[str]:
    """What a row names that there is not, and values that its fields do not take."""
    yield from (f"{key}: not a feature.{hint(key, _KEYS)}" for key in row if key not in _KEYS)
    yield from schema_faults({"properties": _LABELS}, row)
    for feature in (name for name in RECORDS if row.get(name) is not None):
        yield from _feature_faults(feature, row[feature])


def _feature_faults(feature: str, values: Any) -> Iterator[str]:
    readers = readers_of(RECORDS[feature])
    if not isinstance(values, Mapping):
        yield f"{feature}: {shown(values)} is not a mapping of its fields.{hint('', readers)}"
        return
    for field, value in values.items():
        if field not in readers:
            yield f"{feature}.{field}: unknown.{hint(field, readers)}"
        else:
            yield from _value_faults(f"{feature}.{field}", readers[field], value)


def _value_faults(path: str, read: Read, value: Any) -> Iterator[str]:
    try:
        read(value)
    except InputError as error:
        yield f"{path}: {error}"


# --- the file of our own ------------------------------------------------------------------------


def _by_name(schema: Schema) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": schema}


_OBJECT: Schema = {"type": "object"}
_OTHER_WORK = object_schema(
    {"is": _TEXT, "remedy": _TEXT, "same": {"type": "array"}}, ("is", "remedy")
)
_SECTIONS: dict[str, Any] = {
    "fallback": _TEXT,
    "presets": _by_name(_OBJECT),
    "options": _by_name(_by_name(_OBJECT)),
    "spellings": _by_name(_TEXTS),
    "elsewhere": _by_name(_TEXT),
    "dates": _TEXTS,
    "no_effect": _TEXTS,
    "tells": _by_name(_by_name(_TEXT)),
    "lengths": _by_name(_by_name({"type": "integer"})),
    "mebibytes": _TEXTS,
    "milliseconds": _by_name(_TEXT),
    "answered_by_preset": _by_name(_OBJECT),
    "work": _by_name(_OTHER_WORK),
    "work_words": _by_name(_OTHER_WORK),
    "work_runtimes": _TEXTS,
    "unmodelled": _by_name(_TEXT),
}


def preset_file_faults() -> list[str]:
    """What is wrong in `presets.yaml` and `fitted.yaml`: sections that hold something else, values out of range."""
    faults = schema_faults(object_schema(_SECTIONS, tuple(_SECTIONS)), preset_file())
    if faults:
        return [f"presets.yaml: {fault}" for fault in faults]
    return [*_faults_of_presets(), *_faults_of_options(), *_faults_of_fits()]


def _faults_of_presets() -> Iterator[str]:
    for name, row in preset_file()["presets"].items():
        yield from (f"presets.yaml: presets.{name}.{fault}" for fault in row_faults(row))
        for release in row.get("releases", ()):
            yield from _faults_of_sets(f"presets.{name}.releases", release.get("sets", {}))


def _faults_of_options() -> Iterator[str]:
    for option, values in preset_file()["options"].items():
        for value, sets in values.items():
            yield from _faults_of_sets(f"options.{option}.{value}", sets)


def _faults_of_sets(path: str, sets: Mapping[str, Any]) -> Iterator[str]:
    for field, value in sets.items():
        where = f"presets.yaml: {path}.{field}"
        if field not in option_table():
            yield f"{where}: unknown.{hint(field, option_table())}"
        else:
            yield from _value_faults(where, option_table()[field][1], value)


def _faults_of_fits() -> Iterator[str]:
    for name, row in fitted_file()["presets"].items():
        for feature, values in row.items():
            fitted = {field: one["value"] for field, one in values.items()}
            yield from (
                f"fitted.yaml: presets.{name}.{fault}" for fault in row_faults({feature: fitted})
            )
