"""What is taken where a job does not say, with sources: `figures.yaml`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from foretrain.loading import load_own_yaml


@cache
def figures() -> dict[str, Any]:
    """The table."""
    rows: dict[str, Any] = load_own_yaml(Path(__file__).with_name("figures.yaml"))
    return rows


def figure(group: str, name: str) -> float:
    return float(figures()[group][name])


def source(group: str) -> str:
    return str(figures()[group]["source"])
