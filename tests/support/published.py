"""Documents held against the published keys of the software they are for (tables in `tests/unit/published/`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TABLES = Path(__file__).parents[1] / "unit" / "published"
TYPES: dict[str, Any] = {
    "int": int,
    "float": (int, float),
    "bool": bool,
    "str": str,
    "list": list,
    "none": type(None),
}


@cache
def table(target: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((TABLES / f"{target}.yaml").read_text("utf-8"))
    assert loaded["source"]
    return loaded


def faults(value: Any, form: Any, where: str) -> Iterator[str]:
    """Where a document leaves its published form: unknown keys, missing ones, wrong types and values."""
    if isinstance(form, list):
        if value not in form or isinstance(value, bool):
            yield f"{where}: {value!r} is not one of {form}"
    elif isinstance(form, str):
        kinds = form.split("|")
        is_number = isinstance(value, bool) and "bool" not in kinds
        if is_number or not any(isinstance(value, TYPES[kind]) for kind in kinds):
            yield f"{where}: {value!r} is not {form}"
    elif "each" in form:
        for index, entry in enumerate(value):
            yield from faults(entry, form["each"], f"{where}[{index}]")
    else:
        yield from _mapping(value, form, where)


def _mapping(value: Any, form: Mapping[str, Any], where: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{where}: {value!r} is no mapping"
        return
    known = {key.removesuffix("!"): inner for key, inner in form.items()}
    yield from (f"{where}.{key}: unknown" for key in value if key not in known)
    needed = [key[:-1] for key in form if key.endswith("!")]
    yield from (f"{where}.{key}: missing" for key in needed if key not in value)
    for key, inner in known.items():
        if key in value:
            yield from faults(value[key], inner, f"{where}.{key}")
