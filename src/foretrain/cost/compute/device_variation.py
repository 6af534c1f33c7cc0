"""The slowest of many boards of one kind, which a synchronised step waits for."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

from foretrain.cost.compute.estimate import TABLES
from foretrain.loading import load_own_yaml

__all__ = ["latest", "slowest"]


@cache
def slowest(device: str, count: int) -> float:
    """Expected time of the slowest of `count` boards over that of the mean one."""
    spread = float(load_own_yaml(TABLES / "boards.yaml")["spread"].get(device, 0.0))
    return 1.0 + spread * latest(count)


@cache
def latest(count: int) -> float:
    """How many standard deviations above their mean the largest of `count` values is expected: close to the quantile
    at (n - 0.375) / (n + 0.25) (Blom 1958)."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25)) if count > 1 else 0.0
