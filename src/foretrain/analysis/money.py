"""Money: what a step costs at catalogue prices."""

from __future__ import annotations

from foretrain.analysis.prediction import Money
from foretrain.cluster.cluster import Cluster


def money(cluster: Cluster, step_seconds: float) -> Money:
    rent = cluster.usd_per_hour
    per_step = None if rent is None else rent * step_seconds / 3600.0
    return Money(rent, per_step, cluster.price_date if rent is not None else None)
