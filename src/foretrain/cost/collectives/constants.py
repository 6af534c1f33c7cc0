"""The constants of collective libraries, from `calibration/collectives.yaml`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any


@cache
def constants() -> dict[str, Any]:
    import yaml

    text = files("foretrain.cost.calibration").joinpath("collectives.yaml").read_text()
    data: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return data
