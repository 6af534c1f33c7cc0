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
