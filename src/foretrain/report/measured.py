"""The documents of `measure ops`, `measure links` and `measure data`, of a store and of a calibration."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from foretrain.measurement.calibration import Calibration
from foretrain.measurement.data import DataReport
from foretrain.measurement.links import LinkReport
from foretrain.measurement.machine import Machine
from foretrain.measurement.ops import OpsReport
from foretrain.measurement.records import Measurement, MeasurementReport
from foretrain.report.document import Document, Lines, Section, Table
from foretrain.units import counted, show_bandwidth, show_bytes, show_count, show_seconds

SHOWN = 20  # rows of a table at the usual detail


def _document(
    headline: str, report: MeasurementReport, make: Callable[[], Iterable[Section]], key: str
) -> Document:
    """`key`: of the rows in the report's document."""
    return Document(
        headline,
        report.to_dict,
        make,
        make_rows=lambda: report.to_dict()[key],
        whole=(report.store,),
    )


def ops_document(report: OpsReport) -> Document:
    threads = f" with {counted(report.threads, 'thread')}" if report.threads else ""
    return _document(
        f"{counted(report.measured, 'kernel')} timed on {report.device}{threads}, {len(report.rows):,} known now",
        report,
        partial(_ops_sections, report),
        "kernels",
    )


def _ops_sections(report: OpsReport) -> Iterator[Section]:
    """Kernels timed, the longest first."""
    rows = tuple(
        (
            row.need.title,
            show_seconds(row.seconds),
            _share(row.spread),
            str(row.repeats),
            f"{show_count(row.need.flops / row.seconds)}FLOP/s" if row.seconds else "",
            show_bandwidth(row.need.bytes / row.seconds) if row.seconds else "",
            "known" if row.was_known else "" if row.is_tight else "noisy",
        )
        for row in sorted(report.rows, key=lambda row: -row.seconds)
    )
    head = ("kernel", "seconds", "spread", "repeats", "arithmetic", "traffic", "")
    launch = report.host_seconds_per_kernel
    yield Table("kernels", head, rows[:SHOWN])
    yield Table("further kernels", head, rows[SHOWN:], detail=1)
    yield _next(
        report.store,
        *_unfinished(len(report.unmeasured), "kernel"),
        *((f"host time to launch a kernel: {show_seconds(launch)}",) if launch else ()),
    )


def links_document(report: LinkReport) -> Document:
    return _document(
        f"{counted(report.measured, 'size')} timed between {report.world} processes over {report.backend}",
        report,
        partial(_links_sections, report),
        "links",
    )


