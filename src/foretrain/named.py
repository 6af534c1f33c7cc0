"""Code by its name: tables and nouns say where something lives, and it is loaded when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def named(home: str) -> Any:
    """What `"package.module:name"` names."""
    module, _, name = home.partition(":")
    return getattr(import_module(module), name)
