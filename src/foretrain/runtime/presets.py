"""The presets of `presets.yaml`, with the scalars of `fitted.yaml`, by name and alias."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from foretrain.errors import RuntimePresetError, hint
from foretrain.limits import shown
from foretrain.registering import once
from foretrain.runtime.runtime import CORE, OPTIONAL, Runtime, option_table

LABELS = ("title", "source", "release")
RECORDS: Mapping[str, type] = {**CORE, **OPTIONAL}


@cache
def preset_file() -> Mapping[str, Any]:
    """`presets.yaml` as it stands: the presets, and what the switches of a case change."""
    return _file("presets.yaml")


@cache
def fitted_file() -> Mapping[str, Any]:
    """`fitted.yaml` as it stands: by preset, feature and field, a value and where it is from."""
    return _file("fitted.yaml")


def _file(name: str) -> Mapping[str, Any]:
    from foretrain.loading import load_own_yaml

    data: dict[str, Any] = load_own_yaml(Path(__file__).with_name(name))
    return data


@cache
def presets() -> Mapping[str, Runtime]:
    """All presets by name; one may build on another with `like`, feature by feature."""
    table: dict[str, Runtime] = {}
    scalars = fitted_file()["presets"]
    for name, row in (preset_file()["presets"] | _OWN).items():
        base = table[row["like"]] if "like" in row else Runtime(name=name)
        labels = {label: row[label] for label in LABELS if label in row}
        aliases = tuple(row.get("aliases", ()))
        preset = replace(base, **{"release": "", **labels}, name=name, aliases=aliases)
        preset = preset.with_features(_features(row))
        table[name] = preset.with_features(
            {
                feature: {field: fitted["value"] for field, fitted in values.items()}
                for feature, values in scalars.get(name, {}).items()
            }
        )
    return table


_OWN: dict[str, Mapping[str, Any]] = {}
"""Rows beside those of `presets.yaml`."""


def add(name: str, row: Mapping[str, Any]) -> Callable[[], None]:
    """A row that was checked joins the table for this process; what comes back takes it out again."""

    def forget() -> None:
        presets.cache_clear()
        names.cache_clear()

    def undo() -> None:
        del _OWN[name]
        forget()

    _OWN[name] = row
    forget()
    try:
        presets()
    except Exception:
        undo()
        raise
    return once(undo)


def is_outside(name: str) -> bool:
    """Whether a preset was registered for this process alone."""
    return name in _OWN


def _features(row: Mapping[str, Any]) -> dict[str, dict[str, Any] | None]:
    """What a row says about features; None for one that its base has and it has not."""
    named = (name for name in RECORDS if name in row)
    return {name: None if row[name] is None else _fields(row[name]) for name in named}


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _frozen(value) for name, value in values.items()}


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, list) else value


def releases(name: str) -> list[Mapping[str, Any]]:
    """What releases of a stack could not do yet, as its preset lists it; none of those it is like."""
    row = (preset_file()["presets"] | _OWN).get(name, {})
    listed: list[Mapping[str, Any]] = row.get("releases", [])
    return listed


def changed_options(stack: Runtime) -> dict[str, Any]:
    """Options that are not as the preset of its name has them; of a stack without a preset, all that are not usual.

    A field that shares its name with a switch comes with the others which that switch sets, so that whoever reads the
    options again gets the same stack.
    """
    base = presets().get(stack.name) or Runtime(name=stack.name)
    changed = {name for name in option_table() if stack.option(name) != base.option(name)}
    switches = preset_file()["options"]
    for name in changed & switches.keys():
        changed |= {field for fields in switches[name].values() for field in fields}
    values = ((name, stack.option(name)) for name in option_table() if name in changed)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values}


@cache
def names() -> Mapping[str, str]:
    """Every name and alias, folded, and the preset it stands for."""
    table = presets()
    known = {folded(alias): name for name, preset in table.items() for alias in preset.aliases}
    return known | {folded(name): name for name in table}


def folded(name: str) -> str:
    """`Megatron_LM` and `megatron lm` are `megatron-lm`."""
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())


def runtime(name: str | Runtime) -> Runtime:
    """A preset by name or alias."""
    if isinstance(name, Runtime):
        return name
    preset = names().get(folded(name))
    if preset is None:
        raise RuntimePresetError(
            f"unknown runtime {shown(name, 80)}.{hint(name, names(), 'foretrain catalog list runtimes')}"
        )
    return presets()[preset]