def _links_sections(report: LinkReport) -> Iterator[Section]:
    """Sizes by collective and group; what they come to as a latency and a bandwidth."""
    rows = tuple(
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
    curves = tuple(
        (
            curve["collective"],
            f"{curve['ranks']} on {curve['nodes']}",
            show_seconds(curve["latency_seconds"]),
            show_bandwidth(curve["bytes_per_second"]),
        )
        for curve in report.to_dict()["fitted"]
    )
    yield Table("links", head, rows, left=2)
    yield Table("fitted", (*head[:2], "latency", "large messages"), curves, left=2)
    unable = (f"{name}: not supported by this backend" for name in report.unable)
    yield _next(report.store, *unable, *_unfinished(report.unmeasured, "size"))


def data_document(report: DataReport) -> Document:
    return _document(
        f"{counted(report.measured, 'data rate')} measured, {len(report.rows):,} known now",
        report,
        partial(_data_sections, report),
        "data",
    )


def _data_sections(report: DataReport) -> Iterator[Section]:
    """Rates of reading, preparing and copying."""
    rows = tuple(
        (
            row.what.replace("_", " "),
            row.detail,
            f"{row.rate:,.1f} samples/s" if row.what == "prep" else show_bandwidth(row.rate),
            show_seconds(row.seconds),
            _share(row.spread),
        )
        for row in report.rows
    )
    yield Table("data", ("what", "how", "rate", "seconds", "spread"), rows, left=2)
    yield _next(report.store)


def _unfinished(count: int, what: str) -> tuple[str, ...]:
    if not count:
        return ()
    left = f"{counted(count, what)} left when the time budget ended."
    return (f"{left} Run the command again to continue.",)


def _next(store: str, *notes: str) -> Lines:
    return Lines(
        "store", (*notes, f"saved in {store}; 'foretrain calibrate' builds cost tables from it")
    )


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


# --- stores and calibrations ------------------------------------------------------------------------


def measurements_table(rows: Sequence[Measurement]) -> Table:
    """One line for each machine and kind."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for row in rows:
        groups.setdefault((row.machine.id, row.kind), []).append(row)
    lines = tuple(
        (
            machine,
            few[0].machine.title,
            kind,
            f"{len(few):,}",
            _share(statistics.median(row.spread for row in few)),
            max(row.at for row in few)[:19].replace("T", " "),
        )
        for (machine, kind), few in sorted(groups.items())
    )
    head = ("machine", "title", "kind", "measurements", "spread", "last (UTC)")
    return Table("measurements", head, lines, left=3)


def moved_document(headline: str, rows: Sequence[Measurement], data: Mapping[str, Any]) -> Document:
    """After an import or an export."""
    return Document(headline, lambda: data, lambda: (measurements_table(rows),))


def calibration_document(calibration: Calibration) -> Document:
    """What was made of the measurements. `calibration` is the JSON document too."""
    title = Machine.from_dict(calibration.machine).title
    parts = (
        counted(len(calibration.ops), "kernel"),
        counted(len(calibration.links), "link curve"),
        counted(calibration.provenance.measurements, "measurement"),
    )
    return Document(
        f"{title}: {parts[0]} and {parts[1]} from {parts[2]}",
        calibration.to_dict,
        lambda: (_kernels(calibration), _link_curves(calibration), _rest(calibration)),
    )


def _kernels(calibration: Calibration) -> Section:
    fitted = calibration.roofline
    if fitted is None:
        return Lines("kernels", ("none timed: predictions use the built-in tables",))
    rows = tuple(
        (
            peak.kernel,
            peak.dtype,
            f"{sum((op.kernel, op.dtype) == (peak.kernel, peak.dtype) for op in calibration.ops):,}",
            f"{peak.flops / 1e9:,.1f} GFLOP/s",
        )
        for peak in fitted.peaks
    )
    threads = (
        ""
        if calibration.threads is None
        else f", {counted(calibration.threads, 'thread')} a process"
    )
    note = (
        f"memory {show_bandwidth(fitted.bandwidth)}, kernel start "
        f"{show_seconds(fitted.start_seconds)}{threads}; kernels are within "
        f"{100 * fitted.spread:.0f} % of this roofline"
    )
    return Table("kernels", ("kind", "dtype", "timed", "rate"), rows, notes=(note,), left=2)


def _link_curves(calibration: Calibration) -> Section:
    rows = tuple(
        (
            link.collective,
            link.backend,
            f"{link.ranks}",
            f"{link.nodes}",
            f"{len(link.bytes)}",
            show_seconds(link.seconds[0]),
            show_bandwidth(link.bytes[-1] / link.seconds[-1]),
        )
        for link in calibration.links
    )
    head = ("collective", "library", "ranks", "nodes", "sizes", "smallest", "at the largest")
    return Table("links", head, rows, left=2)


def _rest(calibration: Calibration) -> Section:
    data, lines = calibration.data, []
    rates = {
        "fetch, cold cache": data.fetch_cold,
        "fetch, warm cache": data.fetch_warm,
        "host to device": data.host_to_device,
    }
    lines += [f"{name}: {show_bandwidth(rate)}" for name, rate in rates.items() if rate is not None]
    if data.prep_seconds_per_sample is not None:
        lines.append(
            f"preprocessing a sample: {show_seconds(data.prep_seconds_per_sample)} per worker"
        )
    if calibration.host_seconds_per_kernel is not None:
        lines.append(f"launching a kernel: {show_seconds(calibration.host_seconds_per_kernel)}")
    if calibration.drift:
        lines.append(f"drift between processes: {show_seconds(calibration.drift)} per second")
    return Lines("data and host", lines)
