"""Money: what a step costs at the catalog's prices or the user's own."""

from __future__ import annotations

from foretrain.analysis.prediction import Money
from foretrain.cluster.cluster import Cluster


def money(cluster: Cluster, step_seconds: float, usd_per_device_hour: float | None = None) -> Money:
    """`usd_per_device_hour`: the user's own price of one device, before the catalog's."""
    if usd_per_device_hour is None:
        rent, date = cluster.usd_per_hour, cluster.price_date
    else:
        rent, date = usd_per_device_hour * cluster.device_count, None
    per_step = None if rent is None else rent * step_seconds / 3600.0
    return Money(rent, per_step, date if rent is not None else None)
