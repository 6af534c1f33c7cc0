"""Pages of `measure ops`, `measure links` and `measure data`."""

from __future__ import annotations

from collections.abc import Sequence

from foretrain.measurement.data import DataReport
from foretrain.measurement.links import LinkReport
from foretrain.measurement.ops import OpsReport
from foretrain.report.page import Page, Section
from foretrain.units import counted, show_bandwidth, show_bytes, show_count, show_seconds

SHOWN = 20  # rows of a table at the usual detail


def ops_page(report: OpsReport) -> Page:
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
    threads = f" with {counted(report.threads, 'thread')}" if report.threads else ""
    headline = f"{counted(report.measured, 'kernel')} timed on {report.device}{threads}, {len(rows):,} known now"
    notes = []
    if report.unmeasured:
        notes.append(
            f"{counted(len(report.unmeasured), 'kernel')} left when the time budget ended. "
            "Run the command again to continue."
        )
    if report.host_seconds_per_kernel:
        notes.append(
            f"host time to launch a kernel: {show_seconds(report.host_seconds_per_kernel)}"
        )
    sections = (
        Section("kernels", head, table[:SHOWN]),
        Section("further kernels", head, table[SHOWN:], detail=1),
        _next(report.store, notes),
    )
    shown = tuple(s for s in sections if s.rows or s.lines)
    document = report.to_dict()
    return Page(headline, document, shown, rows=document["kernels"], whole=(report.store,))


def links_page(report: LinkReport) -> Page:
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
    headline = f"{counted(report.measured, 'size')} timed between {report.world} processes over {report.backend}"
    notes = [f"{name}: not supported by this backend" for name in report.unable]
    if report.unmeasured:
        notes.append(
            f"{counted(report.unmeasured, 'size')} left when the time budget ended. Run the "
            "command again to continue."
        )
    document = report.to_dict()
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
        _next(report.store, notes),
    )
    shown = tuple(s for s in sections if s.rows or s.lines)
    return Page(headline, document, shown, rows=document["links"], whole=(report.store,))


def data_page(report: DataReport) -> Page:
    """Rates of reading, preparing and copying."""
    table = tuple(
        (
            row.what.replace("_", " "),
            row.detail,
            f"{row.rate:,.1f} samples/s" if row.what == "prep" else show_bandwidth(row.rate),
            show_seconds(row.seconds),
            _share(row.spread),
        )
        for row in report.rows
    )
    head = ("what", "how", "rate", "seconds", "spread")
    headline = f"{counted(report.measured, 'data rate')} measured, {len(report.rows):,} known now"
    document = report.to_dict()
    sections = (Section("data", head, table, left=2), _next(report.store, []))
    return Page(headline, document, sections, rows=document["data"], whole=(report.store,))


def _next(store: str, notes: Sequence[str]) -> Section:
    return Section(
        "store",
        lines=(*notes, (f"saved in {store}; 'foretrain calibrate' builds cost tables from it")),
    )


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"
