"""Stragglers: the same cluster with some devices slower than their data sheet.

A slow device is another device, so nothing else has to know: ranks on it fall into classes of their own, the
others wait for them, and the wait shows as imbalance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain, repeat

import numpy as np

from foretrain.cluster.cluster import Cluster, runs_of
from foretrain.cluster.device import Device
from foretrain.cluster.node import Node
from foretrain.errors import ClusterError, refuse
from foretrain.limits import SEEDS, SLOWNESS, Range, shown


@dataclass(frozen=True, slots=True)
class Spread:
    """Every device is slower by a log-normal factor of this relative width; the seed fixes the draw."""

    sigma: float
    seed: int = 0

    def __post_init__(self) -> None:
        faults = []
        if not _SIGMA.allows(self.sigma):
            faults.append(
                f"sigma: {shown(self.sigma)} must be from {_SIGMA.least:g} to {_SIGMA.most:g}."
            )
        if self.seed not in SEEDS:
            faults.append(f"seed: {shown(self.seed)} must be a whole number, zero or more.")
        refuse("invalid stragglers:", faults, ClusterError)


_SIGMA = Range(0.0, 2.0)


def with_stragglers(cluster: Cluster, slow: str | Mapping[int, float] | Spread) -> Cluster:
    """`{3: 1.5}` makes rank 3 take 1.5 times as long; `"3:1.5,7:1.2"` and `"sigma=0.05,seed=1"` say it as text."""
    if not isinstance(slow, str | Mapping | Spread):
        raise ClusterError(
            f"stragglers: {shown(slow)} is not a text such as '3:1.5', a mapping or a Spread."
        )
    factors = _factors(cluster, _read(slow) if isinstance(slow, str) else slow)
    if not factors:
        return cluster
    nodes: list[tuple[Node, int]] = []
    rank = 0
    for run in chain.from_iterable(repeat(run, run.count) for run in cluster.runs):
        slower = _slower(run.node, {i: factors.get(rank + i, 1.0) for i in range(run.used)})
        nodes.append((slower, run.used))
        rank += run.used
    return replace(cluster, runs=runs_of(nodes))


def straggler_text(slow: str | Mapping[int, float] | Spread) -> str:
    """As one would write it, each the same way; empty where nothing is slower."""
    parsed = _read(slow) if isinstance(slow, str) else slow
    if isinstance(parsed, Spread):
        return f"sigma={parsed.sigma:g},seed={parsed.seed}" if parsed.sigma else ""
    return ",".join(f"{rank}:{factor:g}" for rank, factor in sorted(parsed.items()) if factor != 1)


def _read(text: str) -> dict[int, float] | Spread:
    """Whole and once each: a word that is misspelt or repeated is no straggler and would go unnoticed."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    sign = "=" if "=" in text else ":"
    cells = [word.partition(sign) for word in words]
    pairs = [(name.strip(), value.strip()) for name, _, value in cells]
    values = dict(pairs)
    try:
        if len(values) < len(pairs) or not values:
            raise ValueError
        if sign == "=":
            spread: dict[int, float] | Spread = Spread(
                float(values.pop("sigma")), int(values.pop("seed", "0"))
            )
            if values:
                raise ValueError
        else:
            spread = {int(rank): float(factor) for rank, factor in pairs}
    except (ValueError, KeyError):
        raise ClusterError(
            f"stragglers {shown(text)}: expected rank:factor pairs such as '3:1.5,7:1.2', each rank "
            "once, or a distribution such as 'sigma=0.05,seed=1'."
        ) from None
    return spread


def _factors(cluster: Cluster, slow: Mapping[int, float] | Spread) -> dict[int, float]:
    if isinstance(slow, Spread):
        draws = np.random.default_rng(slow.seed).standard_normal(cluster.device_count)
        return {rank: float(np.exp(slow.sigma * abs(d))) for rank, d in enumerate(draws.tolist())}
    ranks = range(cluster.device_count)
    faults = [
        f"rank {shown(rank)}: out of range; ranks are 0 to {ranks[-1]}."
        for rank in slow
        if rank not in ranks
    ]
    faults += [
        (
            f"rank {shown(rank)}: factor {shown(factor)} must be a number from {SLOWNESS.least} to "
            f"{SLOWNESS.most:g}; remove failed devices from the cluster instead."
        )
        for rank, factor in slow.items()
        if not SLOWNESS.allows(factor)
    ]
    refuse("invalid stragglers:", faults, ClusterError)
    return dict(slow)


def _slower(node: Node, factors: Mapping[int, float]) -> Node:
    """The node with some devices slowed; its first devices are those in use."""
    devices = tuple(
        _slowed(device, factors.get(index, 1.0)) for index, device in enumerate(node.devices)
    )
    return node if devices == node.devices else replace(node, devices=devices)


def _slowed(device: Device, factor: float) -> Device:
    if factor == 1.0:
        return device
    slower = device.scaled(1.0 / factor, 1.0 / factor, 1.0)
    return replace(slower, name=device.name, title=f"{device.title}, {factor:.4g}x slower")
