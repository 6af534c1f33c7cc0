"""The constants of collective libraries, from `calibration/collectives.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from foretrain.loading import load_own_yaml


@cache
def constants() -> dict[str, Any]:
    folder = Path(__file__).parents[1] / "calibration"
    data: dict[str, Any] = load_own_yaml(folder / "collectives.yaml")
    return data


def library_row(library: str) -> dict[str, Any]:
    """The tables of a library; one that has none is taken for a build of the first, which most stacks use."""
    rows: dict[str, Any] = constants()["libraries"]
    row: dict[str, Any] = rows.get(library) or next(iter(rows.values()))
    return row
