"""Launches of the stall protocol as they would be told, for tests of what is made of them."""

from __future__ import annotations

from typing import Any

from foretrain.measurement.train_runs import TrainRun, train_run


def launch(
    run: str,
    *ranks: tuple[float, float, float, float, float],
    steps: int = 20,
    updates: list[bool] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """A launch whose ranks have these parts (data, host, compute, wait, optimizer) in every pass."""
    told = [
        {"passes": [list(parts)] * steps, "updates": updates or [True] * steps, "cpu_seconds": 0.1}
        for parts in ranks
    ]
    usual = {"run": run, "world": len(ranks), "hosts": 1, "workers": 1, "cores": 4, "is_warm": True}
    return {**usual, **facts, "ranks": told}


def runs(**launches: dict[str, Any]) -> dict[str, TrainRun]:
    return {name: train_run(name, [told]) for name, told in launches.items()}
