"""Measured collectives as curves: from rows of a store to knots, and from knots to what the network is timed by."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.cost.curves import CurveTable, MeasuredCurve, OwnCurves, share
from foretrain.measurement.records import Measurement
from foretrain.measurement.tables import LinkCurve

if TYPE_CHECKING:
    from foretrain.measurement.links import LinkReport


def link_curves(rows: Iterable[Measurement]) -> tuple[LinkCurve, ...]:
    """A curve for each collective, library and group that was measured at two sizes or more."""
    groups: dict[tuple[str, str, int, int], dict[float, Measurement]] = {}
    for row in rows:
        try:
            key = row.key
            group = (
                str(key["collective"]),
                str(key["backend"]),
                int(key["ranks"]),
                int(key["nodes"]),
            )
            size = float(key["bytes"])
        except (KeyError, TypeError, ValueError):
            continue  # somebody else's link measurement: kept in the store, no curve
        if size > 0 and row.seconds > 0 and group[2] > 1 and 1 <= group[3] <= group[2]:
            groups.setdefault(group, {})[size] = row
    return tuple(
        _curve(group, [by_size[size] for size in sorted(by_size)], sorted(by_size))
        for group, by_size in sorted(groups.items())
        if len(by_size) > 1
    )


def _curve(
    group: tuple[str, str, int, int], rows: Sequence[Measurement], sizes: Sequence[float]
) -> LinkCurve:
    collective, backend, ranks, nodes = group
    seconds = isotonic([row.seconds for row in rows])
    spread = statistics.median(row.spread for row in rows)
    return LinkCurve(collective, backend, ranks, nodes, tuple(sizes), seconds, spread)


def isotonic(seconds: Sequence[float]) -> tuple[float, ...]:
    """The nearest times that do not fall with size, in logarithms: pool adjacent violators (Ayer et al. 1955)."""
    blocks: list[tuple[float, int]] = []
    for value in np.log(seconds).tolist():
        mean, count = value, 1
        while blocks and blocks[-1][0] > mean:
            before, many = blocks.pop()
            mean, count = (before * many + mean * count) / (many + count), many + count
        blocks.append((mean, count))
    return tuple(float(np.exp(mean)) for mean, count in blocks for _ in range(count))


def own_curves(links: Iterable[LinkCurve], device: str, drift: float = 0.0) -> OwnCurves | None:
    """What `cost.network` looks collectives up in; None where nothing was measured."""
    by_place: dict[tuple[str, int], dict[tuple[str, int, str], MeasuredCurve]] = {}
    for link in links:
        curves = by_place.setdefault((link.backend, link.nodes), {})
        curve = MeasuredCurve(np.array(link.bytes), np.array(link.seconds))
        curves[device, link.ranks, link.collective] = curve
    if not by_place:
        return None
    nothing: Mapping[str, str] = {}
    tables = {
        place: CurveTable(MappingProxyType(curves), nothing, {})
        for place, curves in by_place.items()
    }
    return OwnCurves(tables, device, drift)


def wire(links: Iterable[LinkCurve], nodes: int) -> tuple[float, float] | None:
    """(seconds of a step, bytes/s of a port) between ranks of so many nodes, from the measured curve that tells it
    best: point to point, else an all-reduce; None where neither was measured."""
    known = [link for link in links if link.nodes == nodes]
    order = {"send": 0, "all_reduce": 1, "all_gather": 2}
    able = sorted(
        (link for link in known if link.collective in order),
        key=lambda c: (order[c.collective], c.ranks),
    )
    if not able:
        return None
    best = able[0]
    curve = MeasuredCurve(np.array(best.bytes), np.array(best.seconds))
    steps = 1 if best.collective == "send" else 2 * (best.ranks - 1)
    return curve.floor / steps, curve.bandwidth * share(best.collective, best.ranks)


def fitted(report: LinkReport) -> list[dict[str, Any]]:
    """The curve through each group's sizes: pieces that are straight in logarithms, a floor below, a slope beyond."""
    groups: dict[tuple[str, int, int], dict[int, float]] = {}
    for row in report.rows:
        group = (row.collective, len(row.shape.ranks), row.shape.nodes)
        groups.setdefault(group, {})[row.bytes] = row.seconds
    out = []
    for (collective, ranks, nodes), by_size in groups.items():
        sizes = sorted(by_size)
        if len(sizes) < 2:
            continue
        seconds = isotonic([by_size[size] for size in sizes])
        curve = MeasuredCurve(np.array(sizes, dtype=np.float64), np.array(seconds))
        out.append(
            {
                "collective": collective,
                "ranks": ranks,
                "nodes": nodes,
                "latency_seconds": curve.floor,
                "bytes_per_second": curve.bandwidth,
                "bytes": sizes,
                "seconds": list(seconds),
            }
        )
    return out
