"""The user's own catalog: one folder with devices.yaml, nodes.yaml and links.yaml."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretrain.errors import FileError, InputError


def user_folder() -> Path:
    """The folder FORETRAIN_CATALOG names, else the usual place for settings."""
    named = os.environ.get("FORETRAIN_CATALOG")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "foretrain" / "catalog"


def add_file(path: str, replace: bool) -> tuple[Path, list[str]]:
    """Put the rows of `path` into the user's catalog; the file they went to and their names."""
    import yaml

    from foretrain.cluster.catalog.checking import check_catalogue_file
    from foretrain.loading import load_yaml
    from foretrain.report.files import write_whole

    rows = load_yaml(Path(path), "catalog entries")
    if not isinstance(rows, Mapping) or not rows:
        raise FileError(
            f"{path} has no entries; expected a mapping of names to devices, nodes or links."
        )
    table = _table(rows)
    check_catalogue_file(table, rows, path)
    folder = user_folder()
    target = folder / f"{table}.yaml"
    before = (load_yaml(target, f"catalog {table}") or {}) if target.exists() else {}
    joined = _joined(before, rows, table, replace, target)
    check_catalogue_file(table, joined, str(target))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot create {folder} ({error.strerror}).") from None
    write_whole(target, yaml.safe_dump(joined, sort_keys=False, allow_unicode=True))
    return target, _names(rows, table)


def _table(rows: Mapping[str, Any]) -> str:
    if {"nodes", "offers"} & rows.keys():
        return "nodes"
    return "links" if {"links", "meshes"} & rows.keys() else "devices"


def _names(rows: Mapping[str, Any], table: str) -> list[str]:
    if table == "devices":
        return [str(name) for name in rows]
    return [
        str(name)
        for key, part in rows.items()
        for name in (part if isinstance(part, Mapping) else [f"{key} ({len(part)})"])
    ]


def _joined(
    before: Mapping[str, Any], rows: Mapping[str, Any], table: str, replace: bool, target: Path
) -> dict[str, Any]:
    known = set(_names(before, table))
    again = [name for name in _names(rows, table) if name in known]
    if again and not replace:
        raise InputError(f"{target} already has {', '.join(again)}. Use --replace to overwrite.")
    if table == "devices":
        return {**before, **rows}
    joined = dict(before)
    for key, part in rows.items():
        if isinstance(part, Mapping):
            joined[key] = {**(joined.get(key) or {}), **part}
        else:
            joined[key] = [*(joined.get(key) or []), *part]
    return joined
