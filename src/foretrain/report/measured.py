"""Pages of `measure ops`, `measure links` and `measure data`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foretrain.measurement.data import DataRow
from foretrain.measurement.links import LinkReport
from foretrain.measurement.ops import Report
from foretrain.report.page import Page, Section
from foretrain.units import show_bandwidth, show_bytes, show_count, show_seconds

SHOWN = 20  # rows of a table at the usual detail


def ops_page(report: Report, store: str) -> Page:
    """Kernels timed, the longest first."""
    rows = sorted(report.rows, key=lambda row: -row.seconds)
    table = tuple(
        (
            row.need.title,
            show_seconds(row.seconds),
            _share(row.spread),
            str(row.repeats),
            f"{show_count(row.need.flops / row.seconds)}FLOP/s" if row.seconds else "",
            show_bandwidth(row.need.bytes / row.seconds) if row.seconds else "",
            "known" if row.was_known else "" if row.is_tight else "noisy",
        )
        for row in rows
    )
    head = ("kernel", "seconds", "spread", "repeats", "arithmetic", "traffic", "")
    threads = f" with {report.threads} threads" if report.threads else ""
    headline = (
        f"{report.measured:,} kernels timed on {report.device}{threads}, {len(rows):,} known now"
    )
    notes = []
    if report.unmeasured:
        notes.append(
            f"{len(report.unmeasured):,} kernels are left: the budget ended. Run it again."
        )
    if report.host_seconds_per_kernel:
        notes.append(f"host time to issue a kernel: {show_seconds(report.host_seconds_per_kernel)}")
    sections = (
        Section("kernels", head, table[:SHOWN]),
        Section("further kernels", head, table[SHOWN:], detail=1),
        _next(store, notes),
    )
    return Page(
        headline, _ops_document(report, store), tuple(s for s in sections if s.rows or s.lines)
    )


def _ops_document(report: Report, store: str) -> dict[str, Any]:
    return {
        "device": report.device,
        "threads": report.threads,
        "measured": report.measured,
        "known": len(report.rows),
        "unmeasured": [need.title for need in report.unmeasured],
        "host_seconds_per_kernel": report.host_seconds_per_kernel,
        "kernels": [
            {
                "kernel": row.need.title,
                "seconds": row.seconds,
                "spread": row.spread,
                "repeats": row.repeats,
                "was_known": row.was_known,
                "is_tight": row.is_tight,
            }
            for row in report.rows
        ],
        "store": store,
    }


def links_page(report: LinkReport, store: str) -> Page:
    """Sizes by collective and group; what they come to as a latency and a bandwidth."""
    table = tuple(
        (
            row.collective,
            f"{len(row.shape.ranks)} on {row.shape.nodes}",
            show_bytes(row.bytes),
            show_seconds(row.seconds),
            _share(row.spread),
            show_bandwidth(row.bytes / row.seconds) if row.seconds else "",
        )
        for row in report.rows
    )
    head = ("collective", "ranks on nodes", "size", "seconds", "spread", "size / seconds")
    measured = sum(not row.was_known for row in report.rows)
    headline = f"{measured:,} sizes timed between {report.world} processes over {report.backend}"
    notes = [f"{name}: not in this backend" for name in report.unable]
    if report.unmeasured:
        notes.append(f"{report.unmeasured:,} sizes are left: the budget ended. Run it again.")
    document: dict[str, Any] = {
        "backend": report.backend,
        "processes": report.world,
        "nodes": report.nodes,
        "measured": measured,
        "unmeasured": report.unmeasured,
        "unable": list(report.unable),
        "links": [
            {
                "collective": row.collective,
                "ranks": len(row.shape.ranks),
                "nodes": row.shape.nodes,
                "bytes": row.bytes,
                "seconds": row.seconds,
                "spread": row.spread,
                "repeats": row.repeats,
                "was_known": row.was_known,
            }
            for row in report.rows
        ],
        "fitted": fitted(report),
        "store": store,
    }
    curves = tuple(
        (
            f["collective"],
            f"{f['ranks']} on {f['nodes']}",
            show_seconds(f["latency_seconds"]),
            show_bandwidth(f["bytes_per_second"]),
        )
        for f in document["fitted"]
    )
    sections = (
        Section("links", head, table, left=2),
        Section(
            "fitted", ("collective", "ranks on nodes", "latency", "large messages"), curves, left=2
        ),
        _next(store, notes),
    )
    return Page(headline, document, tuple(s for s in sections if s.rows or s.lines))


def fitted(report: LinkReport) -> list[dict[str, Any]]:
    """The curve through each group's sizes: pieces that are straight in logarithms, a floor below, a slope beyond."""
    import numpy as np

    from foretrain.cost.curves import Curve
    from foretrain.measurement.link_curves import rising

    found: dict[tuple[str, int, int], dict[int, float]] = {}
    for row in report.rows:
        group = (row.collective, len(row.shape.ranks), row.shape.nodes)
        found.setdefault(group, {})[row.bytes] = row.seconds
    out = []
    for (collective, ranks, nodes), by_size in found.items():
        sizes = sorted(by_size)
        if len(sizes) < 2:
            continue
        seconds = rising([by_size[size] for size in sizes])
        curve = Curve(np.array(sizes, dtype=np.float64), np.array(seconds))
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


def data_page(rows: Sequence[DataRow], store: str) -> Page:
    """Rates of reading, preparing and copying."""
    table = tuple(
        (
            row.what.replace("_", " "),
            row.detail,
            f"{row.rate:,.1f} samples/s" if row.what == "prep" else show_bandwidth(row.rate),
            show_seconds(row.seconds),
            _share(row.spread),
        )
        for row in rows
    )
    head = ("what", "how", "rate", "seconds", "spread")
    document = {
        "data": [
            {
                "what": row.what,
                "detail": row.detail,
                "amount": row.amount,
                "seconds": row.seconds,
                "per_second": row.rate,
                "spread": row.spread,
                "repeats": row.repeats,
                "was_known": row.was_known,
            }
            for row in rows
        ],
        "store": store,
    }
    measured = sum(not row.was_known for row in rows)
    headline = f"{measured:,} data rates measured, {len(rows):,} known now"
    return Page(headline, document, (Section("data", head, table, left=2), _next(store, [])))


def _next(store: str, notes: Sequence[str]) -> Section:
    return Section(
        "store", lines=(*notes, f"kept in {store}; 'foretrain calibrate' makes costs of it")
    )


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
