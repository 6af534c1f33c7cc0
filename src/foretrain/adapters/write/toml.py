"""TOML, as far as launch files need it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any


def toml_text(document: Mapping[str, Any], title: str) -> str:
    """Tables in the order of the document, under one line that says what it is."""
    return "\n".join([f"# {title}", *_table(document, ())]) + "\n"


def _table(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    own = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    if own and path:
        yield from ("", f"[{'.'.join(path)}]")
    for key, value in own.items():
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}"
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _table(value, (*path, key))
