"""Measured training runs in the store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretrain.measurement.machine import Machine
from foretrain.measurement.records import Measurement, now
from foretrain.measurement.store import Store

__all__ = ["keep_runs"]


def keep_runs(document: Mapping[str, Any], path: str | Path | None = None) -> int:
    """Keep every run of a `measure train` document, all or none; how many."""
    here, at = Machine.here(), now()
    rows = [
        Measurement(
            "train",
            {"command": document["command"], "run": name},
            float(run["step_seconds"]),
            float(run["spread"]),
            int(run["steps"]),
            here,
            at,
            about={**run, "stalls": document["stalls"], "explained_run": document["explained_run"]},
        )
        for name, run in document["runs"].items()
    ]
    with Store.open(path) as store:
        store.add(*rows)
    return len(rows)
